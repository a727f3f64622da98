package multipath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
)

// The sessions of a volume's paths go to another process while they are at rest. A path that is
// down then, or whose session cannot be carried, logs in there, when this process has ended.
//
//	Rest: keepers stop, each path comes to rest ──▶ Carry ──▶ Dialer.Carried there, or Resume

// Carried is a path that another process has had, with its sessions if they were at rest.
type Carried struct {
	Name   string `json:"name"` // Dialer.Name
	Portal Portal `json:"portal"`

	Sessions    []*initiator.CarriedSession `json:"sessions,omitempty"`
	Association *nvmf.CarriedAssociation    `json:"association,omitempty"`
}

// Portal is where a path over iSCSI or iSER leads, which for those of Portals no URL says.
type Portal struct {
	Address string  `json:"address,omitempty"`
	ISID    [6]byte `json:"isid"` // zero: another one at each login
}

// GoesOn reports whether there is something that nobody has to log in for.
func (k *Carried) GoesOn() bool { return len(k.Sessions) > 0 || k.Association != nil }

// maxSessions bounds the sessions of one path that come from another process.
const maxSessions = 256

// Check says what is wrong with a path that has come from another process with files
// descriptors of all kinds, and makes it one without descriptors.
func (k *Carried) Check(files int) error {
	if a := k.Portal.Address; a != "" {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("multipath: a path of another process: %w", err)
		}
	}
	if n := len(k.Sessions); n > maxSessions || n > 0 && k.Association != nil {
		return fmt.Errorf("multipath: %d sessions of one path; want up to %d, and none beside an association", n, maxSessions)
	}
	for _, s := range k.Sessions {
		if s == nil {
			return errors.New("multipath: a session of another process is missing")
		}
		if err := s.Check(files); err != nil {
			return err
		}
		s.FD = -1
	}
	if k.Association != nil {
		return k.Association.Check(files)
	}
	return nil
}

// Receive takes the descriptors, which file has.
func (k *Carried) Receive(file func(int) (int, error)) (err error) {
	for _, s := range k.Sessions {
		if s.FD, err = file(s.File); err != nil {
			return err
		}
	}
	if a := k.Association; a != nil {
		for _, at := range a.Files {
			fd, err := file(at)
			if err != nil {
				return err
			}
			a.FDs = append(a.FDs, fd)
		}
	}
	return nil
}

// Send gives the descriptors to add, which returns their indices on their way.
func (k *Carried) Send(add func(fd int) int) {
	for _, s := range k.Sessions {
		s.File = add(s.FD)
	}
	if a := k.Association; a != nil {
		for _, fd := range a.FDs {
			a.Files = append(a.Files, add(fd))
		}
	}
}

// Close gives the descriptors back that nobody has taken.
func (k *Carried) Close() {
	for _, s := range k.Sessions {
		s.Close()
	}
	if k.Association != nil {
		k.Association.Close()
	}
}

// Carry adds the session of a path that is at rest.
func (k *Carried) Carry(p blockio.Path) (err error) {
	switch p := p.(type) {
	case *initiator.LUN:
		k.Sessions, err = p.Carry()
	case *nvmf.Namespace:
		k.Association, err = p.Carry()
	default:
		err = errNoRest
	}
	return err
}

// errNoRest is why no path of a volume can go to another process.
var errNoRest = errors.New("multipath: no path is in a state to be carried")

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
