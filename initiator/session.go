package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"softiser/initiator/internal/inorder"
	"softiser/internal/iscsi"
)

// Session is one iSCSI session with one target, over iSER or TCP. It survives
// the loss of its connection: commands wait while it logs in again, and those
// that may be repeated are repeated. All methods are safe for concurrent use.
//
// Each part has one job: table keeps the command slots, backlog what waits to be sent, units the
// LUNs and whether they have to be inspected, caches what the target's write cache may have
// lost; taskManagement aborts commands, recovery logs in again, clock and watch see to
// time-outs, and outbox keeps what is done after the lock is released. One mutex guards them
// all, as an answer concerns most of them. PDUs from the target are handled by conn.
//
// Goroutines: the datamover's receive goroutine delivers answers and runs Done
// callbacks; watch.keep sees to the time-outs; recovery.run runs while there is no
// connection. Submit runs on the caller's goroutine.
type Session struct {
	cfg Config // completed by withDefaults; immutable

	ctx       context.Context // ends with Close; bounds recovery
	cancel    context.CancelFunc
	wg        sync.WaitGroup // watch.keep and recovery.run
	transport transport
	events    *inorder.Teller[Event]

	flowing atomic.Bool // state is StateActive; read without mu when a path is chosen

	// mu guards everything below and the tasks. It may be held across
	// SendControl and ReleaseTask of the datamover, never across Push, Terminate
	// or a Done callback. No other lock of this package is held when it is taken.
	mu      sync.Mutex
	state   State
	resting bool   // nothing is sent; see rest.go
	err     error  // why the session failed or was closed
	conn    *conn  // nil while there is none
	last    *login // outcome of the last login
	win     iscsi.SenderWindow
	tasks   table
	wait    backlog        // what is to be sent
	units   units          // its LUNs, and whether they have been looked at
	tm      taskManagement // what is being aborted
	rec     recovery       // what looks for the target
	clock   clock
	watch   watch  // its time-outs
	out     outbox // what is to be done without the lock
	caches  caches // what the target may have lost
	portal  string // where the target sent us (redirection), or cfg.Address
	stats   Stats
	pdu     iscsi.PDU // scratch of send
}

// Dial connects and logs in to cfg.TargetName at cfg.Address; ctx bounds that alone, not the life
// of the session. The caller closes the session. Errors are *ConfigError, *LoginError,
// ErrNoConnection and what is wrong with Config.Carried.
func Dial(ctx context.Context, cfg Config) (*Session, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(false); err != nil {
		return nil, err
	}
	s := newSession(cfg)
	connect, taken := s.connect, len(cfg.Carried) > 0
	if taken {
		connect = func(context.Context) (*conn, error) { return s.takeUp(cfg.Carried[0]) }
	}
	c, err := connect(ctx)
	if err != nil {
		s.cancel()
		return nil, errors.Join(err, s.transport.close())
	}
	s.mu.Lock()
	if !s.adopt(c) {
		err := c.dead
		s.setState(StateFailed)
		s.unlock()
		s.cancel()
		return nil, errors.Join(fmt.Errorf("initiator: %s: connection lost right after login: %w", cfg.URL(), err), s.transport.close())
	}
	c.setState(connFlowing)
	s.setState(StateActive)
	s.event(Event{Kind: EventConnected, Detail: c.dm.Describe()})
	s.wg.Add(1)
	go s.watch.keep()
	s.unlock()
	if taken {
		c.dm.Start(c)
	}
	return s, nil
}

func newSession(cfg Config) *Session {
	s := &Session{
		cfg: cfg, portal: cfg.Address, events: inorder.New(cfg.OnEvent),
		clock: clock{begun: time.Now(), wake: make(chan struct{}, 1)},
	}
	s.tasks = newTable(s, cfg.QueueDepth)
	s.wait.tasks = &s.tasks
	s.wait.forget()
	s.units.s, s.tm.s, s.rec.s, s.watch.s, s.caches.s = s, s, s, s, s
	s.transport = transport{cfg: &s.cfg, fell: func(err error) {
		s.mu.Lock()
		s.event(Event{Kind: EventFallback, Err: err})
		s.unlock()
	}}
	// The session outlives the context of Dial.
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// State returns where the session is, and why when it has failed or is down.
func (s *Session) State() (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.err
}

// Close waits for what is outstanding, logs out and closes the session. What
// has not ended within LogoutTimeout, or is waiting for a lost connection, ends
// with ErrClosed. Closing twice is harmless; closing from inside a Done callback
// would wait for itself.
func (s *Session) Close() error {
	s.mu.Lock()
	switch s.state {
	case StateClosing, StateClosed:
		s.mu.Unlock()
		return nil
	case StateFailed:
		s.setState(StateClosed)
		s.unlock()
		s.cancel()
		s.wg.Wait()
		return s.transport.close()
	}
	c := s.conn
	if s.rec.runs() {
		c = nil // the connection belongs to recovery, which closes it
	}
	s.setState(StateClosing)
	s.unlock()

	var err error
	if c != nil {
		err = logout{c}.run()
	}
	s.cancel() // ends both goroutines, and a login that recovery is trying
	s.wg.Wait()

	s.mu.Lock()
	s.failAll(ErrClosed)
	s.setState(StateClosed)
	s.event(Event{Kind: EventClosed})
	s.unlock()
	s.events.Wait()
	return errors.Join(err, s.transport.close())
}
