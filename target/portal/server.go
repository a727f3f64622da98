package portal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"softiser/internal/fsm"
	"softiser/rdma"
)

// ErrServerClosed is returned by Serve after Shutdown.
var ErrServerClosed = errors.New("target: the server has been shut down")

// ErrVolumesHeld is the error of a Shutdown, and of a Frontend's Close, that has not waited
// any longer for storage: some volume is still in use and may not be closed.
var ErrVolumesHeld = errors.New("volumes do not answer")

var errNoPortal = errors.New("target: no portal configured: set Config.Portals, for example {Listen: \"127.0.0.1:3260\"}")

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

// nextServer is the drawing as a table. A server that has not listened may be shut down, too.
var nextServer = fsm.Of([][]serverState{
	serverNew:       {serverListening, serverDraining},
	serverListening: {serverDraining},
	serverDraining:  {serverStopped},
	serverStopped:   {},
})

// toLocked is the only writer of the state. A transition that the table does not have is a
// mistake of ours, and is not made. The caller holds s.mu.
func (s *Server) toLocked(to serverState) {
	if !nextServer.Has(s.state, to) {
		s.log.Error("a state was not changed", zap.Error(fsm.Illegal("target", "a server", s.state, to)))
		return
	}
	s.state = to
}

func (s serverState) String() string {
	return [...]string{"new", "listening", "draining", "stopped"}[s]
}

// ServerConfig describes a Server. Times may be negative: no limit.
type ServerConfig struct {
	Portals    []Config
	FirstBytes time.Duration // from accept until the transport is ready
	Drain      time.Duration // how long Serve, when its context is done, waits for peers to leave
	Storage    time.Duration // how long Shutdown then waits for volumes; 0: no limit
	Log        *zap.Logger
}

// Server listens on portals and hands each connection to the front end of its protocol. Its
// methods are safe for concurrent use.
type Server struct {
	cfg     ServerConfig
	log     *zap.Logger
	epoch   time.Time
	portals []*Portal
	fronts  map[Protocol]Frontend // not changed after Listen
	pending pendingSet

	mu    sync.Mutex
	state serverState  // guarded by mu
	roce  *rdma.Device // guarded by mu: of the portals for RoCE; nil: there is none

	wg      sync.WaitGroup // accept loops and start-ups
	gone    chan struct{}  // closed when Shutdown has seen all peers off
	ended   sync.Once
	stopped chan struct{} // closed when no volume is in use any more
}

// NewServer checks the configuration and makes a server. It does not listen yet.
func NewServer(cfg ServerConfig) (*Server, error) {
	if len(cfg.Portals) == 0 {
		return nil, errNoPortal
	}
	s := &Server{cfg: cfg, log: cfg.Log, epoch: time.Now(), fronts: map[Protocol]Frontend{}, gone: make(chan struct{}), stopped: make(chan struct{})}
	for _, p := range cfg.Portals {
		if err := p.fill(); err != nil {
			return nil, err
		}
		s.portals = append(s.portals, newPortal(s, p))
	}
	return s, nil
}

// Handle registers the front end of a protocol. It is called before Listen, once for each
// protocol that a Hello may name.
func (s *Server) Handle(p Protocol, f Frontend) { s.fronts[p] = f }

// accept gives a connection to the front end of its protocol.
func (s *Server) accept(c *Conn) error {
	f := s.fronts[c.Protocol]
	if f == nil {
		return fmt.Errorf("%v is not served here", c.Hello)
	}
	return f.Accept(c)
}

// Portals returns the portals, in the order of ServerConfig.Portals.
func (s *Server) Portals() []*Portal { return s.portals }

// SetLimits sets how many connections may wait for their login: in all, and, once more than
// half of those places are taken, from one address. Existing connections stay.
func (s *Server) SetLimits(pending, perAddress int) { s.pending.limit(pending, perAddress) }

// Limits returns what SetLimits has set.
func (s *Server) Limits() (pending, perAddress int) {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	return s.pending.max, s.pending.share
}

// Pending returns how many connections have not finished their login.
func (s *Server) Pending() int { return s.pending.len() }

// State says where the server is in its life, and since when there has been one.
func (s *Server) State() (state string, uptime time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.String(), time.Since(s.epoch)
}

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
			return errors.Join(err, s.closeRoCELocked())
		}
	}
	s.toLocked(serverListening)
	return nil
}

// Addrs returns the addresses of the portals, in the order of Config.Portals;
// those that do not listen are left out.
func (s *Server) Addrs() []string {
	var as []string
	for _, p := range s.portals {
		if a, ok := p.Bound(); ok {
			as = append(as, a.String())
		}
	}
	return as
}

// Serve listens and serves until ctx is done or Shutdown is called. When ctx is
// done it shuts down by itself, within ServerConfig.Drain and Storage, and returns nil, or
// why volumes could not be flushed.
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
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Drain)
		defer cancel()
		err, _ := s.shutdown(drain) // peers that were cut off are no failure
		return err
	case <-s.stopped:
		return ErrServerClosed
	}
}

// Shutdown ends the server in an orderly way: it stops listening, asks every peer to
// leave, and waits until they have done so or ctx is done. Then the connections that are
// left are closed, their commands end, and every volume is flushed. The error is
// ctx.Err() when peers had to be cut off, or what went wrong in a flush.
//
// Storage that does not answer is waited for until ServerConfig.Storage has passed as
// well. Then the error is ErrVolumesHeld and names the volumes; the others have been
// flushed. Shutdown may be called again to wait for the rest: while it returns
// ErrVolumesHeld no volume may be closed.
func (s *Server) Shutdown(ctx context.Context) error { return errors.Join(s.shutdown(ctx)) }

// shutdown is Shutdown; cut says that peers did not leave in time.
func (s *Server) shutdown(ctx context.Context) (err, cut error) {
	s.mu.Lock()
	if s.state >= serverDraining {
		s.mu.Unlock()
		select {
		case <-s.gone:
		case <-ctx.Done():
		}
		select {
		case <-s.gone:
			return s.end(ctx), nil
		default:
			return ErrVolumesHeld, nil
		}
	}
	s.toLocked(serverDraining)
	s.mu.Unlock()

	for _, p := range s.portals {
		p.close()
	}
	s.pending.evictAll()
	cut = s.eachFront(func(f Frontend) error { return f.Drain(ctx) })
	s.wg.Wait()
	close(s.gone)
	patience := context.WithoutCancel(ctx)
	if s.cfg.Storage > 0 {
		var cancel func()
		patience, cancel = context.WithTimeout(patience, s.cfg.Storage)
		defer cancel()
	}
	err = s.end(patience)
	switch {
	case errors.Is(err, ErrVolumesHeld):
		s.log.Error("storage does not answer; the shutdown has not waited any longer", zap.Error(err))
		go s.end(context.Background()) //nolint:errcheck // whoever calls Shutdown again is told
	case err != nil:
		s.log.Error("a volume could not be flushed", zap.Error(err))
	}
	return err, cut
}

// end has the front ends close, which is the end of the server once no volume is in use.
func (s *Server) end(ctx context.Context) error {
	err := s.eachFront(func(f Frontend) error { return f.Close(ctx) })
	if errors.Is(err, ErrVolumesHeld) {
		return err
	}
	s.ended.Do(func() {
		s.mu.Lock()
		s.toLocked(serverStopped)
		err = errors.Join(err, s.closeRoCELocked())
		s.mu.Unlock()
		close(s.stopped)
		s.log.Info("stopped")
	})
	return err
}

// eachFront calls f for all front ends at once and joins the errors.
func (s *Server) eachFront(f func(Frontend) error) error {
	var wg sync.WaitGroup
	errs := make([]error, 0, len(s.fronts))
	for _, fe := range s.fronts {
		errs = append(errs, nil)
		err := &errs[len(errs)-1]
		wg.Go(func() { *err = f(fe) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
