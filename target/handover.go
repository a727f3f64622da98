package target

import (
	"context"
	"time"

	"softiser/target/volume"
)

// This file is about a server whose process another one replaces.

// loginPatience is how long Freeze waits for connections that are about to log in.
const loginPatience = 200 * time.Millisecond

// Freeze brings the server to rest: no connection is accepted, commands that have begun end,
// none begins. What comes meanwhile waits. If ctx ends first, or something goes on that takes
// long, the error says what, and the server goes on.
func (s *Server) Freeze(ctx context.Context) error {
	if err := s.volumes.Occupied(); err != nil {
		return err
	}
	logins, cancel := context.WithTimeout(ctx, loginPatience)
	defer cancel()
	s.server.Hold(logins)
	if err := s.volumes.Freeze(ctx); err != nil {
		s.server.Release()
		return err
	}
	return nil
}

// Thaw lets a frozen server go on as if nothing had happened.
func (s *Server) Thaw() {
	s.volumes.Thaw()
	s.server.Release()
}

// Listeners returns the sockets of the portals over TCP by their address in the
// configuration, as descriptors that are the caller's.
func (s *Server) Listeners() (map[string]int, error) { return s.server.Listeners() }

// Inherit makes Listen use a socket that another process has opened for a portal. It belongs
// to the server, also after an error.
func (s *Server) Inherit(listen string, fd int) error { return s.server.Inherit(listen, fd) }

// ExpectVolume says what the volume of the device with this Info.ID begins with: what
// another process, which has handed it over, knew about it.
func (s *Server) ExpectVolume(id string, c volume.Carried) error { return s.volumes.Expect(id, c) }
