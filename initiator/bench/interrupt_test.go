package bench

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/initiator"
)

// lostLUN is a volume whose target is gone: requests wait until it is closed.
type lostLUN struct {
	*fakeLUN
	mu      sync.Mutex
	waiting []*initiator.Request
	ended   bool
}

func (l *lostLUN) Submit(r *initiator.Request) {
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
	waiting := l.waiting
	l.waiting, l.ended = nil, true
	l.mu.Unlock()
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
