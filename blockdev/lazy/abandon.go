package lazy

import (
	"fmt"

	"softiser/blockdev"
)

var errAbandoned = fmt.Errorf("another node has taken over; what had not been flushed here is given up: %w", blockdev.ErrInactive)

// Abandon says that the store behind the device is another node's by now: it is not flushed any more, nor by
// whoever closes it.
func (d *Device) Abandon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.leaving
	if s == nil {
		s = d.cur.Load()
	}
	if s != nil {
		s.abandoned.Store(true)
	}
}

// flush is use for what makes something durable.
func (d *Device) flush(f func(blockdev.Device) error) error {
	s := d.enter()
	if s == nil {
		return d.absent()
	}
	defer s.leave()
	if s.abandoned.Load() {
		return errAbandoned
	}
	return f(s.dev)
}

// end closes the store.
func (s *stay) end() error {
	if s.abandoned.Load() {
		return blockdev.Abandon(s.dev)
	}
	return s.dev.Close()
}

// abandoned is a store that is handed back after Abandon.
type abandoned struct{ blockdev.Device }

// Flush implements blockdev.Device.
func (a abandoned) Flush() error { return errAbandoned }

// Close implements blockdev.Device.
func (a abandoned) Close() error { return blockdev.Abandon(a.Device) }
