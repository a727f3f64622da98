package iscsi

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"softiser/internal/fsm"
	"softiser/internal/iscsi"
	"softiser/target/portal"
	"softiser/target/scsi"
	"softiser/target/volume"
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
var nextSession = fsm.Of([][]sessionState{
	sessionActive: {sessionEnding},
	sessionEnding: {sessionEnded},
	sessionEnded:  {},
})

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
// Each part has one job and owns the table that it needs for it: order puts the numbered PDUs
// into the order of their CmdSN (sequence), cmds keeps commands in slots (tagTable), conns
// adds and removes connections (members), manager carries out task management. The session
// itself keeps its state, and what its login has negotiated. session.mu guards all of the
// tables, because every command touches each of them.
//
// Lock order: Frontend.mu before session.mu before sender.mu before whatever the
// datamover locks. session.mu is held across the down-calls of the datamover
// except Push, never across calls into the device server. Methods of session, its parts,
// conn and task whose names end in Locked are called with it held, as are all methods of
// the tables; they never unlock it.
type session struct {
	srv     *Frontend
	node    *node // nil in discovery sessions
	key     sessionKey
	tsih    uint16
	user    string        // who the initiator has proved to be; "" without authentication
	account volume.Holder // charged for the staging memory that its writes hold
	bound   bool          // the access list says that its name is the user's
	share   shareKey
	known   bool        // authenticated, or named by an access list
	aged    *time.Timer // ends a discovery session; set under srv.mu
	params  iscsi.Params
	nexus   *scsi.Nexus      // nil in discovery sessions
	base    *zap.Logger      // of the leading connection
	kind    portal.Transport // of the leading connection, as it began
	erl     uint32           // error recovery level; above 0 the datamovers have an iscsi.Recovery
	born    time.Time
	broken  func(error)   // shut: ends it after a mistake of ours
	done    chan struct{} // closed when the session has ended

	order   delivery
	cmds    commands
	conns   membership
	manager taskManager

	counters sessionCounters
	still    atomic.Pointer[standstill] // it is to stand still, or cannot; nil: it goes on. Written under mu

	mu     sync.Mutex
	state  sessionState // guarded by mu
	doomed bool         // guarded by mu: it is about to end: what is lost is not kept
	left   bool         // guarded by mu: it is being logged out: no connection joins it
	cause  error        // guarded by mu: why it is ending
}

// assemble gives the parts their reference to s.
func (s *session) assemble() {
	s.order.sess, s.cmds.sess, s.conns.sess, s.manager.sess = s, s, s, s
}

func (s *session) discovery() bool { return s.node == nil }

// overRDMA reports whether the session is over iSER. It takes the lock, because the login of
// another connection asks while a text negotiation may be changing params.
func (s *session) overRDMA() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.params.RDMAExtensions
}

// setStateLocked is the only place where a session changes state. The caller holds
// s.mu.
func (s *session) setStateLocked(to sessionState) {
	if !nextSession.Has(s.state, to) {
		s.impossible("a session", s.state, to)
		return
	}
	s.state = to
	s.still.Load().look()
}

// ending reports whether the session is over, or on its way there: its last
// connection may have gone before anybody has called end.
func (s *session) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endingLocked()
}

// endingLocked is ending for a caller that holds s.mu.
func (s *session) endingLocked() bool { return s.doomed || s.state != sessionActive }

// openWindowLocked gives free places to the initiator. The caller holds s.mu.
func (s *session) openWindowLocked() { s.order.seq.win.update() }

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

// retain is how long tasks without a connection are kept: Time2Wait and Time2Retain (RFC
// 7143 §13.15, §13.16). The longer DefaultTime2Wait wins the negotiation, so an initiator
// could ask for an hour; the target's own settings bound it.
func (s *session) retain() time.Duration {
	own := s.settings()
	wait := min(s.params.DefaultTime2Wait, max(own.DefaultTime2Wait, own.DefaultTime2Retain))
	return time.Duration(wait+min(s.params.DefaultTime2Retain, own.DefaultTime2Retain)) * time.Second
}
