package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// fakeLUN keeps a volume in memory. It completes requests on its own goroutine,
// or inside Submit when inline is set.
type fakeLUN struct {
	info   blockdev.Info
	cache  blockio.Cache
	inline bool
	delay  time.Duration
	names  []string
	mu     sync.Mutex
	data   []byte
	queue  chan *blockio.Request
	closed atomic.Int32
	flight atomic.Int32
	peak   atomic.Int32
	counts [8]atomic.Int64
	// hook, when set, sees a request before it is carried out; an error ends
	// the request, and handled=true leaves the data alone.
	hook func(*blockio.Request) (handled bool, err error)
}

func newFake(t testing.TB, size int64) *fakeLUN {
	f := &fakeLUN{
		info:  blockdev.Info{Size: size, BlockSize: 512, Discard: true},
		data:  make([]byte, size),
		queue: make(chan *blockio.Request, 1<<16),
	}
	go func() {
		for r := range f.queue {
			if f.delay > 0 {
				time.Sleep(f.delay) // a LUN that takes its time
			}
			f.complete(r)
		}
	}()
	t.Cleanup(func() { close(f.queue) })
	return f
}

func (f *fakeLUN) NewFlusher() *blockio.Flusher {
	return f.cache.NewFlusher()
}

func (f *fakeLUN) Info() blockdev.Info  { return f.info }
func (f *fakeLUN) Names() []string      { return f.names }
func (f *fakeLUN) Stats() blockio.Stats { return blockio.Stats{Commands: 7, PayloadCopied: 3} }
func (f *fakeLUN) Close() error         { f.closed.Add(1); return nil }

func (f *fakeLUN) Submit(r *blockio.Request) {
	n := f.flight.Add(1)
	for p := f.peak.Load(); n > p && !f.peak.CompareAndSwap(p, n); p = f.peak.Load() {
	}
	if f.inline {
		f.complete(r)
		return
	}
	f.queue <- r
}

func (f *fakeLUN) complete(r *blockio.Request) {
	f.counts[r.Op].Add(1)
	handled := false
	if f.hook != nil {
		handled, r.Err = f.hook(r)
	}
	if r.Err == nil && !handled {
		f.mu.Lock()
		switch r.Op {
		case blockio.OpRead:
			copy(r.Buf, f.data[r.Off:])
		case blockio.OpWrite:
			copy(f.data[r.Off:], r.Buf)
		case blockio.OpDiscard:
			clear(f.data[r.Off : r.Off+r.Len])
		}
		f.mu.Unlock()
	}
	f.flight.Add(-1)
	r.Done(r)
}

func (f *fakeLUN) open(context.Context, string, OpenOptions) (LUN, error) { return f, nil }

// runText runs a job file's text on f.
func runText(t testing.TB, f *fakeLUN, text string) (*Report, error) {
	t.Helper()
	return Run(t.Context(), parseText(t, text), Config{Open: f.open, URL: "fake://"})
}

// mustRun is runText for runs that must start and succeed.
func mustRun(t testing.TB, f *fakeLUN, text string) *Report {
	t.Helper()
	r, err := runText(t, f, text)
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() {
		t.Fatalf("run failed: %v", r.Err())
	}
	return r
}
