package multipath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"softiser/initiator/blockio"
	"softiser/initiator/internal/inorder"
)

// Open opens the volume: it returns when one path works or none can be opened. The others
// are looked for in the background.
func Open(ctx context.Context, cfg Config) (*Volume, error) {
	if len(cfg.Paths) == 0 {
		return nil, errors.New("multipath: no path is given")
	}
	v := newVolume(cfg.withDefaults())
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
	v.awaitTried(ctx, v.keepPaths(likely), len(likely))
	return v, nil
}

// newVolume makes a volume of which no path has been opened. cfg has its defaults.
func newVolume(cfg Config) *Volume {
	v := &Volume{cfg: cfg, cache: cmp.Or(cfg.Cache, new(blockio.Cache)), changed: make(chan struct{})}
	v.events = inorder.New(v.tell)
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.waiters.New = newWaiter
	v.active.Store(new([]*path))
	for _, d := range cfg.Paths {
		v.paths = append(v.paths, &path{v: v, dial: d, why: errOpening, unseen: true, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1), carried: d.Carried, stands: true})
	}
	v.expire = time.AfterFunc(time.Hour, v.giveUp)
	v.expire.Stop()
	return v
}

// keepPaths starts the keepers. tried gets a value when one of the likely paths has been tried.
func (v *Volume) keepPaths(likely []*path) (tried <-chan struct{}) {
	ch := make(chan struct{}, len(v.paths))
	for _, p := range v.paths {
		v.wg.Add(1)
		if slices.Contains(likely, p) {
			go p.keep(ch)
		} else {
			go p.keep(nil)
		}
	}
	return ch
}

// awaitTried waits a moment until n paths have been tried, so that a load begins over all that are there.
func (v *Volume) awaitTried(ctx context.Context, tried <-chan struct{}, n int) {
	late := time.NewTimer(openPause)
	defer late.Stop()
	for range n {
		select {
		case <-tried:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
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
