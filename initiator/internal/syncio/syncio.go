// Package syncio is the synchronous half of a remote volume: the calls that wait for the end of
// a request, which are most of blockdev.Device. What differs between wires (Extents, Close, …)
// is in the volume of each.
package syncio

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// Volume is what Calls need of the volume that embeds them.
type Volume interface {
	Submit(*blockio.Request)
	Info() blockdev.Info
	Limits() blockio.Limits
}

// Config is what else a wire says of its volume.
type Config struct {
	Pool   *blockdev.Pool // of leases
	Closed *atomic.Bool   // the volume's
	Short  error          // ends a read of which fewer bytes have come than were asked for
	// Abort ends a request before its time, and returns when it has received from ended, to
	// which the request's end is sent once.
	Abort func(r *blockio.Request, why error, ended <-chan struct{})
}

// Calls are the calls of one volume. They wait through reconnects if need be, and allocate nothing.
type Calls struct {
	vol     Volume
	cfg     Config
	waiters sync.Pool // *waiter
}

// New makes the calls of v.
func New(v Volume, cfg Config) *Calls {
	return &Calls{vol: v, cfg: cfg, waiters: sync.Pool{New: newWaiter}}
}

// waiter is what a call waits on, and the request that it makes.
type waiter struct {
	ended chan struct{}
	done  func(*blockio.Request)
	req   blockio.Request
}

func newWaiter() any {
	w := &waiter{ended: make(chan struct{}, 1)}
	w.done = func(*blockio.Request) { w.ended <- struct{}{} }
	return w
}

// Do runs r and waits for its end. When ctx ends first, r is aborted before Do returns. It
// sets r.Done.
func (c *Calls) Do(ctx context.Context, r *blockio.Request) error {
	w := c.waiters.Get().(*waiter)
	r.Done = w.done
	c.vol.Submit(r)
	if d := ctx.Done(); d == nil {
		<-w.ended
	} else {
		select {
		case <-w.ended:
		case <-d:
			c.cfg.Abort(r, context.Cause(ctx), w.ended)
		}
	}
	c.waiters.Put(w)
	return r.Err
}

// call runs one operation and waits for its end.
func (c *Calls) call(set blockio.Request) error {
	if c.cfg.Closed.Load() {
		return blockdev.ErrClosed
	}
	w := c.waiters.Get().(*waiter)
	w.req.Set(set)
	w.req.Done = w.done
	c.vol.Submit(&w.req)
	<-w.ended
	err := w.req.Err
	w.req.Set(blockio.Request{})
	c.waiters.Put(w)
	if errors.Is(err, blockio.ErrClosed) {
		err = blockdev.ErrClosed
	}
	return err
}

// ReadAt reads len(p) bytes at off.
func (c *Calls) ReadAt(p []byte, off int64) (int, error) {
	if err := c.call(blockio.Request{Op: blockio.OpRead, Off: off, Buf: p}); err != nil {
		if errors.Is(err, c.cfg.Short) {
			err = errors.Join(err, io.ErrUnexpectedEOF)
		}
		return 0, err
	}
	return len(p), nil
}

// WriteAt writes p at off.
func (c *Calls) WriteAt(p []byte, off int64) (int, error) {
	if err := c.call(blockio.Request{Op: blockio.OpWrite, Off: off, Buf: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush makes every completed write durable.
func (c *Calls) Flush() error { return c.call(blockio.Request{Op: blockio.OpFlush}) }

// FlushRange makes completed writes of one range durable.
func (c *Calls) FlushRange(off, n int64) error {
	i := c.vol.Info()
	if err := i.Check(off, n); err != nil || n == 0 {
		return err
	}
	return c.call(blockio.Request{Op: blockio.OpFlush, Off: off, Len: n})
}

// Discard deallocates a range.
func (c *Calls) Discard(off, n int64) error {
	return c.call(blockio.Request{Op: blockio.OpDiscard, Off: off, Len: n})
}

// WriteZeroes makes a range read as zeroes, by the wire's command for that where the other side
// has it.
func (c *Calls) WriteZeroes(off, n int64, mayUnmap bool) error {
	set := blockio.Request{Op: blockio.OpWriteZeroes, Off: off, Len: n, MayUnmap: mayUnmap}
	err := c.call(set)
	if errors.Is(err, blockdev.ErrNotSupported) && c.vol.Limits().MaxWriteSame == 0 {
		err = c.call(set) // the target turned out to have no such command: this call writes zeroes instead
	}
	return err
}

// LeaseRead fills l with pool memory that holds the range. Reading takes the
// network's time: NoWait fails with ErrWouldBlock.
func (c *Calls) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := c.lend(l, off, n, m); err != nil || n == 0 {
		return err
	}
	if err := c.call(blockio.Request{Op: blockio.OpRead, Off: off, Segs: l.Segs}); err != nil {
		l.Release()
		return err
	}
	return nil
}

// LeaseWrite fills l with pool memory; Commit writes it.
func (c *Calls) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if c.vol.Info().ReadOnly {
		return blockdev.ErrReadOnly
	}
	if err := c.lend(l, off, n, m); err != nil {
		return err
	}
	l.Write = true
	return nil
}

// lend takes staging memory for a range.
func (c *Calls) lend(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if c.cfg.Closed.Load() {
		return blockdev.ErrClosed
	}
	i := c.vol.Info()
	if err := i.Check(off, int64(n)); err != nil {
		return err
	}
	if m != blockdev.Wait {
		return blockdev.ErrWouldBlock
	}
	segs, err := c.cfg.Pool.Get(l.Segs[:0], n, m)
	if err != nil {
		return err
	}
	l.Segs, l.Off, l.Len, l.Write, l.Direct, l.Owner = segs, off, n, false, false, c
	return nil
}

// CommitLease writes a filled lease.
func (c *Calls) CommitLease(l *blockdev.Lease, fua bool) error {
	if l.Len == 0 {
		return nil
	}
	return c.call(blockio.Request{Op: blockio.OpWrite, Off: l.Off, Segs: l.Segs, FUA: fua})
}

// CommitMayBlock is true: a commit waits for the other side.
func (c *Calls) CommitMayBlock(*blockdev.Lease, bool) bool { return true }

// ReleaseLease gives the memory back.
func (c *Calls) ReleaseLease(l *blockdev.Lease) {
	c.cfg.Pool.Put(l.Segs)
	l.Segs = l.Segs[:0]
}
