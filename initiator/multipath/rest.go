package multipath

import (
	"context"
	"sync"

	"softiser/initiator"
)

// The sessions of a volume's paths go to another process while they are at rest. A path that is
// down then, or whose session cannot be carried, logs in there, when this process has ended.
//
//	Rest: keepers stop, each path comes to rest ──▶ Carry ──▶ Dialer.Carried there, or Resume

// rester is a path that can come to rest.
type rester interface {
	Rest(context.Context) error
	Resume()
}

// rest is what Rest has done to a path.
type rest struct {
	turn  bool // the keeper waits
	still bool // it is at rest
}

// Rest brings the paths that are up to rest until Resume; with an error there is none, and
// they go on. The caller has begun nothing that has not ended.
func (v *Volume) Rest(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, p := range v.paths {
		wg.Go(func() { p.bringToRest(ctx) })
	}
	wg.Wait()
	for _, p := range v.paths {
		if p.rest.still {
			return nil
		}
	}
	v.Resume()
	return errNoRest
}

// bringToRest is Rest for one path.
func (p *path) bringToRest(ctx context.Context) {
	p.v.mu.Lock()
	up, vol := p.up, p.vol
	p.v.mu.Unlock()
	r, ok := vol.(rester)
	if !up || !ok {
		return
	}
	select {
	case p.turn <- struct{}{}:
		p.rest.turn = true
	case <-ctx.Done():
		return
	}
	p.v.mu.Lock()
	up = p.up // the keeper's look may have failed
	p.v.mu.Unlock()
	if up {
		p.rest.still = r.Rest(ctx) == nil
	}
}

// Resume lets the paths go on as if nothing had happened.
func (v *Volume) Resume() {
	for _, p := range v.paths {
		if p.rest.still {
			p.vol.(rester).Resume()
		}
		if p.rest.turn {
			<-p.turn
		}
		p.rest = rest{}
		p.nudge()
	}
}

// Carry returns all paths, those at rest with their sessions, whose descriptors are the
// caller's. Preconditions: Rest.
func (v *Volume) Carry() (all []*Carried, err error) {
	for _, p := range v.paths {
		k := &Carried{Name: p.dial.Name, Portal: p.dial.portal}
		v.mu.Lock()
		vol := p.vol
		v.mu.Unlock()
		if l, ok := vol.(*initiator.LUN); ok && k.Portal.Address != "" {
			k.Portal.ISID = l.Sessions()[0].ISID()
		}
		if p.rest.still {
			err = k.Carry(vol)
		}
		all = append(all, k)
		if err != nil {
			for _, k := range all {
				k.Close()
			}
			return nil, err
		}
	}
	return all, nil
}

// discard gives back what no path has gone on with. No keeper runs.
func (v *Volume) discard() {
	for _, p := range v.paths {
		if p.carried != nil {
			p.carried.Close()
			p.carried = nil
		}
	}
}
