package multipath

import (
	"errors"
	"fmt"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// choose returns the path for the next request, nil while there is none.
func (v *Volume) choose() *path {
	ps := *v.active.Load()
	switch {
	case len(ps) == 0:
		return nil
	case len(ps) == 1:
		return ps[0]
	case v.cfg.Policy == QueueDepth:
		best := ps[0]
		for _, p := range ps[1:] {
			if p.outstanding.Load() < best.outstanding.Load() {
				best = p
			}
		}
		return best
	}
	return ps[v.next.Add(1)%uint32(len(ps))]
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
