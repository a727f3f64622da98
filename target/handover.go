package target

import (
	"context"
	"time"

	"softiser/target/iscsi"
	"softiser/target/volume"
)

// This file is about a server whose process another one replaces.

// loginPatience is how long Freeze waits for connections that are about to log in.
const loginPatience = 200 * time.Millisecond

// restPatience is how long Freeze waits for sessions to stand still, so that they can be
// carried.
const restPatience = time.Second

// Freeze brings the server to rest: no connection is accepted, sessions that can be carried
// stand still, commands that have begun end, none begins. What comes meanwhile waits. If ctx
// ends first, or something goes on that takes long, the error says what, and the server goes
// on.
func (s *Server) Freeze(ctx context.Context) error {
	if err := s.volumes.Occupied(); err != nil {
		return err
	}
	logins, cancel := context.WithTimeout(ctx, loginPatience)
	defer cancel()
	s.server.Hold(logins)
	rest, end := context.WithTimeout(ctx, restPatience)
	defer end()
	s.iscsi.Handover().Rest(rest)
	if err := s.volumes.Freeze(ctx); err != nil {
		s.iscsi.Handover().Resume()
		s.server.Release()
		return err
	}
	return nil
}

// Thaw lets a frozen server go on as if nothing had happened.
func (s *Server) Thaw() {
	s.volumes.Thaw()
	s.iscsi.Handover().Resume()
	s.server.Release()
}

// Carried is what goes to another process of a frozen server, beside sockets that listen and
// volumes.
type Carried struct {
	ISCSI iscsi.Carried `json:"iscsi"`
}

// Carry returns what goes to another process, with descriptors that are the caller's, and a
// line for each session that does not. opensAnew tells by name which volumes do not go over.
// Preconditions: Freeze.
func (s *Server) Carry(opensAnew func(volume string) bool) (k Carried, left []string, err error) {
	k.ISCSI, left, err = s.iscsi.Handover().Carry(opensAnew)
	return k, left, err
}

// CheckCarried says why this server cannot go on with what another process has carried, which
// has sent that many files.
func (s *Server) CheckCarried(k *Carried, files int) error {
	return s.iscsi.Handover().Check(&k.ISCSI, files)
}

// Adopt goes on with what another process has carried, as iscsi.Handover.Adopt does.
func (s *Server) Adopt(k *Carried) error { return s.iscsi.Handover().Adopt(&k.ISCSI) }

// Listeners returns the sockets of the portals over TCP by their address in the
// configuration, as descriptors that are the caller's.
func (s *Server) Listeners() (map[string]int, error) { return s.server.Listeners() }

// Inherit makes Listen use a socket that another process has opened for a portal. It belongs
// to the server, also after an error.
func (s *Server) Inherit(listen string, fd int) error { return s.server.Inherit(listen, fd) }

// ExpectVolume says what the volume of the device with this Info.ID begins with: what
// another process, which has handed it over, knew about it.
func (s *Server) ExpectVolume(id string, c volume.Carried) error { return s.volumes.Expect(id, c) }
