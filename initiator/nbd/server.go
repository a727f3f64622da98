package nbd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"softiser/initiator/blockio"
)

// Config is what a server is made of.
type Config struct {
	Exports []*Export
	// Depth is how many requests of one connection are under way at once.
	// Default 128.
	Depth int
	// Memory is how many bytes of payload buffers one connection may use.
	// Default 64 MiB; at least the largest request.
	Memory int
	// MaxConns is how many connections are served, those of kernel devices among them; more are
	// hung up on. Default DefaultMaxConns.
	MaxConns int
	// OnError, when set, is told why a connection ended other than by its
	// client's wish.
	OnError func(error)
	// OnDisconnect, when set, is told that a kernel device is being disconnected, by whomever:
	// once for each of its connections.
	OnDisconnect func()
}

// DefaultMaxConns is Config.MaxConns for clients alone.
const DefaultMaxConns = 64

// Server serves exports to NBD clients.
type Server struct {
	cfg     Config
	exports []*Export

	mu        sync.Mutex // guards the fields below
	conns     map[*conn]struct{}
	starting  map[net.Conn]struct{} // negotiating
	listeners map[net.Listener]struct{}
	closed    bool
	resting   bool           // connections are to stand
	wg        sync.WaitGroup // connections
}

// ErrServerClosed is returned by Serve after Shutdown.
var ErrServerClosed = errors.New("nbd: server closed")

// NewServer returns a server of cfg.Exports.
func NewServer(cfg Config) (*Server, error) {
	if cfg.Depth == 0 {
		cfg.Depth = 128
	}
	if cfg.Memory == 0 {
		cfg.Memory = 64 << 20
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = DefaultMaxConns
	}
	if cfg.Depth < 1 || cfg.Depth > 4096 {
		return nil, fmt.Errorf("nbd: depth %d must lie between 1 and 4096", cfg.Depth)
	}
	cfg.Memory = max(cfg.Memory, maxPayload)
	if len(cfg.Exports) == 0 {
		return nil, errors.New("nbd: nothing to export")
	}
	names := map[string]bool{}
	for _, e := range cfg.Exports {
		if len(e.Name) > maxName || names[e.Name] {
			return nil, fmt.Errorf("nbd: export name %q is too long or used twice", e.Name)
		}
		names[e.Name] = true
	}
	return &Server{
		cfg: cfg, exports: cfg.Exports, conns: map[*conn]struct{}{},
		starting: map[net.Conn]struct{}{}, listeners: map[net.Listener]struct{}{},
	}, nil
}

// export finds an export by name. The default export "" is the first one.
func (s *Server) export(name string) *Export {
	for _, e := range s.exports {
		if e.Name == name {
			return e
		}
	}
	if name == "" {
		return s.exports[0]
	}
	return nil
}

// acceptPause is how long Serve waits when a connection could not be accepted: descriptors may be short,
// or memory. Those that are served go on.
const acceptPause = 50 * time.Millisecond

// Serve accepts connections of l until Shutdown, or until somebody else closes l.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		l.Close()
		return ErrServerClosed
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	for failing := false; ; {
		nc, err := l.Accept()
		if err != nil {
			s.mu.Lock()
			closed := s.closed
			if closed || errors.Is(err, net.ErrClosed) {
				delete(s.listeners, l)
			}
			s.mu.Unlock()
			switch err = fmt.Errorf("nbd: accept: %w", err); {
			case closed:
				return ErrServerClosed
			case errors.Is(err, net.ErrClosed):
				return err
			case !failing:
				s.report(err)
			}
			failing = true
			time.Sleep(acceptPause)
			continue
		}
		failing = false
		if !s.begin(nc) {
			nc.Close()
			continue
		}
		go func() {
			defer s.end(nc)
			if err := s.serve(nc); err != nil {
				s.report(err)
			}
		}()
	}
}

// begin enters a connection, unless there are too many.
func (s *Server) begin(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns)+len(s.starting) >= s.cfg.MaxConns {
		return false
	}
	s.starting[nc] = struct{}{}
	s.wg.Add(1)
	return true
}

func (s *Server) end(nc net.Conn) {
	s.mu.Lock()
	delete(s.starting, nc)
	s.mu.Unlock()
	nc.Close()
	s.wg.Done()
}

// serve is the life of one connection.
func (s *Server) serve(nc net.Conn) error {
	nc.SetDeadline(time.Now().Add(handshakeTimeout))
	g := &negotiation{srv: s, rw: nc}
	a, err := g.run()
	if err != nil {
		return err
	}
	nc.SetDeadline(time.Time{})
	return s.transmit(nc, a)
}

// ServeKernel serves transmission on nc, without negotiation: the other end of
// a socket pair that the kernel was given. It returns when the kernel lets go. The
// connections of one device have one client: the kernel sends a flush on any of them.
func (s *Server) ServeKernel(nc net.Conn, e *Export, client *blockio.Flusher) error {
	if !s.begin(nc) {
		nc.Close()
		return ErrServerClosed
	}
	defer s.end(nc)
	return s.transmit(nc, agreed{export: e, kernel: true, client: client})
}

// transmit runs the transmission phase.
func (s *Server) transmit(nc net.Conn, a agreed) error {
	c, err := newConn(s, nc, a)
	if err != nil {
		return err
	}
	return s.run(c)
}

// run serves a connection until its end.
func (s *Server) run(c *conn) error {
	s.mu.Lock()
	delete(s.starting, c.nc)
	if s.closed {
		s.mu.Unlock()
		c.free()
		return nil
	}
	s.conns[c] = struct{}{}
	if s.resting {
		c.rest()
	}
	s.mu.Unlock()
	err := c.run()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	for o := range s.conns {
		if o.client == c.client { // it has connections yet
			return err
		}
	}
	c.client.End()
	return err
}

func (s *Server) report(err error) {
	if s.cfg.OnError != nil && !errors.Is(err, errAborted) && !quiet(err) {
		s.cfg.OnError(err)
	}
}

// Shutdown stops accepting, lets the requests that have been read finish and
// their replies leave, and hangs up. When ctx ends first, connections are cut;
// requests under way at the target still end before it returns, because their
// memory is on loan.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for l := range s.listeners {
		l.Close()
	}
	for nc := range s.starting {
		nc.Close()
	}
	for c := range s.conns {
		c.stopReading()
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for c := range s.conns {
		c.nc.Close()
	}
	s.mu.Unlock()
	<-done
	return context.Cause(ctx)
}
