package multipath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// Open opens the volume: it returns when one path works or none can be opened. The others
// are looked for in the background.
func Open(ctx context.Context, cfg Config) (*Volume, error) {
	if len(cfg.Paths) == 0 {
		return nil, errors.New("multipath: no path is given")
	}
	v := &Volume{cfg: cfg.withDefaults(), events: inorder.New(cfg.OnEvent), cache: cmp.Or(cfg.Cache, new(blockio.Cache)), changed: make(chan struct{})}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.waiters.New = newWaiter
	v.active.Store(new([]*path))
	for i, d := range v.cfg.Paths {
		v.paths = append(v.paths, &path{v: v, index: i, dial: d, why: errOpening, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1), carried: d.Carried, stands: true})
	}
	v.expire = time.AfterFunc(time.Hour, v.giveUp)
	v.expire.Stop()
	likely := v.likely()
	if err := v.openFirst(ctx, likely); err != nil {
		v.cancel()
		v.discard()
		return nil, err
	}
	v.mu.Lock()
	v.tellUnusedLocked()
	v.mu.Unlock()
	v.events.Tell()
	tried := make(chan struct{}, len(v.paths))
	for _, p := range v.paths {
		v.wg.Add(1)
		if slices.Contains(likely, p) {
			go p.keep(tried)
		} else {
			go p.keep(nil)
		}
	}
	// Wait a moment for the other paths, so that a load begins over all that are there.
	late := time.NewTimer(openPause)
	defer late.Stop()
	for range likely {
		select {
		case <-tried:
			continue
		case <-late.C:
		case <-ctx.Done():
		}
		break
	}
	return v, nil
}

// openPause is how long opening waits for a path when there may be another one.
const openPause = 3 * time.Second

// carriedPause is the same for a path whose session comes from another process: given up, it would be
// lost.
const carriedPause = 10 * openPause

// likely are the paths that are to be there when the volume has been opened: those of another
// process, or all.
func (v *Volume) likely() []*path {
	carried := slices.DeleteFunc(slices.Clone(v.paths), func(p *path) bool { return p.carried == nil })
	if len(carried) > 0 {
		return carried
	}
	return v.paths
}

// openFirst opens one path, which says what volume this is: the first one that is there, in
// the order in which they are given.
func (v *Volume) openFirst(ctx context.Context, paths []*path) error {
	var errs []error
	late := false
	for _, p := range paths {
		limit, cancel := ctx, context.CancelFunc(func() {})
		if len(paths) > 1 {
			wait := openPause
			if p.carried != nil {
				wait = carriedPause
			}
			limit, cancel = context.WithTimeout(ctx, wait)
		}
		err := p.first(limit)
		late = late || limit.Err() != nil
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", p.dial.Name, err))
	}
	if !late || ctx.Err() != nil {
		return errors.Join(errs...)
	}
	for i, p := range paths {
		err := p.first(ctx)
		if err == nil {
			return nil
		}
		errs[i] = fmt.Errorf("%s: %w", p.dial.Name, err)
	}
	return errors.Join(errs...)
}

// admit checks that vol is the volume, or makes it that if it is the first.
func (v *Volume) admit(vol blockio.Path) error {
	names, info := vol.Names(), vol.Info()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.names == nil {
		if len(names) == 0 && len(v.paths) > 1 {
			return fmt.Errorf("%w: the target gives it no world-wide name by which another path could be compared", errOther)
		}
		v.names, v.block = slices.Clone(names), info.BlockSize
		v.info.Store(&info)
		return nil
	}
	if !SameNames(v.names, names) {
		return fmt.Errorf("%w: it is %s, the volume is %s", errOther, strings.Join(names, ", "), strings.Join(v.names, ", "))
	}
	if info.BlockSize != v.block {
		return fmt.Errorf("%w: it has blocks of %d bytes, the volume has %d", errOther, info.BlockSize, v.block)
	}
	if was := v.info.Load(); info.Size != was.Size {
		return fmt.Errorf("%w: it has %d bytes, the volume has %d", errOther, info.Size, was.Size)
	}
	return nil
}

// SameNames reports whether two lists of names belong to one volume: they have a name in
// common, and none of a kind of which the other has only others.
func SameNames(a, b []string) bool {
	common := false
	for _, n := range a {
		kind, _, _ := strings.Cut(n, ".")
		of := func(m string) bool { return strings.HasPrefix(m, kind+".") }
		switch {
		case slices.Contains(b, n):
			common = true
		case slices.ContainsFunc(b, of) && !slices.ContainsFunc(a, func(m string) bool { return of(m) && slices.Contains(b, m) }):
			return false
		}
	}
	return common
}

// bestLocked are the paths that requests go to, and what the volume is with them: nil if there are none.
// Its size is that of the smallest path that is up.
func (v *Volume) bestLocked() (active []*path, info *blockdev.Info) {
	best, size := blockio.AccessTransitioning, int64(-1)
	for _, p := range v.paths {
		if p.up && !p.moved && p.access < best {
			best = p.access
		}
	}
	for _, p := range v.paths {
		if p.up && (size < 0 || p.info.Size < size) {
			size = p.info.Size
		}
		if p.up && !p.moved && p.access == best && best.Usable() {
			active = append(active, p)
			if info == nil {
				i := p.info
				info = &i
			}
		}
	}
	if info != nil {
		info.Size = size
	}
	return active, info
}

// settleUnlock chooses the paths that requests go to, after the state of one has changed, releases
// v.mu, lets go what waits for a path, and tells events.
func (v *Volume) settleUnlock() {
	active, info := v.bestLocked()
	v.active.Store(&active)
	close(v.changed)
	v.changed = make(chan struct{})
	resized := info != nil && v.info.Load().Size != info.Size
	if info != nil {
		v.info.Store(info)
	}
	var released, end []*request
	var err error
	switch {
	case len(active) > 0:
		v.none, v.expired = time.Time{}, false
		v.expire.Stop()
		released = v.held.take(withPath)
	case v.expired: // what a fence has let go waits no longer than others
		end, err = v.held.take(idle), v.noPathLocked()
	case v.none.IsZero() && !v.closed:
		v.none = time.Now()
		for _, p := range v.paths {
			p.nudge() // any of them may become usable now
		}
		if d := v.cfg.NoPathRetry; d > 0 {
			v.expire.Reset(d)
		}
	}
	v.mu.Unlock()
	if resized {
		v.hooks.Report(v.Info)
	}
	for _, q := range released {
		q.route()
	}
	endAll(end, err)
	v.events.Tell()
}

// giveUp ends what has waited too long for a path. The timer may have fired for an earlier time
// without one: then it has been set again.
func (v *Volume) giveUp() {
	v.mu.Lock()
	if v.none.IsZero() || time.Since(v.none) < v.cfg.NoPathRetry || v.closed {
		v.mu.Unlock()
		return
	}
	v.expired = true
	end := v.held.take(idle)
	err := v.noPathLocked()
	v.eventLocked("no path has come back within %v: requests fail", v.cfg.NoPathRetry)
	v.mu.Unlock()
	v.events.Tell()
	endAll(end, err)
}

// noPathLocked is why requests fail.
func (v *Volume) noPathLocked() error {
	errs := []error{ErrNoPath}
	for _, p := range v.paths {
		errs = append(errs, fmt.Errorf("%s: %w", p.dial.Name, p.reasonLocked()))
	}
	return errors.Join(errs...)
}

// tellUnusedLocked says of which paths no use is made, once there is one that is used: else whoever opens
// the volume is told in an error. What Close breaks off is no news.
func (v *Volume) tellUnusedLocked() {
	for _, p := range v.paths {
		if p.untold && v.names != nil && !v.closed {
			p.untold = false
			v.eventLocked("%s: not used: %v", p.dial.Name, p.why)
		}
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

// awaitPath returns a path, once there is one.
func (v *Volume) awaitPath() (*path, error) {
	for {
		v.mu.Lock()
		ch, over := v.changed, v.expired || v.closed
		err := blockio.ErrClosed
		if !v.closed {
			err = v.noPathLocked()
		}
		left := v.cfg.NoPathRetry
		v.mu.Unlock()
		if p := v.choose(); p != nil {
			return p, nil
		}
		if over {
			return nil, err
		}
		var late <-chan time.Time
		if left > 0 {
			late = time.After(left)
		}
		select {
		case <-ch:
		case <-late:
			return nil, err
		case <-v.ctx.Done():
			return nil, blockio.ErrClosed
		}
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
