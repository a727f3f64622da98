package silence

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/initiator/internal/pause"
)

const ms = time.Millisecond

// A ping comes before the probe.
func TestTimes(t *testing.T) {
	for in, ok := range map[Times]bool{{}: true, {Probe: 100 * ms}: true, {Probe: -1}: true, {Ping: 2 * time.Second}: false, {Ping: -1}: false, {Ping: time.Second, Probe: time.Minute}: true} {
		if d := in.WithDefaults(); (d.Check() == nil) != ok {
			t.Errorf("%+v: %v", d, d.Check())
		}
	}
}

// What is asked for when: heard and waiting at each look, 100 ms apart.
func TestLook(t *testing.T) {
	times := Times{}.WithDefaults()
	for name, c := range map[string]struct {
		talks func(at time.Duration) bool // bytes have come since the last look
		waits func(at time.Duration) bool
		ping  time.Duration // when first asked for; 0: never
		probe time.Duration
	}{
		"mute":           {func(at time.Duration) bool { return at == 0 }, func(time.Duration) bool { return true }, 500 * ms, time.Second},
		"answers pings":  {func(at time.Duration) bool { return at%(600*ms) == 0 }, func(time.Duration) bool { return true }, 500 * ms, 0},
		"not used":       {func(at time.Duration) bool { return at == 0 }, func(time.Duration) bool { return false }, 0, 0},
		"used later":     {func(at time.Duration) bool { return at == 0 }, func(at time.Duration) bool { return at >= 700*ms }, 1200 * ms, 1700 * ms},
		"used at times":  {func(at time.Duration) bool { return at == 0 }, func(at time.Duration) bool { return at%(400*ms) > 0 }, 0, 0},
		"late to answer": {func(at time.Duration) bool { return at == 0 || at == 900*ms }, func(time.Duration) bool { return true }, 500 * ms, 1900 * ms},
	} {
		var w Watch
		var heard uint64
		var ping, probe time.Duration
		for at := time.Duration(0); at < 3*time.Second; at += 100 * ms {
			if c.talks(at) {
				heard++
			}
			switch w.Look(times, at, heard, c.waits(at)) {
			case Ping:
				if ping == 0 {
					ping = at
				}
			case Probe:
				if probe == 0 {
					probe = at
				}
			}
		}
		if ping != c.ping || probe != c.probe {
			t.Errorf("%s: ping after %v, probe after %v", name, ping, probe)
		}
	}
	// Whoever was stopped pings first when it goes on.
	var w Watch
	w.Look(times, 0, 1, true)
	if a := w.Look(times, time.Hour, 1, true); a != Ping {
		t.Error(a)
	}
	if a := w.Look(times, time.Hour+100*ms, 1, true); a != Nothing {
		t.Error(a)
	}
	w = Watch{}
	for at := time.Duration(0); at < time.Hour; at += time.Second {
		if a := w.Look(Times{Probe: -1}.WithDefaults(), at, 1, true); a != Nothing {
			t.Fatalf("%v though it is off", a)
		}
	}
}

// A peer that is given up again and again is given more time, up to a limit.
func TestPatience(t *testing.T) {
	var p Patience
	want := []time.Duration{1, 2, 4, 8, 16, 32, 32, 32}
	for _, n := range want {
		if got := p.Of(Times{Probe: time.Second}).Probe; got != n*time.Second {
			t.Errorf("%v, want %v", got, n*time.Second)
		}
		p.GivenUp(Times{Probe: time.Second}, 2*time.Second)
	}
	p.GivenUp(Times{Probe: time.Second}, time.Minute)
	if got := p.Of(Times{Probe: time.Second}).Probe; got != time.Second {
		t.Error(got)
	}
}

// The connection is given up when a probe is answered while it is still mute, and only then.
// A probe that began before there was somebody to answer it is never answered: its SYN, or
// what was sent after it, went to the one who has gone.
func TestConfirm(t *testing.T) {
	for name, c := range map[string]struct {
		up      time.Duration // when probes that begin are answered
		refused bool          // those before are refused, the others wait
		talks   time.Duration // when the first connection is not mute any more
		ends    time.Duration // of ctx
		want    bool
		took    time.Duration
	}{
		"another has taken over":       {3 * time.Second, false, time.Hour, time.Hour, true, 3 * time.Second},
		"a moment after a probe began": {3010 * ms, false, time.Hour, time.Hour, true, 3500 * ms},
		"refused until then":           {3 * time.Second, true, time.Hour, time.Hour, true, 3 * time.Second},
		"nobody is there":              {time.Hour, false, 10 * time.Second, time.Hour, false, 10*time.Second - grace},
		"it was stopped":               {3 * time.Second, false, 3050 * ms, time.Hour, false, 3 * time.Second},
		"nobody waits":                 {time.Hour, false, time.Hour, 5 * time.Second, false, 5*time.Second - grace},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.ends)
				defer cancel()
				var under, most atomic.Int32
				got := Confirm(ctx, Times{}.WithDefaults(), func(ctx context.Context, dial time.Duration) bool {
					for n := under.Add(1); n > most.Load(); {
						most.Store(n)
					}
					defer under.Add(-1)
					if dial != 500*ms {
						t.Errorf("%v for a connection", dial)
					}
					if time.Since(begin) >= c.up {
						return true
					}
					if !c.refused {
						<-ctx.Done()
					}
					return false
				}, func() bool { return time.Since(begin) < c.talks })
				if took := time.Since(begin); got != c.want || took != c.took+grace {
					t.Errorf("%v after %v, want %v after %v", got, took, c.want, c.took+grace)
				}
				if under.Load() != 0 || most.Load() > 5 {
					t.Errorf("%d probes are still under way, at most %d were", under.Load(), most.Load())
				}
			})
		})
	}
}

// An attempt that is not answered goes on as long as others are not, either.
func TestAttempt(t *testing.T) {
	failed := errors.New("refused")
	for name, c := range map[string]struct {
		takes time.Duration // the attempt, unless it is given up
		up    time.Duration // when probes are answered
		never bool          // nobody is probed
		err   error
		want  error
		took  time.Duration
	}{
		"answered at once":          {10 * ms, 0, false, nil, nil, 10 * ms},
		"refused at once":           {10 * ms, 0, false, failed, failed, 10 * ms},
		"slow, as others are":       {5 * time.Second, time.Hour, false, nil, nil, 5 * time.Second},
		"stuck":                     {time.Minute, 0, false, nil, ErrMute, time.Second + grace},
		"stuck with one who is off": {time.Minute, 10 * time.Second, false, nil, ErrMute, 10*time.Second + grace},
		"stuck, and nobody probes":  {time.Minute, 0, true, failed, failed, time.Minute},
		"answered within the grace": {time.Second + grace/2, 0, false, nil, nil, time.Second + grace/2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				times := Times{}.WithDefaults()
				if c.never {
					times.Probe = -1
				}
				err := Attempt(t.Context(), times, func(ctx context.Context) error {
					if !pause.For(ctx, c.takes) {
						return ctx.Err()
					}
					return c.err
				}, func(ctx context.Context, _ time.Duration) bool {
					if time.Since(begin) < c.up {
						<-ctx.Done()
						return false
					}
					return true
				})
				if took := time.Since(begin); !errors.Is(err, c.want) || took != c.took {
					t.Errorf("%v after %v, want %v after %v", err, took, c.want, c.took)
				}
			})
		})
	}
}
