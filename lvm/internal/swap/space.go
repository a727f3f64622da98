package swap

import (
	"errors"

	"softiser/blockdev"
)

// A write that waits for space must be out of the way of whoever changes what is
// behind the device: the change may be the one that makes space, or hold a lock
// that the one which does needs. So nothing waits within a generation or holds the
// gate for longer than the generation is wanted: the wait is cut short by a freeze,
// and the write begins anew on what is there then. Doing it twice is invisible but
// to those who read or write the same range at the same time.

// closed is the Stop of a first try, which does not wait.
type closed struct{ done chan struct{} }

func (c *closed) Done() <-chan struct{} { return c.done }

var atOnce = func() *closed {
	c := &closed{make(chan struct{})}
	close(c.done)
	return c
}()

// either is a Stop that ends with the caller's, which may be nil, or when the
// generation is wanted.
type either struct{ done <-chan struct{} }

func (e either) Done() <-chan struct{} { return e.done }

// newEither returns the Stop, and what ends its goroutine.
func newEither(stop blockdev.Stop, wanted <-chan struct{}) (e either, end func()) {
	if stop == nil {
		return either{wanted}, func() {}
	}
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		select {
		case <-stop.Done():
			close(done)
		case <-wanted:
			close(done)
		case <-over:
		}
	}()
	return either{done}, func() { close(over) }
}

func stopped(stop blockdev.Stop) bool {
	if stop == nil {
		return false
	}
	select {
	case <-stop.Done():
		return true
	default:
		return false
	}
}

// waits reports whether a first try found that it has to wait, and still may.
func waits(err error, stop blockdev.Stop) bool {
	return errors.Is(err, blockdev.ErrStopped) && !stopped(stop)
}

// write has do take place on the device behind d: at once, or else as soon as there is space for it, which
// it waits for until stop ends.
func (d *Device) write(stop blockdev.Stop, do func(dev blockdev.Device, stop blockdev.Stop) error) error {
	err := d.writeOnce(do)
	for waits(err, stop) {
		err = d.waitOnce(stop, do)
	}
	return err
}

func (d *Device) writeOnce(do func(dev blockdev.Device, stop blockdev.Stop) error) error {
	g := d.enterToWrite()
	defer d.leaveToWrite(g)
	return do(g.dev, atOnce)
}

func (d *Device) waitOnce(stop blockdev.Stop, do func(dev blockdev.Device, stop blockdev.Stop) error) error {
	g := d.enterToWrite()
	defer d.leaveToWrite(g)
	s, end := newEither(stop, g.wanted)
	defer end()
	return do(g.dev, s)
}

// CommitLease implements blockdev.Lender.
func (g *gen) CommitLease(l *blockdev.Lease, fua bool) error { return g.CommitLeaseUntil(l, fua, nil) }

// CommitLeaseUntil implements blockdev.SpaceLender. A lease whose commit has to wait
// for space is a staged one: it leaves the generation, and is written to whatever is
// behind the device.
func (g *gen) CommitLeaseUntil(l *blockdev.Lease, fua bool, stop blockdev.Stop) error {
	w, ok := g.lender.(blockdev.SpaceLender)
	if !ok {
		return g.lender.CommitLease(l, fua)
	}
	err := w.CommitLeaseUntil(l, fua, atOnce)
	if !errors.Is(err, blockdev.ErrStopped) || stopped(stop) {
		return err
	}
	s := &left{stager: &g.d.stage, lender: g.lender}
	g.d.stage.open.Add(1)
	l.Owner = s
	g.leave()
	return s.CommitLeaseUntil(l, fua, stop)
}

// left owns a staged lease that has left its generation. Its memory is still the
// first lender's.
type left struct {
	*stager
	lender blockdev.Lender
}

// ReleaseLease implements blockdev.Lender.
func (s *left) ReleaseLease(l *blockdev.Lease) {
	s.lender.ReleaseLease(l)
	s.d.stage.open.Add(-1)
}
