package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"softiser/internal/await"
)

// overwriting is a volume that is overwritten step by step.
type overwriting struct {
	*bench
	d       *rewritten
	reg     *Registry
	steps   chan struct{} // one for each step
	end     *Outcome
	waiting *req
}

const (
	pausedPasses = 3
	pausedPieces = 2
)

// overwrite begins one, for which a command may wait, and lets it do a number of steps.
func overwrite(t *testing.T, dir string, steps int, awaited bool) *overwriting {
	t.Helper()
	x := &overwriting{d: newRewritten(t, pausedPieces*StageBytes), reg: new(Registry), steps: make(chan struct{})}
	x.d.hold = x.steps
	x.bench = serve(t, x.reg, Config{Device: x.d, StateDir: dir}, "LUN 0 of a")
	var err error
	if x.end, err = x.v.Rewriter.Begin(Rewrite{Kind: Overwrite, Passes: pausedPasses, Pattern: []byte{0xA5}, Invert: true, Unrestricted: true}); err != nil {
		t.Fatal(err)
	}
	if awaited {
		var now bool
		if x.waiting, now = x.start(nil, &Client{}, Simple, 0, 0, HoldNone); !now || !x.v.Await(&x.waiting.op, x.end) {
			t.Fatal("the command does not wait")
		}
	}
	for range steps {
		x.steps <- struct{}{}
	}
	return x
}

// pause has it stand still where it is, or end if it is at its end.
func (x *overwriting) pause() {
	x.t.Helper()
	x.v.hold() // from here on, not from when the goroutine runs
	paused := make(chan error)
	go func() { paused <- x.reg.Pause(x.t.Context()) }()
	for {
		select {
		case x.steps <- struct{}{}:
		case err := <-paused:
			if err != nil {
				x.t.Fatal(err)
			}
			if err := x.reg.Freeze(x.t.Context()); err != nil {
				x.t.Fatal(err)
			}
			return
		}
	}
}

// done checks that every pass has written every piece once, in order, and that the volume
// knows it.
func (x *overwriting) done(v *Volume) {
	x.t.Helper()
	var got []string
	for _, w := range x.d.wrote {
		got = append(got, fmt.Sprintf("%x", w[:1]))
	}
	if want := []string{"a5", "a5", "5a", "5a", "a5", "a5"}; !slices.Equal(got, want) {
		x.t.Fatalf("written: %v; want %v", got, want)
	}
	o, s, _ := v.Rewriter.LastSanitize()
	if s != Sanitized || !o.Unrestricted || v.Gates() != 0 {
		x.t.Fatalf("%v, %+v, gates %x", s, o, v.Gates())
	}
}

const pausedSteps = pausedPasses * (pausedPieces + 1) // with the flushes

// TestPause: a sanitize stands still at any of its steps, tells how far it is meanwhile, and goes
// on in the same volume, or in that of the next process.
func TestPause(t *testing.T) {
	for cut := range pausedSteps {
		dirs := []string{""}
		if cut == 1 || cut == pausedSteps-1 { // syncs take their time
			dirs = append(dirs, t.TempDir())
		}
		for _, dir := range dirs {
			x := overwrite(t, dir, cut, false)
			x.pause()
			_, s, at := x.v.Rewriter.LastSanitize()
			wrote := len(x.d.wrote)
			if s == SanitizeRuns && int(at) != min(wrote*65536/(pausedPasses*pausedPieces), 65535) {
				t.Fatalf("cut at %d: progress %d after %d pieces", cut, at, wrote)
			}
			x.reg.Thaw()
			close(x.steps)
			if x.wait(x.end); x.end.Err() != nil {
				t.Fatal(x.end.Err())
			}
			x.done(x.v)
			x.close()

			x = overwrite(t, dir, cut, false)
			x.pause()
			_, s, at = x.v.Rewriter.LastSanitize()
			wrote = len(x.d.wrote)
			carried, err := Carry(x.v)
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(&carried)
			if err != nil {
				t.Fatal(err)
			}
			carried = Carried{}
			if err := json.Unmarshal(b, &carried); err != nil {
				t.Fatal(err)
			}
			next := new(Registry)
			if err := next.Expect(x.d.Info().ID, carried); err != nil {
				t.Fatal(err)
			}
			close(x.steps)
			n := serve(t, next, Config{Device: x.d, StateDir: dir}, "LUN 0 of a")
			if _, again, p := n.v.Rewriter.LastSanitize(); again != s || p != at || n.v.Gates() != x.v.Gates() {
				t.Fatalf("cut at %d: %v at %d has become %v at %d; gates %x", cut, s, at, again, p, n.v.Gates())
			}
			if s == SanitizeRuns {
				if await.True(t, "it rests", n.v.rests); len(x.d.wrote) != wrote {
					t.Fatal("it goes on by itself")
				}
				next.Thaw()
				n.wait(n.v.pause.current)
			}
			x.done(n.v)
			x.close() // what the old process had touches nothing
			n.close()
			x.done(n.v)
		}
	}
}

// TestPauseInVain: a step that does not end is named, and a rewrite that a command waits for; it
// goes on.
func TestPauseInVain(t *testing.T) {
	x := overwrite(t, "", 1, true)
	if err := x.reg.Pause(t.Context()); !errors.Is(err, errAwaited) || !strings.Contains(err.Error(), "LUN 0 of a") {
		t.Fatal(err)
	}
	close(x.steps)
	x.wait(x.end)
	if why := <-x.waiting.steps; why != Proceed {
		t.Fatal(why)
	}
	x.done(x.v)

	x = overwrite(t, "", 1, false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.reg.Pause(ctx); !errors.Is(err, errRewriting) || !strings.Contains(err.Error(), "LUN 0 of a") {
		t.Fatal(err)
	}
	close(x.steps)
	x.wait(x.end)
	x.done(x.v)
}

// TestPauseBeforeBegin: a rewrite that begins while they are held does nothing yet, and a failed
// one is carried as what it is.
func TestPauseBeforeBegin(t *testing.T) {
	d := newRewritten(t, StageBytes)
	reg := new(Registry)
	b := serve(t, reg, Config{Device: d}, "a")
	if err := reg.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.fail("unmap")
	end, err := b.v.Rewriter.Begin(Rewrite{Kind: Erase, Passes: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := reg.Freeze(t.Context()); err != nil || len(d.steps) > 0 {
		t.Fatal(err, d.steps)
	}
	reg.Thaw()
	b.wait(end)
	if err := errors.Join(reg.Pause(t.Context()), reg.Freeze(t.Context())); err != nil {
		t.Fatal(err)
	}
	carried, err := Carry(b.v)
	if err != nil {
		t.Fatal(err)
	}
	next := new(Registry)
	if err := next.Expect(d.Info().ID, carried); err != nil {
		t.Fatal(err)
	}
	n := serve(t, next, Config{Device: d}, "a")
	if n.v.Gates() != SanitizeFailed || n.v.Rewriter.MayExitFailure() {
		t.Fatalf("gates %x", n.v.Gates())
	}
	carried.Rewrites.Now.Passes = 99
	if next.Expect("x", carried) == nil {
		t.Fatal("a rewrite that is none")
	}
}

// TestPauseFormat: a format in the background goes on in the next process, where a crash would have left it
// failed, and has ended well for the process after that. One whose volume is opened late, when nothing is
// held any more, goes on by itself; so does one of which the offset is within a block.
func TestPauseFormat(t *testing.T) {
	for _, late := range []bool{false, true} {
		dir := t.TempDir()
		steps := make(chan struct{})
		d := newRewritten(t, 3*StageBytes)
		d.hold = steps
		reg := new(Registry)
		b := serve(t, reg, Config{Device: d, StateDir: dir}, "a")
		if _, err := b.v.Rewriter.Begin(Rewrite{Kind: Format, Passes: 1, Pattern: []byte{0x5A}}); err != nil {
			t.Fatal(err)
		}
		steps <- struct{}{}
		x := overwriting{bench: b, reg: reg, steps: steps}
		x.pause()
		wrote := len(d.wrote)
		carried, err := Carry(b.v)
		if err != nil || wrote == 0 || wrote == 3 || carried.Rewrites.Now.Offset != int64(wrote)*StageBytes {
			t.Fatalf("%+v, %v after %d pieces", carried.Rewrites.Now, err, wrote)
		}
		next := new(Registry)
		if late {
			carried.Rewrites.Now.Offset += 7
		}
		if err := next.Expect(d.Info().ID, carried); err != nil {
			t.Fatal(err)
		}
		close(steps)
		if late {
			next.Thaw()
		}
		n := serve(t, next, Config{Device: d, StateDir: dir}, "a")
		if !late {
			if await.True(t, "it rests", n.v.rests); n.v.Gates() != Formatting || len(d.wrote) != wrote {
				t.Fatalf("gates %x, %d written", n.v.Gates(), len(d.wrote))
			}
			next.Thaw()
		}
		n.wait(n.v.pause.current)
		if n.v.Gates() != 0 || len(d.wrote) != 3 {
			t.Fatalf("gates %x, %d written", n.v.Gates(), len(d.wrote))
		}
		b.close()
		n.close()
		if again := serve(t, new(Registry), Config{Device: d, StateDir: dir}, "a"); again.v.Gates() != 0 {
			t.Fatalf("gates %x after a restart", again.v.Gates())
		}
	}
}

// TestPauseUnstarted: a sanitize that a restart has interrupted and nobody has started is not carried as
// none.
func TestPauseUnstarted(t *testing.T) {
	reg := new(Registry)
	b := serve(t, reg, Config{Device: newDevice(t, "a")}, "a")
	b.v.SetGate(Sanitizing, true)
	if _, err := Carry(b.v); !errors.Is(err, errRewriting) {
		t.Fatal(err)
	}
	b.v.SetGate(Sanitizing, false)
}

// TestCarryVersion5: what a process wrote that knew nothing of rewrites is read, and what the state file
// tells of them stays.
func TestCarryVersion5(t *testing.T) {
	const was = `{"epoch":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"write_cache":true,"write_protected":true,"reservations":{"version":0,"unit":"","generation":3}}`
	dir, d := t.TempDir(), newRewritten(t, StageBytes)
	b := serve(t, new(Registry), Config{Device: d, StateDir: dir}, "a")
	d.fail("unmap")
	end, err := b.v.Rewriter.Begin(Rewrite{Kind: Erase, Passes: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.wait(end)
	b.close()
	var c Carried
	if err := json.Unmarshal([]byte(was), &c); err != nil {
		t.Fatal(err)
	}
	next := new(Registry)
	if err := next.Expect(d.Info().ID, c); err != nil {
		t.Fatal(err)
	}
	n := serve(t, next, Config{Device: d, StateDir: dir}, "a")
	if n.v.Gates() != SanitizeFailed|WriteProtected || n.v.Epoch() != c.Epoch || !n.v.WriteCache() {
		t.Fatalf("gates %x, epoch %x", n.v.Gates(), n.v.Epoch())
	}
}
