package iscsi

import (
	"slices"
	"time"

	"softiser/internal/iscsi"
)

// members are the connections of a session (RFC 7143 §6.3, MC/S), and what has become of
// those that it had.
//
// session.mu guards it: its methods are called with that held.
type members struct {
	conns []*conn     // in the order in which they joined
	lost  []*lostConn // error recovery level 2: connections whose tasks live on
	past  pastConns   // what those that have gone had counted
}

// byCID finds a connection that has not been logged out.
func (m *members) byCID(cid uint16) *conn {
	for _, c := range m.conns {
		if c.cid == cid && !c.hungUp.Load() {
			return c
		}
	}
	return nil
}

// count is how many connections have not been logged out.
func (m *members) count() (n int) {
	for _, c := range m.conns {
		if !c.hungUp.Load() {
			n++
		}
	}
	return n
}

// speaker finds a connection in full feature phase on which the target may speak unasked: not
// one whose final Login Response has still to be sent.
func (m *members) speaker() *conn {
	for _, c := range m.conns {
		if c.state.get() == connFull && !c.quiet.Load() {
			return c
		}
	}
	return nil
}

// none reports whether no connection is left, not even a lost one.
func (m *members) none() bool { return len(m.conns) == 0 && len(m.lost) == 0 }

// remove takes a connection out that has ended.
func (m *members) remove(c *conn) {
	if i := slices.Index(m.conns, c); i >= 0 {
		m.conns = slices.Delete(m.conns, i, i+1)
		m.past.add(c)
	}
}

// lose keeps a connection that has ended, for the time given, after which late is called.
// If there are too many, the oldest one is forgotten and returned: its tasks must end.
func (m *members) lose(c *conn, most int, keep time.Duration, late func(*lostConn)) (oldest *conn) {
	l := &lostConn{c: c}
	if c.recovering {
		l.setStateLocked(recoverable)
	}
	l.timer = time.AfterFunc(keep, func() { late(l) })
	m.lost = append(m.lost, l)
	if len(m.lost) <= most {
		return nil
	}
	oldest = m.lost[0].c
	m.forget(m.lost[0])
	return oldest
}

// byLostCID finds a connection that was lost, the latest one.
func (m *members) byLostCID(cid uint16) *lostConn {
	for _, l := range slices.Backward(m.lost) {
		if l.c.cid == cid {
			return l
		}
	}
	return nil
}

// forget ends the wait for somebody who takes over the tasks of a lost connection; they
// end otherwise.
func (m *members) forget(l *lostConn) {
	l.end()
	m.lost = slices.DeleteFunc(m.lost, func(x *lostConn) bool { return x == l })
}

// close forgets all lost connections.
func (m *members) close() {
	for _, l := range m.lost {
		l.end()
	}
	m.lost = nil
}

// pastConns adds up what connections had counted that have left the session.
type pastConns struct {
	in, out, copied, rejects uint64
	dm                       iscsi.DatamoverStats
}

// add adds those of c. The caller holds sess.mu.
func (p *pastConns) add(c *conn) {
	n := &c.counters
	p.in += n.bytesIn
	p.out += n.bytesOut
	p.copied += n.bytesCopied.Load()
	p.rejects += n.rejects.Load()
	d := c.dm.Stats()
	p.dm.Add(&d)
}

// list returns the connections of the session.
func (m *membership) list() []*conn {
	m.sess.mu.Lock()
	defer m.sess.mu.Unlock()
	return slices.Clone(m.members.conns)
}

// speaker returns a connection in full feature phase, on which something that
// concerns the whole session can be said; nil when there is none.
func (m *membership) speaker() *conn {
	m.sess.mu.Lock()
	defer m.sess.mu.Unlock()
	return m.members.speaker()
}
