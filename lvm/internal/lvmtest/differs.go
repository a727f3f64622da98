package lvmtest

import (
	"bytes"
	"fmt"
	"sync"

	"softiser/blockdev"
)

const compared = 1 << 20 // at a time, bytes

var scratch = sync.Pool{New: func() any { return new([compared]byte) }}

// Differs compares what a device holds from its beginning on with want.
func Differs(dev blockdev.Device, want []byte) error {
	b := scratch.Get().(*[compared]byte)
	defer scratch.Put(b)
	for off := 0; off < len(want); off += compared {
		want := want[off:min(off+compared, len(want))]
		got := b[:len(want)]
		if _, err := dev.ReadAt(got, int64(off)); err != nil {
			return err
		}
		if bytes.Equal(got, want) {
			continue
		}
		at := 0
		for got[at] == want[at] {
			at++
		}
		return fmt.Errorf("byte %d is %#x, expected %#x", off+at, got[at], want[at])
	}
	return nil
}
