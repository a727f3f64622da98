package thin

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/internal/fsm"
)

func init() { fsm.OnIllegal = func(err error) { panic(err) } }

// TestPoolStates: a pool goes where its drawing says, keeps the first cause of its
// failure, and one that would go elsewhere takes no changes any more.
func TestPoolStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, meta, data := hookPool(t, 1, func(c *Config) { c.ErrorWhenFull, c.FullWait = false, time.Minute })
		is := func(want poolState) {
			t.Helper()
			p.mu.RLock()
			defer p.mu.RUnlock()
			if p.cond.state != want || (p.cond.failed != nil) != (want == poolFailed) {
				t.Errorf("the pool is %v (%v), not %v", p.cond.state, p.cond.failed, want)
			}
		}
		is(poolWorking)
		writeTo(t, d, 0, 1)
		is(poolWorking) // nobody has asked for more
		for range 2 {
			if _, err := d.WriteAt(make([]byte, 512), chunk); !errors.Is(err, blockdev.ErrNoSpace) {
				t.Fatal(err)
			}
			is(poolFull)
		}
		data.Grow(2 * chunk)
		must(t, p.Grow())
		is(poolWorking)
		writeTo(t, d, 1, 1)
		if _, err := d.WriteAt(make([]byte, 512), 2*chunk); !errors.Is(err, blockdev.ErrNoSpace) {
			t.Fatal(err)
		}
		is(poolFull)
		meta.flush = func() error { return errBroken }
		if err := d.Flush(); !errors.Is(err, errBroken) {
			t.Fatal(err)
		}
		is(poolFailed)
		if _, err := d.WriteAt(make([]byte, 512), 2*chunk); !errors.Is(err, blockdev.ErrPoisoned) {
			t.Errorf("a write that needs a block: %v", err)
		}
		first := p.Err()
		p.mu.Lock()
		p.cond.fail(errors.New("another"))
		p.mu.Unlock()
		if p.Err() != first {
			t.Errorf("the cause is %v", p.Err())
		}
		meta.flush = nil
		if err := p.Grow(); err != nil && !errors.Is(err, errBroken) {
			t.Error(err)
		}
		is(poolFailed)
	})
	told := fsm.OnIllegal
	t.Cleanup(func() { fsm.OnIllegal = told })
	n := 0
	fsm.OnIllegal = func(error) { n++ }
	p, d, _, _ := hookPool(t, 2, nil)
	p.mu.Lock()
	p.cond.enter(poolWorking)
	p.mu.Unlock()
	if _, err := d.WriteAt(make([]byte, 512), 0); n != 1 || err == nil || p.Err() == nil {
		t.Errorf("told %d times; a write: %v", n, err)
	}
}
