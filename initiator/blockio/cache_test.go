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
	e.Wrote()
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
		a.Wrote()
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
		a.Wrote()
		a, lost := a.Look(two)
		if !lost {
			t.Fatal("not lost")
		}
		a.Wrote() // after the restart
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
		a.Wrote()
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
		a.Wrote()
		a, lost := a.Look(one)
		if lost || !a.Lost() {
			t.Error("what was written is not in the account of the epoch that the target tells now")
		}
	})
	t.Run("epochs that are over are forgotten", func(t *testing.T) {
		var c Cache
		e := c.Enter(one)
		for i := range byte(100) {
			e.Wrote()
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
