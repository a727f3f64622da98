package target

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
	"softiser/target/scsi"
)

// ErrServerClosed is returned by Serve after Shutdown.
var ErrServerClosed = errors.New("target: the server has been shut down")

// serverState is where a server is in its life:
//
//	new ──Listen──▶ listening ──Shutdown──▶ draining ──connections gone──▶ stopped
type serverState uint8

const (
	serverNew serverState = iota
	serverListening
	serverDraining
	serverStopped
)

func (s serverState) String() string {
	return [...]string{"new", "listening", "draining", "stopped"}[s]
}

// Server serves targets on portals. Its methods are safe for concurrent use.
type Server struct {
	cfg      Config
	log      *zap.Logger
	epoch    time.Time
	portals  []*portal
	pending  pendingSet
	bursts   burstPool
	units    scsi.Units      // of all targets
	rdma     *iser.Device    // nil when no portal speaks iSER
	life     context.Context // done when Shutdown begins
	endLife  context.CancelFunc
	stats    serverCounters
	refusals refusals
	limits   struct{ aborted, reject, protocol, sessions logLimit }

	mu       sync.Mutex
	state    serverState             // guarded by mu
	nodes    []*node                 // guarded by mu; replaced, never changed in place
	removed  map[string]ACL          // guarded by mu: names of targets that were taken away, and who might use them
	leaving  []*node                 // guarded by mu: taken away, but commands still hold their volumes
	sessions map[uint16]*session     // guarded by mu, by TSIH
	keys     map[sessionKey]*session // guarded by mu
	shares   map[shareKey]int        // guarded by mu: sessions, by whose share they are of
	room     Limits                  // guarded by mu: as SetLimits has left them; Commands and TextData are cfg's
	conns    map[*conn]struct{}      // guarded by mu
	lastTSIH uint16                  // guarded by mu

	wg      sync.WaitGroup // accept loops and start-ups
	stopped chan struct{}  // closed when Shutdown is done
	drained atomic.Bool    // state >= serverDraining
}

// New checks the configuration and makes a server. It does not listen yet.
func New(cfg Config) (*Server, error) {
	cfg.Portals = slices.Clone(cfg.Portals)
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg:      cfg,
		log:      cfg.Log,
		epoch:    time.Now(),
		removed:  map[string]ACL{},
		bursts:   burstPool{memory: cfg.Staging},
		sessions: map[uint16]*session{},
		keys:     map[sessionKey]*session{},
		shares:   map[shareKey]int{},
		conns:    map[*conn]struct{}{},
		stopped:  make(chan struct{}),
	}
	for _, l := range []*logLimit{&s.limits.aborted, &s.limits.reject, &s.limits.protocol} {
		l.every = time.Second
	}
	s.refusals.init(cfg.Log)
	// A thousand initiators that come back after a power cut are told of in full
	// before long; one that comes and goes for ever is not.
	s.limits.sessions.every, s.limits.sessions.burst = 100*time.Millisecond, 1024
	s.SetLimits(cfg.Limits)
	s.life, s.endLife = context.WithCancel(context.Background())
	for _, p := range cfg.Portals {
		s.portals = append(s.portals, newPortal(s, p))
		if !p.NoISER && s.rdma == nil {
			var err error
			if s.rdma, err = iser.Open(iser.Config{}); err != nil {
				return nil, fmt.Errorf("target: RDMA: %w", err)
			}
		}
	}
	return s, nil
}

// now is the time since the server was made; it is monotonic and cheap.
func (s *Server) now() time.Duration { return time.Since(s.epoch) }

func (s *Server) draining() bool { return s.drained.Load() }

// Listen opens the portals. Serve does it if it has not been done; calling it
// first makes errors and addresses known early. When a portal cannot be opened
// none is.
func (s *Server) Listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != serverNew {
		return nil
	}
	for i, p := range s.portals {
		if err := p.listen(); err != nil {
			for _, q := range s.portals[:i] {
				q.close()
			}
			return err
		}
	}
	s.state = serverListening
	return nil
}

// SetLimits changes how many sessions and connections before login there may be, and
// whose they are; Commands and TextData stay. Sessions that are there already stay, too.
func (s *Server) SetLimits(l Limits) {
	l.fill()
	if asked := l; l.fit() {
		s.log.Warn("the limit of open files leaves room for fewer sessions than configured; raise it (LimitNOFILE, ulimit -n)",
			zap.Int("sessions", l.Sessions), zap.Int("sessions_configured", asked.Sessions),
			zap.Int("pending_logins", l.PendingLogins), zap.Int("pending_logins_configured", asked.PendingLogins))
	}
	s.mu.Lock()
	s.room = l
	s.mu.Unlock()
	s.pending.limit(l.PendingLogins, l.PendingPerAddress)
}

// Addrs returns the addresses of the portals, in the order of Config.Portals;
// those that do not listen are left out.
func (s *Server) Addrs() []string {
	var as []string
	for _, p := range s.portals {
		if a, ok := p.bound(); ok {
			as = append(as, a.String())
		}
	}
	return as
}

// Serve listens and serves until ctx is done or Shutdown is called. When ctx is
// done it shuts down by itself, within Timeouts.Drain, and returns nil.
func (s *Server) Serve(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.state != serverListening {
		s.mu.Unlock()
		return ErrServerClosed
	}
	for _, p := range s.portals {
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			p.accept()
		}()
	}
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeouts.Drain)
		defer cancel()
		if err := s.Shutdown(drain); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return nil
	case <-s.stopped:
		return ErrServerClosed
	}
}

// lookup finds a target by name, and who may use it; removed says that it was there
// once.
func (s *Server) lookup(name string) (n *node, acl ACL, removed bool) {
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
func (s *Server) nodeList() []*node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes
}

func (s *Server) sessionByTSIH(tsih uint16) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[tsih]
}

// register enters a new session. An older one of the same initiator port is
// ended first (session reinstatement, RFC 7143 §6.3.5): the new one begins only
// when the old tasks are over and the nexus is lost. c is its leading connection.
func (s *Server) register(n *session, c *conn) error {
	s.awaitEnding(n, c)
	deadline := afterLogin(s)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		if s.state >= serverDraining {
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
		s.limits.sessions.info(old.log(), "session reinstatement: the old session ends", zap.Stringer("new_connection", c.remote))
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
func afterLogin(s *Server) *time.Timer { return time.NewTimer(max(s.cfg.Timeouts.Login, time.Second)) }

// enterLocked gives n a TSIH and its nexus. The caller holds s.mu.
func (s *Server) enterLocked(n *session) error {
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
func (s *Server) forget(n *session) {
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
	s.limits.sessions.info(n.log(), "session ended", zap.NamedError("reason", n.endCause()), zap.Duration("age", time.Since(n.born)))
}

func (s *Server) addConn(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != serverListening {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) dropConn(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// sessionList returns the sessions, of one target when n is not nil.
func (s *Server) sessionList(n *node) []*session {
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
func (s *Server) KillSession(tsih uint16) error {
	x := s.sessionByTSIH(tsih)
	if x == nil {
		return fmt.Errorf("target: there is no session %d", tsih)
	}
	x.dismiss(errKilled)
	return nil
}
