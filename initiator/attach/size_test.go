package attach

import (
	"errors"
	"slices"
	"testing"

	"softiser/blockdev"
)

// A device has the size that the volume has now, whenever that changes and however late it is told; it is left alone
// once it is being taken apart, and asked again where it has refused.
func TestFollow(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20)}
	opt := options(t, l)
	var told []error
	opt.OnError = func(err error) { told = append(told, err) }
	a := newAttachment(opt)
	a.lun = l
	var given []int64
	var refuses error
	resize := func(size int64) error {
		given = append(given, size)
		return refuses
	}
	l.size.Store(2 << 20) // after the device was made, and before anybody listens
	end := a.follow(1<<20, resize)
	l.size.Store(4 << 20)
	l.resized(blockdev.Info{Size: 4 << 20})
	l.resized(blockdev.Info{Size: 3 << 20}) // told late: it is over
	refuses = errors.New("no")
	l.resize(5 << 20)
	refuses = nil
	l.resize(5 << 20)
	late := l.resized // called, and on its way when the device goes
	end()
	l.size.Store(6 << 20)
	late(l.Info())
	if want := []int64{2 << 20, 4 << 20, 5 << 20, 5 << 20}; !slices.Equal(given, want) || len(told) != 1 {
		t.Errorf("the device was given %d, want %d; %v", given, want, told)
	}
}
