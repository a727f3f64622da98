package blockio

import (
	"errors"
	"testing"
)

// What an account says goes to another process: a flush that would not cover what was
// written before fails there, once for each user, and those who have been told are not told
// again.
func TestCarriedCache(t *testing.T) {
	a, b := [16]byte{1}, [16]byte{2}
	held := func(now [16]byte) (*Cache, *Epoch, bool) {
		c := new(Cache)
		e := c.Enter(a)
		e.Wrote(nil)
		e.Wrote(nil)
		n := ResumeCache(c.Carry())
		f := n.Enter(now)
		return n, f, n.Only(f)
	}
	if c, e, lost := held(a); lost || len(c.epochs) != 1 {
		t.Errorf("the same epoch: lost %v, %d epochs", lost, len(c.epochs))
	} else if f := e.Begin(nil); f.End(true) != nil || e.written.Load() != e.safe {
		t.Error("a flush of what the other process had written")
	}
	if c, e, lost := held(b); !lost || len(c.epochs) != 1 {
		t.Errorf("another epoch: lost %v, %d epochs", lost, len(c.epochs))
	} else {
		old := new(Flusher)
		f := e.Begin(old)
		if err := f.End(true); !errors.Is(err, ErrCacheLost) {
			t.Errorf("the first flush: %v", err)
		}
		f = e.Begin(new(Flusher).Resume(old.Told()))
		if err := f.End(true); err != nil {
			t.Errorf("the second flush, in yet another process: %v", err)
		}
	}
	// A target that has begun to tell has lost nothing by that.
	c := new(Cache)
	c.Enter([16]byte{}).Wrote(nil)
	n := ResumeCache(c.Carry())
	if e := n.Enter(b); n.Only(e) || e.written.Load() != 1 || len(n.epochs) != 1 {
		t.Errorf("%d, %d epochs", e.written.Load(), len(n.epochs))
	}
	if (*Flusher)(nil).Told() != 0 {
		t.Error("nobody has been told of something")
	}
}
