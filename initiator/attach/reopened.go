package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/initiator/internal/pause"
	"softiser/initiator/multipath"
)

// reopened is a volume that another process had open, and that this one opens again under
// the same names. Until it is there requests wait; after Options.Patience they fail, and
// the volume is looked for all the same, as a session does whose target is away.
type reopened struct {
	opt   *Options
	nexus Nexus
	was   *handedVolume
	lost  chan<- error  // gets why the volume cannot be had at all
	gone  chan struct{} // closed when the other process has ended

	vol atomic.Pointer[LUN] // nil: it is not there yet

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // open's goroutines

	mu       sync.Mutex // guards the rest
	waiting  []*blockio.Request
	err      error         // why requests fail; nil: they wait
	settled  chan struct{} // closed when they do not wait any more
	watchers map[int]*watcher
	next     int
}

// watcher is who wants to be told of a new size.
type watcher struct {
	tell   func(blockdev.Info)
	cancel func() // at the volume; nil: it is not there yet
}

func newReopened(a *Attachment, was *handedVolume) *reopened {
	r := &reopened{
		opt: &a.opt, nexus: a.nexus, was: was, lost: a.lost, gone: make(chan struct{}), settled: make(chan struct{}), watchers: map[int]*watcher{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Pauses between attempts to open the volume.
const (
	firstReopen = 50 * time.Millisecond
	maxReopen   = time.Second
)

// open begins to look for the volume.
func (r *reopened) open() { r.wg.Go(r.run) }

// run makes attempts until one succeeds, another volume is there, or Close.
func (r *reopened) run() {
	carried := r.was.goesOn()
	if !carried {
		r.mayLogIn()
	}
	begun, said := time.Now(), ""
	for wait := firstReopen; r.ctx.Err() == nil; wait = min(2*wait, maxReopen) {
		err := r.attempt()
		if err == nil {
			return
		}
		if errors.Is(err, errOther) {
			r.fail(err)
			r.lost <- err
			return
		}
		if text := err.Error(); text != said {
			said = text
			r.opt.tellError(fmt.Errorf("the volume is not there yet: %w", err))
		}
		if p := r.opt.Patience; p > 0 && time.Since(begun) >= p {
			r.fail(fmt.Errorf("%w: %w", blockio.ErrSessionLost, err))
		}
		if carried { // it was lost
			carried = false
			r.mayLogIn()
		}
		pause.For(r.ctx, wait)
	}
}

// mayLogIn waits until a login ends no session of the other process any more, and Time2Wait.
func (r *reopened) mayLogIn() {
	select {
	case <-r.gone:
	case <-r.ctx.Done():
	}
	pause.For(r.ctx, r.was.Wait)
}

// errOther is a volume that is not the one that the process before had.
var errOther = errors.New("another volume is there")

// attempt opens the volume once.
func (r *reopened) attempt() error {
	n := r.nexus
	n.Carried, n.After = r.was.Paths, r.gone
	if n.Carried != nil {
		after := make(chan struct{})
		n.After = after
		r.wg.Go(func() {
			r.mayLogIn()
			close(after)
		})
	}
	r.was.Paths = nil // other attempts log in
	vol, err := r.opt.Open(r.ctx, n)
	if err != nil {
		return err
	}
	if err := r.was.same(vol); err != nil {
		return errors.Join(err, vol.Close())
	}
	r.nexus.opened(vol, r.opt.tellError)
	r.mu.Lock()
	if r.ctx.Err() != nil {
		r.mu.Unlock()
		return vol.Close()
	}
	r.vol.Store(&vol)
	waiting := r.waiting
	r.waiting, r.err = nil, nil
	r.settleLocked()
	info := vol.Info()
	var tell []func(blockdev.Info)
	for _, w := range r.watchers {
		w.cancel = vol.OnResize(w.tell)
		if info.Size != r.was.Info.Size {
			tell = append(tell, w.tell)
		}
	}
	r.mu.Unlock()
	for _, f := range tell {
		f(info)
	}
	if len(waiting) > 0 {
		vol.SubmitBatch(waiting)
	}
	return nil
}

// same says why a volume is not the one that there was.
func (w *handedVolume) same(vol LUN) error {
	names, info := vol.Names(), vol.Info()
	// Of paths over different wires each has its own first name.
	if len(names) > 0 && len(w.Names) > 0 && names[0] != w.Names[0] && !multipath.SameNames(names, w.Names) {
		return fmt.Errorf("%w: it is %s, it was %s", errOther, names[0], w.Names[0])
	}
	if info.BlockSize != w.Info.BlockSize {
		return fmt.Errorf("%w: it has blocks of %d bytes, they had %d", errOther, info.BlockSize, w.Info.BlockSize)
	}
	return nil
}

func (r *reopened) settleLocked() {
	select {
	case <-r.settled:
	default:
		close(r.settled)
	}
}

// fail ends what waits, and what comes until the volume is there.
func (r *reopened) fail(err error) {
	r.mu.Lock()
	r.err = err
	waiting := r.waiting
	r.waiting = nil
	r.settleLocked()
	r.mu.Unlock()
	end(waiting, err)
}

func end(rs []*blockio.Request, err error) {
	for _, q := range rs {
		q.Err = err
		q.Done(q)
	}
}

// SubmitBatch implements nbd.LUN.
func (r *reopened) SubmitBatch(rs []*blockio.Request) {
	if v := r.vol.Load(); v != nil {
		(*v).SubmitBatch(rs)
		return
	}
	r.mu.Lock()
	v, err := r.vol.Load(), r.err
	if v == nil && err == nil {
		r.waiting = append(r.waiting, rs...)
	}
	r.mu.Unlock()
	switch {
	case v != nil:
		(*v).SubmitBatch(rs)
	case err != nil:
		end(slices.Clone(rs), err) // a request that has ended may be in use again
	}
}

// wait returns the volume once it is there, or why it is not.
func (r *reopened) wait() (LUN, error) {
	<-r.settled
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.vol.Load(); v != nil {
		return *v, nil
	}
	return nil, r.err
}

// Info implements nbd.LUN.
func (r *reopened) Info() blockdev.Info {
	if v := r.vol.Load(); v != nil {
		return (*v).Info()
	}
	return r.was.Info
}

// Names implements LUN.
func (r *reopened) Names() []string { return r.was.Names }

// Extents implements nbd.LUN.
func (r *reopened) Extents(off, n int64) ([]blockdev.Extent, error) {
	v, err := r.wait()
	if err != nil {
		return nil, err
	}
	return v.Extents(off, n)
}

// NewFlusher implements nbd.LUN.
func (r *reopened) NewFlusher() *blockio.Flusher { return r.nexus.Cache.NewFlusher() }

// Flush implements LUN.
func (r *reopened) Flush() error {
	v, err := r.wait()
	if err != nil {
		return err
	}
	return v.Flush()
}

// OnResize implements LUN.
func (r *reopened) OnResize(f func(blockdev.Info)) (cancel func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, w := r.next, &watcher{tell: f}
	r.next++
	r.watchers[id] = w
	if v := r.vol.Load(); v != nil {
		w.cancel = (*v).OnResize(f)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, id)
		if w.cancel != nil {
			w.cancel()
		}
	}
}

// Close implements LUN. What still waits ends with blockio.ErrClosed.
func (r *reopened) Close() error {
	r.mu.Lock()
	r.cancel()
	r.mu.Unlock()
	r.wg.Wait()
	v := r.vol.Load()
	if v == nil {
		r.fail(blockio.ErrClosed)
		return nil
	}
	return (*v).Close()
}
