package iscsi

import (
	"context"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/target/portal"
)

// testServer is the front end behind portals, as package target puts it there.
type testServer struct {
	*Frontend
	listening *portal.Server
}

type serverConfig struct {
	Portals       []portal.Config
	DiscoveryAuth Auth
	DiscoveryACL  ACL
	Limits        serverLimits
	Timeouts      serverTimeouts
	Session       SessionParams
	StateDir      string
	Staging       *blockdev.Pool
	Log           *zap.Logger
}

type serverLimits struct {
	PendingLogins, PendingPerAddress int
	Room
	Commands, TextData int
}

type serverTimeouts struct {
	FirstBytes time.Duration
	Timeouts
}

func newServer(cfg serverConfig) (*testServer, error) {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if cfg.Staging == nil {
		cfg.Staging = blockdev.DefaultPool()
	}
	def(&cfg.Timeouts.FirstBytes, 5*time.Second)
	def(&cfg.Timeouts.Drain, 5*time.Second)
	l, err := portal.NewServer(portal.ServerConfig{
		Portals: cfg.Portals, FirstBytes: cfg.Timeouts.FirstBytes, Drain: cfg.Timeouts.Drain, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	f, err := New(Config{
		Portals: l.Portals(), DiscoveryAuth: cfg.DiscoveryAuth, DiscoveryACL: cfg.DiscoveryACL,
		Commands: cfg.Limits.Commands, TextData: cfg.Limits.TextData, Timeouts: cfg.Timeouts.Timeouts,
		Session: cfg.Session, StateDir: cfg.StateDir, Staging: cfg.Staging, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	l.Handle(portal.ISCSI, f)
	s := &testServer{Frontend: f, listening: l}
	s.SetLimits(cfg.Limits)
	return s, nil
}

// SetLimits sets what package target makes of the same limits where there are enough
// descriptors.
func (s *testServer) SetLimits(l serverLimits) {
	share := func(n int) int { return max(n/8, min(n, 8)) }
	def(&l.PendingLogins, 256)
	def(&l.PendingPerAddress, share(l.PendingLogins))
	def(&l.Sessions, 4096)
	def(&l.SessionsPerAddress, share(l.Sessions))
	def(&l.ReservedSessions, l.Sessions/8)
	def(&l.DiscoveryAge, 10*time.Minute)
	s.listening.SetLimits(l.PendingLogins, l.PendingPerAddress)
	s.SetRoom(l.Room)
}

func (s *testServer) Listen() error                      { return s.listening.Listen() }
func (s *testServer) Addrs() []string                    { return s.listening.Addrs() }
func (s *testServer) Serve(ctx context.Context) error    { return s.listening.Serve(ctx) }
func (s *testServer) Shutdown(ctx context.Context) error { return s.listening.Shutdown(ctx) }

// serverStatus is the front end's and the portals'.
type serverStatus struct {
	Status
	State   string
	Portals []portal.Status
	Pending int
	Staging struct{ Used, Reserved, Limit int64 }
}

func (s *testServer) Status() serverStatus {
	st := serverStatus{Status: s.Frontend.Status(), Pending: s.listening.Pending()}
	st.State, _ = s.listening.State()
	st.Staging.Used, st.Staging.Reserved, st.Staging.Limit = s.cfg.Staging.Out(), s.cfg.Staging.Reserved(), s.cfg.Staging.Cap()
	for _, p := range s.listening.Portals() {
		st.Portals = append(st.Portals, p.Status())
	}
	return st
}

// wireName is what a status calls iSCSI over a transport.
func wireName(kind portal.Transport) string {
	return portal.Hello{Protocol: portal.ISCSI, Transport: kind}.String()
}
