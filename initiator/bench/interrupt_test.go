package bench

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// lostLUN is a volume whose target is gone: requests wait until it is closed.
type lostLUN struct {
	*fakeLUN
	mu      sync.Mutex
	waiting []*blockio.Request
	ended   bool
	stats   blockio.Stats
}

func (l *lostLUN) Stats() blockio.Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// back has the target come back and answer.
func (l *lostLUN) back() {
	l.mu.Lock()
	l.stats.Logins++
	waiting := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	for _, r := range waiting {
		r.Done(r)
	}
}

func (l *lostLUN) Submit(r *blockio.Request) {
	l.mu.Lock()
	ended := l.ended
	if !ended {
		l.waiting = append(l.waiting, r)
	}
	l.mu.Unlock()
	if ended {
		r.Err = blockdev.ErrClosed
		r.Done(r)
	}
}

func (l *lostLUN) Close() error {
	l.mu.Lock()
	waiting, ended := l.waiting, l.ended
	l.waiting, l.ended = nil, true
	l.mu.Unlock()
	if ended {
		return blockdev.ErrClosed
	}
	for _, r := range waiting {
		r.Err = blockdev.ErrClosed
		r.Done(r)
	}
	return l.fakeLUN.Close()
}

// An interrupt ends a run also while the session waits for its target to come
// back, which may take minutes.
func TestInterruptWithoutTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lostLUN{fakeLUN: newFake(t, 1<<20)}
		open := func(context.Context, string, OpenOptions) (LUN, error) { return l, nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		rep, err := Run(ctx, parseText(t, "[j]\nrw=randwrite\nbs=4k\niodepth=8"), Config{Open: open, URL: "fake://"})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != time.Second+stopPatience {
			t.Errorf("it ended after %v", took)
		}
		if err := rep.Err(); !errors.Is(err, blockdev.ErrClosed) || rep.Clones[0].Errors != 8 {
			t.Errorf("%d errors: %v", rep.Clones[0].Errors, err)
		}
	})
}

// A run whose target is away ends soon after its time, with what it has done until then; one that comes
// back by then, or is slow, has its operations ended.
func TestTimeOverWithoutTarget(t *testing.T) {
	const job = "[j]\nrw=randwrite\nbs=4k\niodepth=8\ntime_based\nruntime=3\nverify=crc32c"
	for _, c := range []struct {
		name  string
		jobs  string
		stats blockio.Stats
		back  time.Duration // it does, after so long; 0: it does not
		took  time.Duration
		lost  bool
	}{
		{"it stays away", job, blockio.Stats{Logins: 1, Losses: 1}, 0, 3*time.Second + awayPatience, true},
		{"somebody waits for it", job + "\nsize=64k\n[k]\nrw=read\nsize=64k\nwait_for=j", blockio.Stats{Logins: 1, Losses: 1}, 0, 3*time.Second + awayPatience, true},
		{"it comes back", job, blockio.Stats{Logins: 1, Losses: 1}, 9 * time.Second, 9 * time.Second, false},
		{"it is slow", job, blockio.Stats{Logins: 2, Losses: 1}, time.Minute, time.Minute, false},
		{"no time was set", "[j]\nrw=randwrite\nbs=4k\nsize=4k", blockio.Stats{Logins: 1, Losses: 1}, time.Minute, time.Minute, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &lostLUN{fakeLUN: newFake(t, 1<<20), stats: c.stats}
				open := func(context.Context, string, OpenOptions) (LUN, error) { return l, nil }
				if c.back > 0 {
					time.AfterFunc(c.back, l.back)
				}
				began := time.Now()
				rep, err := Run(t.Context(), parseText(t, c.jobs+"\ndo_verify=0"), Config{Open: open, URL: "fake://"})
				if err != nil {
					t.Fatal(err)
				}
				// It is looked at now and then.
				if took := time.Since(began); took < c.took || took > c.took+2*sampleEvery {
					t.Errorf("it ended after %v, want %v", took, c.took)
				}
				if err := rep.Err(); errors.Is(err, errAway) != c.lost || (err != nil) != c.lost {
					t.Error(err)
				}
				if s := rep.Clones[0]; c.lost && (s.Errors != 8 || s.Elapsed != 3*time.Second) {
					t.Errorf("%d errors, %v", s.Errors, s.Elapsed)
				}
			})
		})
	}
}

// What is in flight when the interrupt comes may end.
func TestInterruptWaitsForWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, 1<<20)
		f.delay = 700 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		rep, err := Run(ctx, parseText(t, "[j]\nrw=read\nbs=4k"), Config{Open: f.open, URL: "fake://"})
		if err != nil || rep.Err() != nil {
			t.Fatal(err, rep.Err())
		}
		if n := rep.Clones[0].Dir[dirRead].IOs; n != 2 {
			t.Errorf("%d operations", n)
		}
	})
}

// A signal that comes when everything has been done has interrupted nothing; one
// that leaves later jobs out does not cost the report of those that ran.
func TestInterruptedIsTrue(t *testing.T) {
	for _, c := range []struct {
		name, text              string
		after                   time.Duration
		clones                  int
		interrupted, unverified bool
	}{
		{"behind the end", "[j]\nrw=write\nbs=4k\nsize=16k\nverify=crc32c", time.Hour, 1, false, false},
		{"in the last operation", "[j]\nrw=read\nbs=4k\nsize=16k\nnumber_ios=2", 1500 * time.Millisecond, 1, false, false},
		{"in the last operation of the range", "[j]\nrw=read\nbs=4k\nsize=8k", 1500 * time.Millisecond, 1, false, false},
		{"in the second pass", "[j]\nrw=write\nbs=4k\nsize=8k\nverify=crc32c\ntime_based\nruntime=60", 3500 * time.Millisecond, 1, true, true},
		{"between passes", "[j]\nrw=write\nbs=4k\nsize=8k\nverify=crc32c\ntime_based\nruntime=60", 1500 * time.Millisecond, 1, true, true},
		{"in the run", "[j]\nrw=read\nbs=4k", 1500 * time.Millisecond, 1, true, false},
		{"before verification", "[j]\nrw=write\nbs=4k\nsize=16k\nverify=crc32c", 1500 * time.Millisecond, 1, true, true},
		{"in the flush behind the run", "[j]\nrw=write\nbs=4k\nsize=4k\nend_fsync=1", 500 * time.Millisecond, 1, true, false},
		{"in the verification", "[j]\nrw=write\nbs=4k\nsize=16k\nverify=crc32c", 5500 * time.Millisecond, 1, true, true},
		{"no verification wanted", "[j]\nrw=write\nbs=4k\nsize=16k\nverify=crc32c\ndo_verify=0", 1500 * time.Millisecond, 1, true, false},
		{"before the second job", "[j]\nrw=read\nbs=4k\nsize=8k\n[k]\nstonewall\nrw=read\nbs=4k\nsize=8k", 1500 * time.Millisecond, 1, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, 1<<20)
				f.delay = time.Second
				ctx, cancel := context.WithTimeout(t.Context(), c.after)
				defer cancel()
				rep, err := Run(ctx, parseText(t, c.text), Config{Open: f.open, URL: "fake://"})
				if err != nil || rep.Err() != nil {
					t.Fatal(err, rep.Err())
				}
				if rep.Interrupted != c.interrupted || rep.Unverified != c.unverified || len(rep.Clones) != c.clones {
					t.Errorf("interrupted %v, unverified %v, %d clones", rep.Interrupted, rep.Unverified, len(rep.Clones))
				}
			})
		})
	}
}

// A flush that tells of lost writes is a failed operation.
func TestLostCacheIsAnError(t *testing.T) {
	f := newFake(t, 1<<20)
	f.hook = func(r *blockio.Request) (bool, error) {
		if r.Op == blockio.OpFlush {
			return true, blockio.ErrCacheLost
		}
		return false, nil
	}
	rep, err := runText(t, f, "[j]\nrw=write\nbs=4k\nsize=64k\nfsync=4")
	if err != nil {
		t.Fatal(err)
	}
	if err := rep.Err(); !errors.Is(err, blockio.ErrCacheLost) || rep.Clones[0].Errors != 1 {
		t.Errorf("%d errors: %v", rep.Clones[0].Errors, err)
	}
}
