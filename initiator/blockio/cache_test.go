package blockio

import (
	"errors"
	"testing"
)

func TestCacheLossFailsOneFlushOfEachUser(t *testing.T) {
	var c Cache
	e := c.Enter([16]byte{1})
	f, g := c.NewFlusher(), c.NewFlusher()
	flush := func(e *Epoch, f *Flusher) error { b := e.Begin(f); return b.End(true) }
	e.Wrote(nil)
	before := e.Begin(f) // under way during the loss
	now, lost := e.Look([16]byte{2})
	if !lost || now == e {
		t.Fatal("a new epoch with something unflushed in the old one is a loss")
	}
	for i, err := range []error{before.End(true), flush(now, g)} {
		if !errors.Is(err, ErrCacheLost) {
			t.Errorf("flush %d after the loss: %v", i, err)
		}
	}
	for _, u := range []*Flusher{f, g, nil, c.NewFlusher()} {
		if err := flush(now, u); err != nil {
			t.Errorf("the second flush: %v", err)
		}
	}
}

func TestCacheOfSeveralPaths(t *testing.T) {
	one, two := [16]byte{1}, [16]byte{2}
	t.Run("a flush over one path covers the other's writes", func(t *testing.T) {
		var c Cache
		a, b := c.Enter(one), c.Enter(one)
		a.Wrote(nil)
		f := b.Begin(nil)
		if err := f.End(true); err != nil {
			t.Fatal(err)
		}
		if _, lost := a.Look(two); lost {
			t.Error("lost what had been flushed")
		}
	})
	t.Run("the paths find a restart one after the other", func(t *testing.T) {
		var c Cache
		a, b := c.Enter(one), c.Enter(one)
		a.Wrote(nil)
		a, lost := a.Look(two)
		if !lost {
			t.Fatal("not lost")
		}
		a.Wrote(nil) // after the restart
		if _, lost := b.Look(two); lost {
			t.Error("lost a second time")
		}
		if _, lost := a.Look([16]byte{3}); !lost {
			t.Error("the loss of the second life is not one")
		}
	})
	t.Run("a part that was flushed covers nothing", func(t *testing.T) {
		var c Cache
		a := c.Enter(one)
		a.Wrote(nil)
		f := a.Begin(nil)
		if err := f.End(false); err != nil {
			t.Fatal(err)
		}
		if !a.Lost() {
			t.Error("nothing was lost")
		}
	})
	t.Run("a target that begins to tell has lost nothing", func(t *testing.T) {
		var c Cache
		a := c.Enter([16]byte{})
		a.Wrote(nil)
		a, lost := a.Look(one)
		if lost || !a.Lost() {
			t.Error("what was written is not in the account of the epoch that the target tells now")
		}
	})
	t.Run("epochs that are over are forgotten", func(t *testing.T) {
		var c Cache
		e := c.Enter(one)
		for i := range byte(100) {
			e.Wrote(nil)
			e, _ = e.Look([16]byte{i, 7})
		}
		e.Leave()
		if len(c.epochs) != 0 {
			t.Errorf("%d epochs are kept", len(c.epochs))
		}
	})
}

func TestSetKeepsDriver(t *testing.T) {
	r := &Request{Op: OpWrite, Driver: "state", Err: ErrClosed}
	r.Set(Request{Op: OpRead, Off: 512})
	if r.Driver != "state" || r.Op != OpRead || r.Err != nil || r.Off != 512 {
		t.Errorf("%+v", r)
	}
}

// Who comes after somebody was told of a loss is told as well, if another user who may have lost
// something was not: it may be that one, over a second connection or once more.
func TestLossOfAnotherConnection(t *testing.T) {
	one, two := [16]byte{1}, [16]byte{2}
	flush := func(e *Epoch, f *Flusher) error { b := e.Begin(f); return b.End(true) }
	// A user has written, a cache was lost, and somebody else was told.
	for name, tt := range map[string]struct {
		before func(e *Epoch, f *Flusher) // the loss
		after  func(e *Epoch, f *Flusher)
		owed   bool // a flush of who comes then has to fail
		again  bool // and one of who comes later
	}{
		"it is still there": {owed: true, again: true},
		"it is still there, and has been told": {after: func(e *Epoch, f *Flusher) {
			if err := flush(e, f); !errors.Is(err, ErrCacheLost) {
				t.Errorf("the user's own flush: %v", err)
			}
		}},
		"it had gone before the loss":     {before: func(_ *Epoch, f *Flusher) { f.End() }, owed: true},
		"it has gone since":               {after: func(_ *Epoch, f *Flusher) { f.End() }, owed: true},
		"it has gone, and been told":      {after: func(e *Epoch, f *Flusher) { flush(e, f); f.End() }},
		"its writes were flushed":         {before: func(e *Epoch, f *Flusher) { flush(e, f); e.Wrote(nil) }},
		"its writes were flushed, gone":   {before: func(e *Epoch, f *Flusher) { flush(e, f); f.End(); e.Wrote(nil) }},
		"others flushed when it had gone": {before: func(e *Epoch, f *Flusher) { f.End(); flush(e, nil); e.Wrote(nil) }},
	} {
		for _, carried := range []bool{false, true} {
			if carried && name[:len("it is")] == "it is" {
				continue // who is still there is carried by his own account
			}
			c := new(Cache)
			e := c.Enter(one)
			f, other := c.NewFlusher(), c.NewFlusher()
			e.Wrote(f)
			if tt.before != nil {
				tt.before(e, f)
			}
			if carried {
				known := other.Told()
				c = ResumeCache(c.Carry())
				e, other = c.Enter(one), c.NewFlusher().Resume(known)
				if tt.before == nil {
					f = c.NewFlusher().Resume(f.Told())
				}
			}
			e, lost := e.Look(two)
			if err := flush(e, other); !lost || !errors.Is(err, ErrCacheLost) {
				t.Fatalf("%s: lost %v, the other's flush: %v", name, lost, err)
			}
			if tt.after != nil {
				tt.after(e, f)
			}
			if carried {
				c = ResumeCache(c.Carry())
				e = c.Enter(two)
			}
			for i, owed := range []bool{tt.owed, tt.again} {
				n := c.NewFlusher()
				if err := flush(e, n); errors.Is(err, ErrCacheLost) != owed {
					t.Errorf("%s (carried %v), user %d who comes later: %v", name, carried, i, err)
				}
				if err := flush(e, n); err != nil {
					t.Errorf("%s, its second flush: %v", name, err)
				}
				n.End()
			}
		}
	}
}

// Users who have ended are forgotten, and owe nothing where nothing was theirs.
func TestUsersEnd(t *testing.T) {
	var c Cache
	e := c.Enter([16]byte{1})
	reader := c.NewFlusher()
	e.Wrote(nil)
	e, _ = e.Look([16]byte{2})
	b := e.Begin(nil)
	if err := b.End(true); !errors.Is(err, ErrCacheLost) {
		t.Fatal(err)
	}
	reader.End()
	reader.End()
	(*Flusher)(nil).End()
	new(Flusher).End()
	n := c.NewFlusher()
	if b := e.Begin(n); b.End(true) != nil {
		t.Error("somebody who has come since is told of what no user has lost")
	}
	if n.End(); len(c.users) != 0 || c.missed.any {
		t.Errorf("%d users, %+v", len(c.users), c.missed)
	}
}

// A user who has not been told of a loss is spared no flush, though everybody else has been.
func TestSpares(t *testing.T) {
	var c Cache
	e := c.Enter([16]byte{1})
	told, untold := c.NewFlusher(), c.NewFlusher()
	spared := func(want ...bool) {
		t.Helper()
		for i, f := range []*Flusher{nil, told, untold} {
			if c.Spares(f) != want[i] {
				t.Errorf("user %d: %v", i, !want[i])
			}
		}
	}
	spared(true, true, true)
	e.Wrote(untold)
	spared(false, false, false)
	e.Lost()
	spared(false, false, false)
	for _, f := range []*Flusher{told, untold} {
		b := e.Begin(f)
		if err := b.End(true); !errors.Is(err, ErrCacheLost) {
			t.Error(err)
		}
		spared(true, true, f == untold)
	}
}
