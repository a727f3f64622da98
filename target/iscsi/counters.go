package iscsi

import (
	"sync/atomic"

	"softiser/internal/spc"
)

// Counters are written where things happen and read by Status. They are grouped by writer: what
// one connection counts is written by few goroutines. What each command counts while it holds
// sess.mu is guarded by that, the rest are atomics.

type serverCounters struct {
	logins, loginsAborted  atomic.Uint64
	noRoom, discoveryEnded atomic.Uint64 // of the session table

	// Recovery; see RecoveryStatus.
	reinstated, connReinstated, connLost, reassigned atomic.Uint64
}

func (c *serverCounters) recovery() RecoveryStatus {
	return RecoveryStatus{Sessions: c.reinstated.Load(), Connections: c.connReinstated.Load(), Lost: c.connLost.Load(), Tasks: c.reassigned.Load()}
}

type connCounters struct {
	bytesIn, bytesOut       uint64        // payload of SCSI commands; guarded by sess.mu
	bytesCopied             atomic.Uint64 // of it
	rejects, protocolErrors atomic.Uint64
}

type sessionCounters struct {
	reads, writes, others     uint64 // commands answered; guarded by sess.mu
	failed                    uint64 // of them: with a status that is not GOOD; guarded by sess.mu
	aborted                   atomic.Uint64
	taskRequests              atomic.Uint64
	noMemory                  atomic.Uint64 // commands answered with BUSY for want of staging memory
	outOfWindow, strayDataOut atomic.Uint64 // PDUs dropped silently
}

// countLocked books an answered command. The caller holds sess.mu.
func (m *commands) countLocked(k *task) {
	s, c := m.sess, k.conn()
	c.clock = s.srv.now()
	took := c.clock - k.started
	switch {
	case k.has(flagRead):
		s.counters.reads++
		k.scsi.Observe(took, false)
	case k.has(flagWrite):
		s.counters.writes++
		k.scsi.Observe(took, true)
	default:
		s.counters.others++
	}
	if k.scsi.Status != spc.StatusGood {
		s.counters.failed++
	}
}
