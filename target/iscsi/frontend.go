package iscsi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
	"softiser/internal/iser"
	"softiser/rdma"
	"softiser/target/internal/loglimit"
	"softiser/target/portal"
	"softiser/target/volume"
)

// Frontend serves iSCSI targets: it is the portal.Frontend of that protocol. Its methods
// are safe for concurrent use.
type Frontend struct {
	cfg      Config
	log      *zap.Logger
	epoch    time.Time
	bursts   burstPool
	volumes  *volume.Registry // of all front ends
	wires    portal.Wires[*iser.Device]
	life     context.Context // done when Drain begins
	endLife  context.CancelFunc
	stats    serverCounters
	refusals refusals
	limits   struct{ aborted, reject, protocol, sessions loglimit.Limit }
	drained  atomic.Bool // Drain has begun; written under mu
	closing  sync.Once   // of what Close does when no volume is in use any more
	closeErr error       // what went wrong then; written once, in closing

	mu       sync.Mutex
	targets  targetTable                  // guarded by mu
	sessions sessionTable                 // guarded by mu
	conns    map[*conn]struct{}           // guarded by mu
	past     map[portal.Transport]Traffic // guarded by mu: of sessions that have ended
}

// New checks the configuration and makes the front end. Unless cfg.Room says otherwise, it
// accepts no session before SetRoom is called.
func New(cfg Config) (*Frontend, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &Frontend{
		cfg:      cfg,
		log:      cfg.Log,
		epoch:    time.Now(),
		bursts:   burstPool{memory: cfg.Staging},
		volumes:  cfg.Volumes,
		sessions: newSessionTable(cfg.Room),
		conns:    map[*conn]struct{}{},
		past:     map[portal.Transport]Traffic{},
		wires:    portal.Wires[*iser.Device]{Protocol: portal.ISCSI},
	}
	for _, l := range []*loglimit.Limit{&s.limits.aborted, &s.limits.reject, &s.limits.protocol} {
		l.Every = time.Second
	}
	s.refusals.init(cfg.Log)
	// A thousand initiators that come back after a power cut are told of in full
	// before long; one that comes and goes for ever is not.
	s.limits.sessions.Every, s.limits.sessions.Burst = 100*time.Millisecond, 1024
	s.life, s.endLife = context.WithCancel(context.Background())
	if err := s.wires.Open(cfg.Portals, func(c rdma.DeviceConfig) (*iser.Device, error) { return iser.Open(iser.Config{RDMA: c}) }); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	return s, nil
}

// now is the time since the front end was made; it is monotonic and cheap.
func (s *Frontend) now() time.Duration { return time.Since(s.epoch) }

func (s *Frontend) draining() bool { return s.drained.Load() }

// SetRoom sets how many sessions there may be, in all and by initiator. Existing sessions
// stay.
func (s *Frontend) SetRoom(r Room) {
	s.mu.Lock()
	s.sessions.room = r
	s.mu.Unlock()
}

// lookup finds a target by name, and who may use it; removed says that it was there
// once.
func (s *Frontend) lookup(name string) (n *node, acl ACL, removed bool) {
	name = iscsi.NormalizeName(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.targets.find(name)
}

// nodeList returns the targets in the order in which they were added.
func (s *Frontend) nodeList() []*node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.targets.served
}

func (s *Frontend) sessionByTSIH(tsih uint16) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions.tsihs[tsih]
}

func (s *Frontend) addConn(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining() {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Frontend) dropConn(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// sessionList returns the sessions, of one target when n is not nil.
func (s *Frontend) sessionList(n *node) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions.list(n)
}
