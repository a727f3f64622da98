package volume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTrace: a command that is followed tells when it came by each step and what it waited
// for; one that is fast enough is not told of.
func TestTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := serve(t, new(Registry), Config{Device: newDevice(t, "v")}, "v")
		tr, err := b.v.Trace(5 * time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		me := new(Client)
		answer := func(r *req) {
			_, waits := r.v.Leave(&r.op)
			if !r.op.Traced() {
				t.Fatal("the command is not followed")
			}
			r.op.Tell("good")
			waits.Done()
			time.Sleep(time.Millisecond) // virtual
			r.op.Release()
		}
		// An older one that is to go first, and an Ordered one behind it.
		first, runs := b.start(nil, me, Simple, 0, 8, HoldWrite)
		if !runs {
			t.Fatal("a command alone does not run")
		}
		second, runs := b.start(nil, me, Ordered, 0, 8, HoldWrite)
		if runs {
			t.Fatal("an Ordered command runs beside an older one")
		}
		entered := make(chan struct{})
		second.more = func(*req) { close(entered) }
		time.Sleep(3 * time.Millisecond)
		answer(first) // 3 ms: too fast
		<-entered
		second.op.Stamp(Leased)
		time.Sleep(10 * time.Millisecond)
		second.op.Stamp(Leased) // the first one counts
		second.op.Stamp(Placed)
		time.Sleep(20 * time.Millisecond)
		second.op.Stamp(Placed)
		second.op.Stamp(Committed)
		answer(second)
		c, err := tr.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const ms = time.Millisecond
		if c.Leased != 4*ms || c.Placed != c.Leased+30*ms || c.Committed != c.Placed || c.Answered != c.Placed || c.Released != c.Answered+ms {
			t.Errorf("the steps are %v %v %v %v %v", c.Leased, c.Placed, c.Committed, c.Answered, c.Released)
		}
		if c.Command != "request" || c.Status != "good" || c.Waited != (TraceWaits{Order: 3 * ms}) || c.LeftOut != 0 {
			t.Errorf("%+v", c)
		}
		if tr.Waiting() {
			t.Error("the fast command is told of")
		}
		if _, err := b.v.Trace(0); !errors.Is(err, errTraced) {
			t.Errorf("a second trace of the volume: %v", err)
		}
		tr.Stop()
		third, _ := b.start(nil, me, Simple, 0, 8, HoldRead)
		if third.op.Traced() {
			t.Error("a command is followed when nobody traces")
		}
		third.end()
		if _, err := b.v.Trace(0); err != nil {
			t.Errorf("a trace after the first one: %v", err)
		}
	})
}

// TestTraceWaits: each wait is booked as what it was.
func TestTraceWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := serve(t, new(Registry), Config{Device: newDevice(t, "v"), QoS: QoS{IOPS: 100, BurstIOs: 1}}, "v")
		tr, err := b.v.Trace(0)
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Stop()
		me := new(Client)
		for range 3 { // the second one finds the bucket empty, the third one waits for its 10 ms
			r, runs := b.start(nil, me, Simple, 0, 8, HoldRead)
			if !runs {
				t.Fatal("a command alone does not run")
			}
			entered := make(chan struct{})
			r.more = func(*req) { close(entered) }
			if b.v.Throttle(&r.op) {
				<-entered
			}
			_, waits := b.v.Leave(&r.op)
			r.op.Tell("good")
			waits.Done()
			r.op.Release()
		}
		// One that waits for blocks until it gives up.
		holder, _ := b.start(nil, me, Simple, 0, 8, HoldWrite)
		late, _ := b.start(nil, me, Simple, 0, 8, HoldStaged)
		b.v.Exclusively(&late.op)
		if why := <-late.steps; why != TimeOut {
			t.Fatalf("it goes on with %v", why)
		}
		late.op.Tell("busy")
		late.op.Release()
		holder.end()
		var got []TraceWaits
		for range 4 {
			c, err := tr.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, c.Waited)
		}
		if got[0] != (TraceWaits{}) {
			t.Errorf("a command that has waited for nothing: %+v", got[0])
		}
		if q := got[2]; q.QoS < 9*time.Millisecond || q.QoS > 12*time.Millisecond || q.Order+q.Range != 0 {
			t.Errorf("a command that has waited for the rate limit: %+v", q)
		}
		if got[3].Range != RetryAfter {
			t.Errorf("a command that has waited for its blocks: %+v", got[3])
		}
	})
}

// TestTraceLeftOut: commands that find no record are counted, and wait for nobody.
func TestTraceLeftOut(t *testing.T) {
	b := serve(t, new(Registry), Config{Device: newDevice(t, "v")}, "v")
	tr, err := b.v.Trace(0)
	if err != nil {
		t.Fatal(err)
	}
	me := new(Client)
	one := func() {
		r, _ := b.start(nil, me, Simple, 0, 8, HoldRead)
		_, waits := b.v.Leave(&r.op)
		if r.op.Traced() {
			r.op.Tell("good")
		}
		waits.Done()
		r.op.Release()
	}
	for range traceRecords + 5 {
		one()
	}
	c, err := tr.Next(t.Context())
	if err != nil || c.LeftOut != 0 {
		t.Fatalf("the first one: %v, %d left out", err, c.LeftOut)
	}
	one() // in the record that is free again
	for range traceRecords {
		if c, err = tr.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if c.LeftOut != 5 || tr.Waiting() {
		t.Errorf("%d left out, of 5; more waits: %v", c.LeftOut, tr.Waiting())
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tr.Next(over); !errors.Is(err, context.Canceled) {
		t.Errorf("Next without a command: %v", err)
	}
	b.v.endTrace()
	if _, err := tr.Next(t.Context()); !errors.Is(err, ErrVolumeGone) {
		t.Errorf("Next of a volume that is gone: %v", err)
	}
	tr.Stop()
}

// BenchmarkWayOfACommand is what the task set costs a command, with and without somebody who
// traces.
func BenchmarkWayOfACommand(b *testing.B) {
	for _, traced := range []bool{false, true} {
		name := "alone"
		if traced {
			name = "traced"
		}
		b.Run(name, func(b *testing.B) {
			v := serve(b, new(Registry), Config{Device: newDevice(b, "v")}, "v")
			if traced {
				tr, err := v.v.Trace(time.Hour) // gives its records back
				if err != nil {
					b.Fatal(err)
				}
				defer tr.Stop()
			}
			me := new(Client)
			r := &req{steps: make(chan Cause, 4)}
			b.ReportAllocs()
			for b.Loop() {
				v.start(r, me, Simple, 0, 8, HoldRead)
				r.op.Stamp(Leased)
				r.op.Stamp(Placed)
				_, waits := v.v.Leave(&r.op)
				if r.op.Traced() {
					r.op.Tell("good")
				}
				waits.Done()
				r.op.Release()
			}
		})
	}
}
