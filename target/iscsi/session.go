package iscsi

import (
	"softiser/target/internal/loglimit"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
	"softiser/target/scsi"
)

// sessionState is where a session is in its life:
//
//	active ──connection lost, logout, reinstatement, Kill──▶ ending ──last task ended──▶ ended
//
// A session is made by the final Login Response of its leading connection; there
// is no other beginning. Below error recovery level 2 the loss of any of its
// connections ends it (RFC 7143 §7.1.4.4): what was under way on that one could
// not be told apart from what never arrived. At level 2 it stays, even without
// a connection, as long as tasks of lost ones are kept (see cleanupState). A
// connection that logs out goes alone, unless it is the last one.
type sessionState uint8

const (
	sessionActive sessionState = iota
	sessionEnding              // tasks are being aborted; no new ones are accepted
	sessionEnded               // the I_T nexus is gone
)

// nextSession is the drawing as a table.
var nextSession = moves[sessionState]{
	sessionActive: {sessionEnding},
	sessionEnding: {sessionEnded},
	sessionEnded:  {},
}

func (s sessionState) String() string {
	return [...]string{"active", "ending", "ended"}[s]
}

// sessionKey identifies a session for reinstatement (RFC 7143 §6.3.5): the
// initiator port (name and ISID) and the target portal group of one target. Who has
// authenticated is no part of it, because there is one I_T nexus of these names; but
// nobody else comes in under the name (see checkOwnerLocked).
type sessionKey struct {
	initiator string
	isid      iscsi.ISID
	target    string // "" for discovery sessions
	group     uint16
}

// session is one I_T nexus, or a discovery session.
//
// Lock order: Frontend.mu before session.mu before conn.mu before whatever the
// datamover locks. session.mu is held across the down-calls of the datamover
// except Push, never across calls into the device server.
type session struct {
	srv    *Frontend
	node   *node // nil in discovery sessions
	key    sessionKey
	tsih   uint16
	user   string // who the initiator has proved to be; "" without authentication
	bound  bool   // the access list says that its name is the user's
	share  shareKey
	known  bool        // authenticated, or named by an access list
	aged   *time.Timer // ends a discovery session; set under srv.mu
	params iscsi.Params
	nexus  *scsi.Nexus // nil in discovery sessions
	base   *zap.Logger // of the leading connection
	many   bool        // several connections are possible: delivery takes turns
	erl    uint32      // error recovery level; above 0 the datamovers have an iscsi.Recovery
	born   time.Time
	done   chan struct{} // closed when the session has ended

	counters sessionCounters
	requests loglimit.Limit // of task management
	managing atomic.Int32   // task management functions that have not been answered

	mu     sync.Mutex
	state  sessionState // guarded by mu
	seq    sequence     // guarded by mu
	tags   tagTable     // guarded by mu
	conns  []*conn      // guarded by mu: in the order in which they joined
	lost   []*lostConn  // guarded by mu: level 2: connections whose tasks live on
	doomed bool         // guarded by mu: it is about to end: what is lost is not kept
	past   pastConns    // guarded by mu: what connections that have gone had counted
	cause  error        // guarded by mu: why it is ending
}

func (s *session) discovery() bool { return s.node == nil }

// setState is the only place where a session changes state. The caller holds
// s.mu.
func (s *session) setState(to sessionState) {
	if !nextSession.legal(s.state, to) {
		s.impossible("session", s.state, to)
		return
	}
	s.state = to
}

// ending reports whether the session is over, or on its way there: its last
// connection may have gone before anybody has called end.
func (s *session) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doomed || s.state != sessionActive
}

// openWindow gives free places to the initiator. The caller holds s.mu.
func (s *session) openWindow() { s.seq.win.update() }

// end begins to end the session: nothing new is accepted and every task is
// aborted. When the last one has ended, the nexus goes and done is closed. The
// connections must be closed by the caller (see shut), or be closed already. It
// may be called several times; the first cause counts.
func (s *session) end(cause error) {
	s.mu.Lock()
	if s.state != sessionActive {
		s.mu.Unlock()
		return
	}
	s.setState(sessionEnding)
	s.cause = cause
	held := s.seq.close()
	for _, l := range s.lost {
		l.timer.Stop()
		l.c.discardKept()
	}
	s.lost = nil
	var doomed []*task
	s.tags.each(func(k *task) { doomed = append(doomed, k) })
	calls := s.abortLocked(doomed, nil)
	over := s.over()
	s.mu.Unlock()
	for _, h := range held {
		h.release()
	}
	calls.run()
	if over {
		s.finish()
	}
}

// over reports whether an ending session has lost its last task, once. The
// caller holds s.mu.
func (s *session) over() bool {
	if s.state == sessionEnding && s.seq.win.used == 0 {
		s.setState(sessionEnded)
		return true
	}
	return false
}

// finish is the end of a session, without locks held: I_T nexus loss.
func (s *session) finish() {
	s.node.endNexus(s.nexus)
	s.srv.forget(s)
	close(s.done)
}

// doneLocked reports whether nothing uses the slot any more; then it is the caller's, who
// settles it without sess.mu, which he holds now.
func (k *task) doneLocked() bool {
	if k.state != taskEnded || k.moving > 0 || k.pins > 0 {
		return false
	}
	k.pins++
	k.sess.dropBurst(k)
	return true
}

// settle gives back what a slot that is done holds, and then the slot itself.
func (k *task) settle() {
	s := k.sess
	if k.executed {
		k.executed = false
		k.scsi.Release()
	}
	s.mu.Lock()
	k.pins--
	var fences []*fence
	if len(k.fences) > 0 {
		fences = append(fences, k.fences...)
	}
	s.putBack(k)
	over := s.over()
	hidden := s.state == sessionActive && s.seq.win.hidden()
	s.mu.Unlock()
	for _, f := range fences {
		f.release()
	}
	if hidden {
		s.announceWindow()
	}
	if over {
		s.finish()
	}
}

// openNexus registers the I_T nexus of the session.
func (s *session) openNexus() (err error) {
	s.nexus, err = s.node.device.NewNexus(scsi.NexusConfig{Initiator: s.key.initiator, ISID: s.key.isid, User: s.user, RelPort: s.key.group,
		Queries: s.params.ProtocolLevel >= 2})
	return err
}

// endCause is why the session has ended; nil after logout.
func (s *session) endCause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// log returns the logger of the leading connection with the names that belong to
// the session.
func (s *session) log() *zap.Logger {
	return s.base.With(zap.Uint16("tsih", s.tsih), zap.String("initiator", s.key.initiator), zap.String("target", s.key.target))
}

// settings are what the target negotiates with this session.
func (s *session) settings() iscsi.Settings {
	if s.discovery() {
		return s.srv.cfg.Session.settings()
	}
	return s.node.session().settings()
}

// owes says what the initiator has owed c since before the given time: the data of
// a WRITE, or a command of the session without which the later ones cannot be
// delivered. It returns nil when there is nothing.
func (s *session) owes(c *conn, before time.Duration) error {
	if s.srv.cfg.Timeouts.DataOut < 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seq.n > 0 && s.seq.since < before {
		return errGap
	}
	late := false
	s.tags.each(func(k *task) {
		late = late || k.conn() == c && (k.state == taskCollecting && k.started < before || k.out.running && k.out.since < before)
	})
	if late {
		return errDataTimeout
	}
	return nil
}
