package multipath

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize/english"

	"softiser/blockdev"
	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/internal/inorder"
)

// Volume is one volume over several paths. It is a blockio.Volume.
//
// Goroutines: each path has a keeper, which opens it, asks for its state and fences it; Done
// callbacks run on the paths' goroutines.
type Volume struct {
	cfg     Config
	cache   *blockio.Cache
	names   []string // of the first path that was opened
	block   int      // bytes
	waiters sync.Pool

	active atomic.Pointer[[]*path] // that requests go to: the best ones; empty: none
	next   atomic.Uint32           // of RoundRobin
	hooks  blockdev.ResizeHooks
	events *inorder.Teller[string]
	info   atomic.Pointer[blockdev.Info]

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // keepers

	// mu guards what follows, and the states of paths and of requests that are not with a
	// path. No path is called under it. Functions whose names end in Locked are called with it
	// held.
	mu      sync.Mutex
	paths   []*path
	held    queue         // requests that wait for a path
	none    time.Time     // since when there is no path; zero while there is one
	expire  *time.Timer   // ends the wait of held
	expired bool          // it has: requests fail at once
	changed chan struct{} // closed when the paths' states have changed
	closed  bool
}

var _ blockio.Volume = (*Volume)(nil)

// tellUnusedLocked says of which paths no use is made, once there is one that is used: else whoever opens
// the volume is told in an error. What Close breaks off is no news.
func (v *Volume) tellUnusedLocked() {
	for _, p := range v.paths {
		if p.untold && v.names != nil && !v.closed {
			p.untold, p.unseen = false, false
			v.eventLocked("%s: not used: %v", p.dial.Name, p.why)
		}
	}
}

// noNews is an event of which Config.Changed is told alone.
const noNews = ""

// tell reports an event.
func (v *Volume) tell(line string) {
	if line != noNews && v.cfg.OnEvent != nil {
		v.cfg.OnEvent(line)
	}
	if v.cfg.Changed != nil {
		v.cfg.Changed()
	}
}

// eventLocked has v.events.Tell report a line, which settleUnlock calls.
func (v *Volume) eventLocked(format string, args ...any) { v.events.Put(fmt.Sprintf(format, args...)) }

// Info returns geometry and capabilities; the size is that of the smallest path, while a
// resize has not reached them all.
func (v *Volume) Info() blockdev.Info { return *v.info.Load() }

// OnResize registers f to be called after the size has changed.
func (v *Volume) OnResize(f func(blockdev.Info)) (cancel func()) { return v.hooks.Add(f) }

// opened returns the paths that have been opened.
func (v *Volume) opened() []*path {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(v.paths), func(p *path) bool { return p.vol == nil })
}

// Sessions are those of the paths over iSCSI and iSER.
func (v *Volume) Sessions() (all []*initiator.Session) {
	for _, p := range v.opened() {
		if l, ok := p.vol.(*initiator.LUN); ok {
			all = append(all, l.Sessions()...)
		}
	}
	return all
}

// Limits returns what one command covers over every path.
func (v *Volume) Limits() blockio.Limits {
	var l blockio.Limits
	for i, p := range v.opened() {
		o := p.vol.Limits()
		if i == 0 {
			l = o
			continue
		}
		l.MaxTransfer, l.MaxUnmap = min(l.MaxTransfer, o.MaxTransfer), min(l.MaxUnmap, o.MaxUnmap)
		l.MaxWriteSame, l.MaxCompareAndWrite = min(l.MaxWriteSame, o.MaxWriteSame), min(l.MaxCompareAndWrite, o.MaxCompareAndWrite)
	}
	return l
}

// Names are those of the path that was opened first.
func (v *Volume) Names() []string { return v.names }

// Describe names volume and paths for people.
func (v *Volume) Describe() string {
	ps := v.opened()
	return fmt.Sprintf("%s, %s, %v", ps[0].vol.Describe(), english.Plural(len(v.paths), "path", ""), v.cfg.Policy)
}

// QueueDepth is how many commands all paths keep outstanding together.
func (v *Volume) QueueDepth() (n int) {
	for _, p := range v.opened() {
		n += p.vol.QueueDepth()
	}
	return n
}

// Stats adds up the counters of the paths.
func (v *Volume) Stats() blockio.Stats {
	var sum blockio.Stats
	for _, p := range v.opened() {
		st := p.vol.Stats()
		sum.Add(&st)
	}
	return sum
}

// NewFlusher returns a user of the volume who begins now.
func (v *Volume) NewFlusher() *blockio.Flusher { return v.cache.NewFlusher() }

// Flush makes every completed write durable.
func (v *Volume) Flush() error {
	return v.Do(context.Background(), &blockio.Request{Op: blockio.OpFlush})
}

// Extents asks a path for the allocation of a range.
func (v *Volume) Extents(off, n int64) ([]blockdev.Extent, error) {
	for {
		p, err := v.awaitPath()
		if err != nil {
			return nil, err
		}
		ext, err := p.vol.Extents(off, n)
		if !errors.Is(err, blockio.ErrSessionLost) && !errors.Is(err, blockio.ErrInaccessible) {
			return ext, err
		}
		p.leave(err)
	}
}

// Close waits for what is outstanding at paths that work, ends what waits for one with
// ErrClosed, and closes the paths. Changes whose path has not been fenced may yet be carried
// out: their error is an ErrOutcomeUnknown, too.
func (v *Volume) Close() error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return blockdev.ErrClosed
	}
	v.closed = true
	v.expire.Stop()
	held := v.held.take(idle)
	var unknown []*request
	for _, p := range v.paths {
		unknown = append(append(unknown, p.fencing.take(idle)...), p.limbo.take(idle)...)
	}
	v.mu.Unlock()
	endAll(held, blockio.ErrClosed)
	endAll(unknown, blockio.Unknown(blockio.ErrClosed))
	v.cancel()
	v.wg.Wait()
	v.discard()
	var errs []error
	for _, p := range v.opened() {
		errs = append(errs, p.vol.Close())
	}
	v.events.Wait()
	return errors.Join(errs...)
}
