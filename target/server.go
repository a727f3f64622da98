package target

import (
	"context"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/target/iscsi"
	"softiser/target/nvmf"
	"softiser/target/portal"
	"softiser/target/volume"
)

// Server serves targets on portals. Its methods are safe for concurrent use.
type Server struct {
	cfg     Config
	volumes volume.Registry
	log     *zap.Logger
	server  *portal.Server
	iscsi   *iscsi.Frontend
	nvmf    *nvmf.Frontend
}

// New checks the configuration and makes a server. It does not listen yet.
func New(cfg Config) (*Server, error) {
	cfg.fill()
	s := &Server{cfg: cfg, log: cfg.Log}
	var err error
	if s.server, err = portal.NewServer(portal.ServerConfig{
		Portals: cfg.Portals, FirstBytes: cfg.Timeouts.FirstBytes, Drain: cfg.Timeouts.Drain,
		Storage: cfg.Timeouts.Storage, Log: cfg.Log,
	}); err != nil {
		return nil, err
	}
	t := &cfg.Timeouts
	if s.iscsi, err = iscsi.New(iscsi.Config{
		Portals: s.server.Portals(), DiscoveryAuth: cfg.DiscoveryAuth, DiscoveryACL: cfg.DiscoveryACL,
		Commands: cfg.Limits.Commands, TextData: cfg.Limits.TextData, Session: cfg.Session,
		Timeouts: iscsi.Timeouts{
			Login: t.Login, NopInterval: t.NopInterval, NopReply: t.NopReply, FirstCommand: t.FirstCommand,
			DataOut: t.DataOut, Sequence: t.Sequence, Drain: t.Drain,
		},
		Volumes: &s.volumes, StateDir: cfg.StateDir, Staging: cfg.Staging, Log: cfg.Log,
	}); err != nil {
		return nil, err
	}
	s.server.Handle(portal.ISCSI, s.iscsi)
	if s.nvmf, err = nvmf.New(nvmf.Config{
		Portals: s.server.Portals(), Volumes: &s.volumes, StateDir: cfg.StateDir, Staging: cfg.Staging, Log: cfg.Log,
		DiscoveryNQN: cfg.DiscoveryNQN, Referrals: cfg.Referrals,
		Timeouts: nvmf.Timeouts{Connect: t.Login, Data: t.DataOut}, Limits: nvmf.Limits{Controllers: cfg.Limits.Controllers},
	}); err != nil {
		return nil, err
	}
	s.server.Handle(portal.NVMe, s.nvmf)
	s.SetLimits(cfg.Limits)
	return s, nil
}

// Listen opens the portals. Serve does it if it has not been done; calling it
// first makes errors and addresses known early. When a portal cannot be opened
// none is.
func (s *Server) Listen() error { return s.server.Listen() }

// Addrs returns the addresses of the portals, in the order of Config.Portals;
// those that do not listen are left out.
func (s *Server) Addrs() []string { return s.server.Addrs() }

// Serve listens and serves until ctx is done or Shutdown is called. When ctx is
// done it shuts down by itself, within Timeouts.Drain and Timeouts.Storage, and returns
// nil, or why volumes could not be flushed.
func (s *Server) Serve(ctx context.Context) error { return s.server.Serve(ctx) }

// Shutdown ends the server in an orderly way: it stops listening, asks every
// initiator to log out, and waits until they have done so or ctx is done. Then
// the connections that are left are closed, their tasks end, and every volume
// is flushed. The error is ctx.Err() when initiators had to be cut off, or what
// went wrong in a flush.
//
// Storage that does not answer is waited for until Timeouts.Storage has passed as well.
// Then the error is ErrVolumesHeld and names the volumes; the others have been flushed.
// Shutdown may be called again to wait for the rest: while it returns ErrVolumesHeld
// no volume may be closed.
func (s *Server) Shutdown(ctx context.Context) error { return s.server.Shutdown(ctx) }

// SetLimits changes how many sessions and connections before login there may be, and
// whose they are; Commands and TextData stay. Sessions that are there already stay, too.
func (s *Server) SetLimits(l Limits) {
	l.fill()
	if asked := l; l.fit() {
		s.log.Warn("the limit of open files leaves room for fewer sessions than configured; raise it (LimitNOFILE, ulimit -n)",
			zap.Int("sessions", l.Sessions), zap.Int("sessions_configured", asked.Sessions),
			zap.Int("pending_logins", l.PendingLogins), zap.Int("pending_logins_configured", asked.PendingLogins))
	}
	s.server.SetLimits(l.PendingLogins, l.PendingPerAddress)
	s.iscsi.SetRoom(iscsi.Room{
		Sessions: l.Sessions, SessionsPerAddress: l.SessionsPerAddress,
		ReservedSessions: l.ReservedSessions, DiscoveryAge: l.DiscoveryAge,
	})
}

// Volume returns the volume of a device that LUNs or namespaces are made of, nil if none is.
// Its rate limits and workers hold wherever it is served.
func (s *Server) Volume(d blockdev.Device) *volume.Volume { return s.volumes.Volume(d) }
