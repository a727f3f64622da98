package iscsi

import (
	"time"

	"softiser/internal/fsm"
)

// cleanupState is where a connection is between its end and that of its tasks, at
// error recovery level 2 (RFC 7143 §7.1.4.3, §8.2):
//
//	            connection lost                logout for recovery, of its CID;
//	(conn) ──────────────────────▶ cleanupWait ─ or a login with that CID ──▶ recoverable
//	   └──────── logout for recovery while it was there ──────────────────────▶ │
//	                                    │ time-out                              │ time-out
//	                                    └──────────▶ tasks are aborted ◀────────┘
//
// Only in recoverable may its tasks be reassigned. The time-out is Time2Wait and
// Time2Retain together, and begins anew with the logout.
type cleanupState uint8

const (
	cleanupWait cleanupState = iota
	recoverable
)

// nextCleanup is the drawing as a table; the end of a lost connection is no state.
var nextCleanup = fsm.Of([][]cleanupState{
	cleanupWait: {recoverable},
	recoverable: {},
})

func (s cleanupState) String() string { return [...]string{"cleanup wait", "recoverable"}[s] }

// lostConn is a connection that has ended and whose tasks live on. Those that run
// go on as far as they can without a connection: data and status of what has been
// answered stay with its datamover (iscsi.Recovery), data that could not be given
// to it stays with the task (putState, getState). Guarded by session.mu.
type lostConn struct {
	c     *conn
	state cleanupState
	timer *time.Timer
}

// setStateLocked is the only place where a lost connection changes state. The caller
// holds sess.mu.
func (l *lostConn) setStateLocked(to cleanupState) {
	if !nextCleanup.Has(l.state, to) {
		l.c.sess.impossible("a lost connection", l.state, to)
		return
	}
	l.state = to
}

// loggedOut ends the wait for the logout. The tasks get the time to be reassigned once.
func (l *lostConn) loggedOut(keep time.Duration) {
	if l.state == recoverable {
		return
	}
	l.setStateLocked(recoverable)
	l.timer.Reset(keep)
}

// end gives up what is kept for it.
func (l *lostConn) end() {
	l.timer.Stop()
	l.c.discardKept()
}
