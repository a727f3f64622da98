package target

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"softiser/target/iscsi"
	"softiser/target/nvmf"
	"softiser/target/volume"
)

// This file is about a server whose process another one replaces.

// loginPatience is how long Freeze waits for connections that are about to log in.
const loginPatience = 200 * time.Millisecond

// Settle has rewrites of volumes stand still, whose steps may be long, and waits until no copy runs,
// or ctx is done: what is short ends before anybody has to wait. With an error rewrites go on, and
// else Freeze or Unsettle is to follow.
func (s *Server) Settle(ctx context.Context) error {
	if err := s.volumes.Pause(ctx); err != nil {
		return err
	}
	s.volumes.AwaitCopies(ctx)
	return nil
}

// Unsettle lets rewrites go on after Settle.
func (s *Server) Unsettle() { s.volumes.Thaw() }

// Freeze brings the server to rest: no connection is accepted, sessions that can be carried
// stand still, commands that have begun end, none begins. What comes meanwhile waits. If ctx
// ends first, or something goes on that takes long, the error says what, and the server goes
// on.
func (s *Server) Freeze(ctx context.Context) error {
	if err := s.volumes.Occupied(); err != nil {
		s.Unsettle()
		return err
	}
	if err := s.volumes.Pause(ctx); err != nil {
		return err
	}
	logins, cancel := context.WithTimeout(ctx, loginPatience)
	defer cancel()
	s.server.Hold(logins)
	rest, end := context.WithTimeout(ctx, s.cfg.Timeouts.Rest)
	defer end()
	var wg sync.WaitGroup
	wg.Go(func() { s.iscsi.Handover().Rest(rest) })
	wg.Go(func() { s.nvmf.Handover().Rest(rest) })
	wg.Wait()
	if err := s.volumes.Freeze(ctx); err != nil {
		s.goOn()
		return err
	}
	return nil
}

// Thaw lets a frozen server go on as if nothing had happened.
func (s *Server) Thaw() {
	s.volumes.Thaw()
	s.goOn()
}

// goOn lets sessions and controllers go on, and others come.
func (s *Server) goOn() {
	s.iscsi.Handover().Resume()
	s.nvmf.Handover().Resume()
	s.server.Release()
}

// Carried is what goes to another process of a frozen server, beside sockets that listen and
// volumes.
type Carried struct {
	ISCSI iscsi.Carried `json:"iscsi"`
	NVMe  nvmf.Carried  `json:"nvme"`
}

// Files are the descriptors that come with it, and the indices that they have on their way.
func (k *Carried) Files() iter.Seq2[*int, *int] {
	return func(yield func(fd, index *int) bool) {
		for i := range k.ISCSI.Sessions {
			for j := range k.ISCSI.Sessions[i].Conns {
				if c := &k.ISCSI.Sessions[i].Conns[j]; !yield(&c.FD, &c.File) {
					return
				}
			}
		}
		for i := range k.NVMe.Controllers {
			for j := range k.NVMe.Controllers[i].Queues {
				if q := &k.NVMe.Controllers[i].Queues[j]; !yield(&q.FD, &q.File) {
					return
				}
			}
		}
	}
}

// Carry returns what goes to another process, with descriptors that are the caller's, and a
// line for each session and controller that does not. opensAnew tells by name which volumes do not go over.
// Preconditions: Freeze.
func (s *Server) Carry(opensAnew func(volume string) bool) (k Carried, left []string, err error) {
	if k.ISCSI, left, err = s.iscsi.Handover().Carry(opensAnew); err != nil {
		return k, nil, err
	}
	var more []string
	k.NVMe, more = s.nvmf.Handover().Carry(opensAnew)
	return k, append(left, more...), nil
}

// CheckCarried says why this server cannot go on with what another process has carried, which
// has sent that many files.
func (s *Server) CheckCarried(k *Carried, files int) error {
	return errors.Join(s.iscsi.Handover().Check(&k.ISCSI, files), s.nvmf.Handover().Check(&k.NVMe, files))
}

// Adopt goes on with what another process has carried, as iscsi.Handover.Adopt does, and then with
// rewrites of volumes, whose ends are told to those who are there.
func (s *Server) Adopt(k *Carried) error {
	defer s.volumes.Thaw()
	return errors.Join(s.iscsi.Handover().Adopt(&k.ISCSI), s.nvmf.Handover().Adopt(&k.NVMe))
}

// Pending is how many connections there are that have not logged in.
func (s *Server) Pending() int { return s.server.Pending() }

// Listeners returns the sockets of the portals over TCP by their address in the
// configuration, as descriptors that are the caller's.
func (s *Server) Listeners() (map[string]int, error) { return s.server.Listeners() }

// Inherit makes Listen use a socket that another process has opened for a portal. It belongs
// to the server, also after an error.
func (s *Server) Inherit(listen string, fd int) error { return s.server.Inherit(listen, fd) }

// ExpectVolume says what the volume of the device with this Info.ID begins with: what
// another process, which has handed it over, knew about it.
func (s *Server) ExpectVolume(id string, c volume.Carried) error { return s.volumes.Expect(id, c) }
