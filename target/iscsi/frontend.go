package iscsi

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	volumes  volume.Registry // of all targets
	rdma     *iser.Device    // nil when no portal speaks iSER
	life     context.Context // done when Drain begins
	endLife  context.CancelFunc
	stats    serverCounters
	refusals refusals
	limits   struct{ aborted, reject, protocol, sessions loglimit.Limit }
	drained  atomic.Bool // Drain has begun; written under mu

	mu       sync.Mutex
	nodes    []*node                 // guarded by mu; replaced, never changed in place
	removed  map[string]ACL          // guarded by mu: names of targets that were taken away, and who might use them
	leaving  []*node                 // guarded by mu: taken away, but commands still hold their volumes
	sessions map[uint16]*session     // guarded by mu, by TSIH
	keys     map[sessionKey]*session // guarded by mu
	shares   map[shareKey]int        // guarded by mu: sessions, by whose share they are of
	room     Room                    // guarded by mu: as SetRoom has left it
	conns    map[*conn]struct{}      // guarded by mu
	lastTSIH uint16                  // guarded by mu
}

// New checks the configuration and makes the front end. There is room for no session
// before SetRoom, unless cfg says so.
func New(cfg Config) (*Frontend, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &Frontend{
		cfg:      cfg,
		log:      cfg.Log,
		epoch:    time.Now(),
		bursts:   burstPool{memory: cfg.Staging},
		removed:  map[string]ACL{},
		sessions: map[uint16]*session{},
		keys:     map[sessionKey]*session{},
		shares:   map[shareKey]int{},
		conns:    map[*conn]struct{}{},
		room:     cfg.Room,
	}
	for _, l := range []*loglimit.Limit{&s.limits.aborted, &s.limits.reject, &s.limits.protocol} {
		l.Every = time.Second
	}
	s.refusals.init(cfg.Log)
	// A thousand initiators that come back after a power cut are told of in full
	// before long; one that comes and goes for ever is not.
	s.limits.sessions.Every, s.limits.sessions.Burst = 100*time.Millisecond, 1024
	s.life, s.endLife = context.WithCancel(context.Background())
	if slices.ContainsFunc(cfg.Portals, func(p *portal.Portal) bool { return !p.Config().NoISER }) {
		var err error
		if s.rdma, err = iser.Open(iser.Config{RDMA: rdma.DeviceConfig{MaxIRD: portal.MaxReads, MaxORD: portal.MaxReads}}); err != nil {
			return nil, fmt.Errorf("target: RDMA: %w", err)
		}
	}
	return s, nil
}

// now is the time since the front end was made; it is monotonic and cheap.
func (s *Frontend) now() time.Duration { return time.Since(s.epoch) }

func (s *Frontend) draining() bool { return s.drained.Load() }

// SetRoom changes how many sessions there may be, and whose they are. Those that are
// there already stay.
func (s *Frontend) SetRoom(r Room) {
	s.mu.Lock()
	s.room = r
	s.mu.Unlock()
}

// lookup finds a target by name, and who may use it; removed says that it was there
// once.
func (s *Frontend) lookup(name string) (n *node, acl ACL, removed bool) {
	name = iscsi.NormalizeName(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if n.cfg.Name == name {
			return n, n.access.Load().ACL, false
		}
	}
	acl, removed = s.removed[name]
	return nil, acl, removed
}

// nodeList returns the targets in the order in which they were added.
func (s *Frontend) nodeList() []*node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes
}

func (s *Frontend) sessionByTSIH(tsih uint16) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[tsih]
}

// register enters a new session. An older one of the same initiator port is
// ended first (session reinstatement, RFC 7143 §6.3.5): the new one begins only
// when the old tasks are over and the nexus is lost. c is its leading connection.
func (s *Frontend) register(n *session, c *conn) error {
	s.awaitEnding(n, c)
	deadline := afterLogin(s)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		if s.draining() {
			s.mu.Unlock()
			return iscsi.Refuse(iscsi.LoginUnavailable, "the target is shutting down")
		}
		if n.node != nil && n.node.gone {
			s.mu.Unlock()
			return iscsi.Refuse(iscsi.LoginTargetRemoved, "target %s has been removed", n.key.target)
		}
		if err := s.checkOwnerLocked(n); err != nil {
			s.mu.Unlock()
			return err
		}
		old := s.keys[n.key]
		if n.discovery() {
			old = nil // any number of discovery sessions
		}
		if old == nil {
			victim, err := s.roomLocked(n)
			if victim == nil && err == nil {
				err = s.enterLocked(n)
			}
			s.mu.Unlock()
			if victim == nil {
				return err
			}
			s.stats.discoveryEnded.Add(1)
			victim.dismiss(errDiscoveryRoom)
			<-victim.done // it has no tasks to wait for
			continue
		}
		s.mu.Unlock()
		s.limits.sessions.Info(old.log(), "session reinstatement: the old session ends", zap.Stringer("new_connection", c.remote))
		old.shut(errReinstated)
		select {
		case <-old.done:
		case <-c.ended:
			return errors.New("the connection ended while the old session was being closed")
		case <-deadline.C:
			return iscsi.Refuse(iscsi.LoginUnavailable, "tasks of the old session of %s are still running", n.key.initiator)
		}
	}
}

// afterLogin is how long a login waits for what it replaces.
func afterLogin(s *Frontend) *time.Timer {
	return time.NewTimer(max(s.cfg.Timeouts.Login, time.Second))
}

// enterLocked gives n a TSIH and its nexus. The caller holds s.mu.
func (s *Frontend) enterLocked(n *session) error {
	for {
		s.lastTSIH++
		if s.lastTSIH == 0 {
			continue
		}
		if _, taken := s.sessions[s.lastTSIH]; !taken {
			break
		}
	}
	n.tsih = s.lastTSIH
	if !n.discovery() {
		if err := n.openNexus(); err != nil {
			return err
		}
		s.keys[n.key] = n
	}
	s.sessions[n.tsih] = n
	s.shares[n.share]++
	n.limitAge()
	s.stats.logins.Add(1)
	return nil
}

// forget removes an ended session.
func (s *Frontend) forget(n *session) {
	s.mu.Lock()
	delete(s.sessions, n.tsih)
	if s.shares[n.share]--; s.shares[n.share] == 0 {
		delete(s.shares, n.share)
	}
	if n.aged != nil {
		n.aged.Stop()
	}
	if s.keys[n.key] == n {
		delete(s.keys, n.key)
	}
	s.mu.Unlock()
	s.limits.sessions.Info(n.log(), "session ended", zap.NamedError("reason", n.endCause()), zap.Duration("age", time.Since(n.born)))
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
	var list []*session
	for _, x := range s.sessions {
		if n == nil || x.node == n {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b *session) int { return int(a.tsih) - int(b.tsih) })
	return list
}

// KillSession ends the session with the given TSIH. Its initiator is told
// (AsyncEvent 3), and usually logs in again.
func (s *Frontend) KillSession(tsih uint16) error {
	x := s.sessionByTSIH(tsih)
	if x == nil {
		return fmt.Errorf("target: there is no session %d", tsih)
	}
	x.dismiss(errKilled)
	return nil
}
