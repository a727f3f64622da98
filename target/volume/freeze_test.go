package volume

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestFreeze: what has begun ends, what comes waits, and goes on when the volume is thawed.
func TestFreeze(t *testing.T) {
	reg := new(Registry)
	b := serve(t, reg, Config{Device: newDevice(t, "a")}, "a")
	c := &Client{ID: Registrant{Initiator: "i", Target: "t"}}
	running, ok := b.start(nil, c, Simple, 0, 8, HoldWrite)
	if !ok {
		t.Fatal("does not run")
	}
	frozen := make(chan error)
	go func() { frozen <- reg.Freeze(t.Context()) }()
	var late []*req
	for { // until the freeze has begun
		r, now := b.start(nil, c, HeadOfQueue, 16, 24, HoldNone)
		if !now {
			late = append(late, r)
			break
		}
		r.end()
	}
	for _, o := range []Order{Simple, Ordered} {
		r, now := b.start(nil, c, o, 32, 40, HoldNone)
		if now {
			t.Fatal("a command has begun on a frozen volume")
		}
		late = append(late, r)
	}
	select {
	case err := <-frozen:
		t.Fatal("frozen while a command runs", err)
	default:
	}
	running.end()
	if err := <-frozen; err != nil {
		t.Fatal(err)
	}
	for _, r := range late {
		select {
		case <-r.steps:
			t.Fatal("a command has run on a frozen volume")
		default:
		}
	}
	reg.Thaw()
	for i, r := range late {
		if why := <-r.steps; why != Proceed {
			t.Fatalf("command %d: %v", i, why)
		}
	}
}

// TestFreezeInVain: a command that does not end keeps the volume from being frozen, and
// nothing has changed then.
func TestFreezeInVain(t *testing.T) {
	reg := new(Registry)
	b := serve(t, reg, Config{Device: newDevice(t, "a")}, "LUN 0 of a")
	c := &Client{}
	r, _ := b.start(nil, c, Simple, 0, 8, HoldWrite)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := reg.Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "LUN 0 of a") {
		t.Fatal(err)
	}
	other, now := b.start(nil, c, Simple, 16, 24, HoldWrite)
	if !now {
		t.Fatal("still frozen")
	}
	other.end()
	r.end()
}

// TestCarry: the next process's volume has the epoch, the registrations and the gates.
func TestCarry(t *testing.T) {
	dev := newDevice(t, "a")
	old := new(Registry)
	b := serve(t, old, Config{Device: dev}, "a")
	c := &Client{ID: Registrant{Initiator: "i", Target: "t", Port: 3}}
	if err := b.v.Register(c, &Register{NewKey: 7}); err != nil {
		t.Fatal(err)
	}
	if err := b.v.Reserve(c, 7, ExclusiveAccess); err != nil {
		t.Fatal(err)
	}
	b.v.SetGate(WriteProtected|NoMedium, true) // an initiator has ejected it
	if err := old.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	carried, err := Carry(b.v)
	if err != nil {
		t.Fatal(err)
	}
	next := new(Registry)
	if err := next.Expect(dev.Info().ID, carried); err != nil {
		t.Fatal(err)
	}
	n := serve(t, next, Config{Device: dev}, "a")
	was, is := b.v.Reservations(), n.v.Reservations()
	if reg, ok := is.Find(c.ID); !ok || reg.Key != 7 || !is.Holds(c.ID) || is.Generation != was.Generation || is.Persist {
		t.Fatalf("%+v has become %+v", was, is)
	}
	if b.v.Epoch() != n.v.Epoch() || n.v.Gates() != WriteProtected|NoMedium || n.v.WriteCache() != b.v.WriteCache() {
		t.Fatal("epoch or gates differ")
	}
	old.Thaw()
	carried.Reservations = []byte("{")
	if err := next.Expect("x", carried); err == nil {
		t.Fatal("reservations that are none")
	}
}

// TestAwaitCopies: copies are waited for, as long as there is time.
func TestAwaitCopies(t *testing.T) {
	reg := new(Registry)
	b := serve(t, reg, Config{Device: newDevice(t, "a")}, "LUN 0 of a")
	r, now := b.start(nil, &Client{}, Simple, 0, 8, HoldNone)
	if !now {
		t.Fatal("does not run")
	}
	c := b.v.NewCopy(&r.op)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if reg.AwaitCopies(ctx); ctx.Err() == nil {
		t.Fatal("a copy runs, and was not waited for")
	}
	if err := reg.Occupied(); err == nil || !strings.Contains(err.Error(), "LUN 0 of a") {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() { reg.AwaitCopies(t.Context()); close(over) }()
	c.End()
	r.end()
	<-over
	if err := reg.Occupied(); err != nil {
		t.Fatal(err)
	}
}
