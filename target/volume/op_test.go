package volume

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/fsm"
)

// TestStates: the drawing above State, as a table of all pairs.
func TestStates(t *testing.T) {
	legal := map[State][]State{
		Idle:      {Dormant, Running, Ended},
		Dormant:   {Running},
		Queued:    {Running},
		Running:   {Queued, Throttled, Blocked, Staging, Ended},
		Throttled: {Queued, Running},
		Blocked:   {Queued, Running},
		Ended:     {Idle},
		Staging:   {Queued, Running},
	}
	for from := Idle; from <= Staging; from++ {
		for to := Idle; to <= Staging; to++ {
			want := false
			for _, s := range legal[from] {
				want = want || s == to
			}
			if nextStates.Has(from, to) != want {
				t.Errorf("%v to %v: %v, want %v", from, to, !want, want)
			}
		}
	}
	if got := State(9).String(); got != "State(9)" {
		t.Error(got)
	}
}

// TestIllegalTransition: outside of tests the op stays where it is, and Config.Fault is
// told.
func TestIllegalTransition(t *testing.T) {
	panics := fsm.OnIllegal
	defer func() { fsm.OnIllegal = panics }()
	fsm.OnIllegal = func(error) {}
	var told error
	o := Op{set: &Tasks{fault: func(err error) { told = err }}, state: Queued}
	if o.to(Ended); o.state != Queued {
		t.Errorf("the op is %v", o.state)
	}
	if told == nil || !strings.Contains(told.Error(), "from queued to ended") {
		t.Errorf("told %v", told)
	}
	fsm.OnIllegal = panics
	defer func() {
		if recover() == nil {
			t.Error("tests do not notice it")
		}
	}()
	o.to(Ended)
}

// TestClaims: copies and exclusive commands take turns in the order in which they
// were announced, and a piece fails when the volume is being rewritten.
func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := serve(t, new(Registry), Config{Device: newDevice(t, "a")}, "a")
		v, me := b.v, new(Client)
		by := &Copy{client: me, bufs: &v.bufs}
		by.begin()
		exclusive := func(lo, hi uint64) *req {
			r, _ := b.start(nil, me, Simple, lo, hi, HoldStaged)
			v.Exclusively(&r.op)
			return r
		}
		first := v.claim(by, HoldWrite, 0, 8)
		// Copies do not mind each other, nor commands that are not exclusive.
		second := v.claim(by, HoldWrite, 1, 3)
		if r, now := b.start(nil, me, Simple, 0, 8, HoldWrite); !now {
			t.Error("a write waits for a copy")
		} else {
			r.end()
		}
		caw := exclusive(2, 3)
		synctest.Wait()
		if why := <-exclusive(8, 9).steps; why != Proceed {
			t.Errorf("blocks that nobody has: %v", why)
		}
		third := make(chan *claim, 1)
		go func() { third <- v.claim(by, HoldRead, 2, 3) }()
		synctest.Wait()
		first.drop()
		synctest.Wait()
		if caw.over() {
			t.Error("an exclusive command ran over blocks that a copy had claimed")
		}
		if len(third) > 0 {
			t.Error("a later claim overtook an exclusive command")
		}
		second.drop()
		if why := <-caw.steps; why != Proceed {
			t.Errorf("when they were free: %v", why)
		}
		(<-third).drop()

		// A claim waits for the exclusive commands before it, not for those behind it, which wait for it.
		held := &req{steps: make(chan Cause, 1), more: func(*req) {}}
		b.start(held, me, Simple, 0, 8, HoldStaged)
		behind, _ := b.start(nil, me, Simple, 0, 8, HoldStaged)
		v.Exclusively(&held.op)
		fourth := make(chan *claim, 1)
		go func() { fourth <- v.claim(by, HoldWrite, 0, 8) }()
		synctest.Wait()
		v.Exclusively(&behind.op)
		synctest.Wait()
		if len(fourth) > 0 || behind.over() {
			t.Error("blocks that an exclusive command has were given to another")
		}
		held.end()
		synctest.Wait()
		if len(fourth) == 0 || behind.over() {
			t.Errorf("of a claim and an exclusive command behind it, the first has the blocks: %v, the second has ended: %v", len(fourth) > 0, behind.over())
		}
		(<-fourth).drop()
		if why := <-behind.steps; why != Proceed {
			t.Errorf("behind a claim: %v", why)
		}

		// Longer than an exclusive command waits.
		c := v.claim(by, HoldRead, 0, 1)
		if why := <-exclusive(0, 1).steps; why != TimeOut {
			t.Errorf("when they were not: %v", why)
		}
		c.drop()
		v.SetGate(Sanitizing, true)
		if err := by.Zero(v, 0, 512); !errors.Is(err, ErrNotReady) {
			t.Errorf("a copy to a volume that is being sanitized: %v", err)
		}
		v.SetGate(Sanitizing, false)
		if len(v.claims) != 0 || len(v.exclusives) != 0 {
			t.Errorf("%d claims and %d exclusives are left", len(v.claims), len(v.exclusives))
		}
		b.close()
	})
}

// TestOrderedBehindDormant: an Ordered command waits for those that came before it and have not begun, even where
// none runs: a copy that goes on behind its status may have their blocks.
func TestOrderedBehindDormant(t *testing.T) {
	b := serve(t, new(Registry), Config{Device: newDevice(t, "a")}, "a")
	v, me := b.v, new(Client)
	by := &Copy{client: me, bufs: &v.bufs}
	by.begin()
	held := v.claim(by, HoldWrite, 0, 8)
	by.stop() // and it may still be writing
	var wrote, late atomic.Bool
	note := func(f func()) *req {
		return &req{steps: make(chan Cause, 1), more: func(r *req) {
			f()
			r.end()
			r.steps <- Proceed
		}}
	}
	w, now := b.start(note(func() { wrote.Store(true) }), me, Simple, 0, 8, HoldWrite)
	if now {
		t.Error("a write overtakes that of a copy")
	}
	o, now := b.start(note(func() { late.Store(wrote.Load()) }), me, Ordered, 16, 24, HoldWrite)
	if now {
		t.Fatal("an ordered command overtakes a dormant one")
	}
	held.drop()
	<-w.steps
	<-o.steps
	if !late.Load() {
		t.Error("it began before the one that came first had ended")
	}
	b.close()
}

// TestTimerOfAnotherCommand: the timer that bounds how long an exclusive command waits
// ends that command only. It may have begun to fire when the command is granted its
// blocks or aborted, and come to its volume's lock when the slot has another command.
func TestTimerOfAnotherCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg, me := new(Registry), new(Client)
		var at [2]*bench
		for i := range at {
			at[i] = serve(t, reg, Config{Device: newDevice(t, fmt.Sprint(i))}, fmt.Sprint(i))
		}
		blocked := func(i int, r *req) (w, c *req) {
			w, _ = at[i].start(nil, me, Simple, 0, 8, HoldWrite)
			c, _ = at[i].start(r, me, Simple, 0, 8, HoldStaged)
			at[i].v.Exclusively(&c.op)
			synctest.Wait()
			return w, c
		}
		w0, c := blocked(0, nil)
		late := c.op.hold.order
		at[0].v.AbortWhere(func(o *Op) AbortReason {
			if o == &c.op {
				return AbortedByOwner
			}
			return NotAborted
		}, nil)
		if why := <-c.steps; why != Abort {
			t.Fatalf("aborted: %v", why)
		}
		c.op.Release()
		for _, i := range []int{1, 0} {
			w := w0
			if i == 1 {
				w, c = blocked(1, c)
			} else {
				at[0].start(c, me, Simple, 0, 8, HoldStaged)
				at[0].v.Exclusively(&c.op)
			}
			at[0].v.expire(late)
			synctest.Wait()
			if c.over() {
				t.Fatalf("the timer of an earlier command has ended one of volume %d", i)
			}
			w.end()
			if why := <-c.steps; why != Proceed {
				t.Errorf("volume %d: %v", i, why)
			}
			c.op.Release()
		}
		time.Sleep(2 * RetryAfter)
		for _, b := range at {
			b.close()
		}
	})
}
