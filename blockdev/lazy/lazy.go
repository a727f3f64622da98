// Package lazy has the device of a volume whose backing store is not always open: that of
// a node which stands by while another node has it. Size and block size are told without
// the store, everything else waits for it.
//
//	          Attach                     Detach: nothing enters any more
//	detached ---------> attached ------------------------------------> leaving
//	   ^                                                                  |
//	   +------------------------------------------------------------------+
//	        the last operation has ended, the last lease has been released
//
// While there is no store, operations fail with blockdev.ErrInactive. An operation that
// has entered, and a lease until its release, keep the store from being handed back: what
// takes effect at all does so before the store is closed.
package lazy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
)

// Device is a blockdev.Device in front of a store that comes and goes.
type Device struct {
	info atomic.Pointer[blockdev.Info]
	cur  atomic.Pointer[stay] // nil: there is no store that operations may enter

	closed atomic.Bool // for good

	mu      sync.Mutex // guards what follows; serialises what attaches, detaches and closes
	leaving *stay      // detached, but not drained; nil: none
	stop    func()     // ends the notifications of the store in cur

	telling sync.Mutex // guards what follows, and info against what is older; taken after mu, and by stores that have locks of their own
	tells   *stay      // the store that says what info is; nil: none
	hooks   blockdev.ResizeHooks
}

// stay is the time of one store behind the device. It is the owner of the leases that the
// store lends meanwhile.
type stay struct {
	dev     blockdev.Device
	lender  blockdev.Lender
	users   atomic.Int64 // operations under way, and leases
	over    atomic.Bool  // detached
	drained chan struct{}
	once    sync.Once // of drained

	abandoned atomic.Bool // by Abandon
}

// New makes a device without a store. info is what it tells meanwhile; its ID stays what
// the device is known by, whichever path a store comes by.
func New(info blockdev.Info) (*Device, error) {
	if err := blockdev.CheckGeometry(info.Size, info.BlockSize, info.PhysBlockSize); err != nil {
		return nil, err
	}
	d := new(Device)
	d.info.Store(&info)
	return d, nil
}

var (
	errAttached = errors.New("blockdev: the device has a backing store already")
	errLender   = errors.New("blockdev: the backing store does not take leases back itself")
)

// Attach puts a store behind the device, which owns it until Detach hands it back. It must
// have the block size that the device tells, and not be smaller: who has been told a size
// may use it. After an error the store is still the caller's.
func (d *Device) Attach(dev blockdev.Device) error {
	lender, ok := dev.(blockdev.Lender)
	if !ok {
		return errLender
	}
	d.mu.Lock()
	if d.closed.Load() {
		d.mu.Unlock()
		return blockdev.ErrClosed
	}
	if d.leaving != nil || d.cur.Load() != nil {
		d.mu.Unlock()
		return errAttached
	}
	s := &stay{dev: dev, lender: lender, drained: make(chan struct{})}
	stop := dev.OnResize(func(blockdev.Info) { d.resized(s) })
	d.telling.Lock()
	was, now := *d.info.Load(), dev.Info() // what changes behind this is told
	if now.BlockSize != was.BlockSize || now.Size < was.Size {
		d.telling.Unlock()
		d.mu.Unlock()
		stop()
		return fmt.Errorf("the backing store has %d bytes in blocks of %d, but initiators have been told %d bytes in blocks of %d; correct size and block_size of the volume, or what is there",
			now.Size, now.BlockSize, was.Size, was.BlockSize)
	}
	now.ID = was.ID
	d.info.Store(&now)
	d.tells, d.stop = s, stop
	d.telling.Unlock()
	d.cur.Store(s)
	d.mu.Unlock()
	if was.CacheID = now.CacheID; was != now {
		d.hooks.Tell(d.Info)
	}
	return nil
}

// Detach takes the store away: nothing enters any more, and when what has entered is out
// the store is handed back, still open and not flushed. If ctx ends first, the error says
// how many operations and leases are left, and Detach may be called again to wait for
// them. Without a store it returns nil.
func (d *Device) Detach(ctx context.Context) (blockdev.Device, error) {
	s := d.leave()
	if s == nil {
		return nil, nil
	}
	select {
	case <-s.drained:
	default:
		select {
		case <-s.drained:
		case <-ctx.Done():
			return nil, fmt.Errorf("%d operations and leases still hold the backing store: %w", s.users.Load(), ctx.Err())
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leaving != s { // another call was faster
		return nil, nil
	}
	d.leaving = nil
	// What the device can do stays known. What its cache held is the next store's affair.
	d.telling.Lock()
	info := *d.info.Load()
	info.CacheID = ""
	d.info.Store(&info)
	d.telling.Unlock()
	if s.abandoned.Load() {
		return abandoned{s.dev}, nil
	}
	return s.dev, nil
}

// leave has nothing enter the store any more, and returns the stay that ends; nil: there
// is none.
func (d *Device) leave() *stay {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leaving != nil {
		return d.leaving
	}
	s := d.cur.Swap(nil)
	if s == nil {
		return nil
	}
	d.leaving = s
	d.silence()
	s.over.Store(true)
	if s.users.Load() == 0 {
		s.out()
	}
	return s
}

// absent is the error of an operation that finds no store.
func (d *Device) absent() error {
	if d.closed.Load() {
		return blockdev.ErrClosed
	}
	return blockdev.ErrInactive
}

// Attached reports whether operations find a store.
func (d *Device) Attached() bool { return d.cur.Load() != nil }

// enter returns the store's stay, which leave ends for the caller; nil: there is none.
func (d *Device) enter() *stay {
	for {
		s := d.cur.Load()
		if s == nil {
			return nil
		}
		s.users.Add(1)
		if d.cur.Load() == s {
			return s
		}
		s.leave()
	}
}

func (s *stay) leave() {
	if s.users.Add(-1) == 0 && s.over.Load() {
		s.out()
	}
}

func (s *stay) out() { s.once.Do(func() { close(s.drained) }) }

// silence has nothing of the store's size taken any more: a notification may be on its way. The
// caller holds d.mu.
func (d *Device) silence() {
	d.stop()
	d.telling.Lock()
	d.tells = nil
	d.telling.Unlock()
}

// resized takes the size of the store of s, which has told that there is a new one. The store may
// hold locks that its Close takes, so d.mu is not taken here.
func (d *Device) resized(s *stay) {
	d.telling.Lock()
	if d.tells != s {
		d.telling.Unlock()
		return
	}
	now := s.dev.Info()
	now.ID = d.info.Load().ID
	d.info.Store(&now)
	d.telling.Unlock()
	d.hooks.Tell(d.Info)
}
