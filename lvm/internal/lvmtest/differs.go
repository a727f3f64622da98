package lvmtest

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"softiser/blockdev"
)

var scratch = sync.Pool{New: func() any { return new([]byte) }}

// Differs compares what a device holds from its beginning on with want.
func Differs(dev blockdev.Device, want []byte) error {
	b := scratch.Get().(*[]byte)
	defer scratch.Put(b)
	*b = slices.Grow((*b)[:0], len(want))[:len(want)]
	if _, err := dev.ReadAt(*b, 0); err != nil {
		return err
	}
	if bytes.Equal(*b, want) {
		return nil
	}
	at := 0
	for (*b)[at] == want[at] {
		at++
	}
	return fmt.Errorf("byte %d is %#x, expected %#x", at, (*b)[at], want[at])
}
