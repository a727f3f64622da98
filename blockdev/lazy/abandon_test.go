package lazy

import (
	"errors"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
)

// flusher counts how it is flushed and closed.
type flusher struct {
	*mem.Device
	flushes, closings, given int
}

func (f *flusher) Flush() error                  { f.flushes++; return f.Device.Flush() }
func (f *flusher) FlushRange(off, n int64) error { f.flushes++; return f.Device.FlushRange(off, n) }
func (f *flusher) Close() error                  { f.closings++; return f.Device.Close() }
func (f *flusher) Abandon()                      { f.given++ }
func (f *flusher) is(flushes, closings, given int) bool {
	return f.flushes == flushes && f.closings == closings && f.given == given
}

// A store that another node has taken over is not flushed, however it is closed; the next one is.
func TestAbandon(t *testing.T) {
	d := detached(t, 1<<20)
	for _, abandons := range []bool{true, false} {
		f := &flusher{Device: store(t, 1<<20, nil)}
		if err := d.Attach(f); err != nil {
			t.Fatal(err)
		}
		if abandons {
			d.Abandon()
		}
		err, ranged := d.Flush(), d.FlushRange(0, 512)
		if errors.Is(err, blockdev.ErrInactive) != abandons || errors.Is(ranged, blockdev.ErrInactive) != abandons {
			t.Errorf("abandoned %t: %v, %v", abandons, err, ranged)
		}
		dev, err := d.Detach(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := dev.Flush(); errors.Is(err, blockdev.ErrInactive) != abandons {
			t.Errorf("abandoned %t, taken away: %v", abandons, err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		if abandons && !f.is(0, 1, 1) || !abandons && !f.is(3, 1, 0) {
			t.Errorf("abandoned %t: %+v", abandons, f)
		}
	}
	f := &flusher{Device: store(t, 1<<20, nil)}
	if err := d.Attach(f); err != nil {
		t.Fatal(err)
	}
	d.Abandon()
	if err := d.Close(); err != nil || !f.is(0, 1, 1) {
		t.Errorf("closed with its device: %v, %+v", err, f)
	}
}
