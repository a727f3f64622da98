package iscsi

import (
	"syscall"
	"time"

	"softiser/internal/iser"
	"softiser/internal/sockio"
	"softiser/rdma"
)

// endingGrace is how long a login waits for what its initiator has left behind.
const endingGrace = 5 * time.Second

// awaitEnding waits, within reason, until the sessions that the initiator of n has
// already closed are over. An initiator may close its connections without logout
// and log in again at once, under another ISID even (libiscsi draws one for each
// login): no session reinstatement then, but the new session must not run into
// what the loss of the old nexus ends (RESERVE, prevented removal, tasks), only
// because the end of another connection is noticed later than a login. c is the
// connection of the new session.
func (s *Frontend) awaitEnding(n *session, c *conn) {
	if n.discovery() {
		return
	}
	grace := time.NewTimer(endingGrace)
	defer grace.Stop()
	wait := func(over <-chan struct{}) bool {
		select {
		case <-over:
			return true
		case <-c.ended:
		case <-grace.C:
		}
		return false
	}
	s.mu.Lock()
	kin := s.sessions.kin.of(n)
	s.mu.Unlock()
	over, closed, _ := endsOf(kin)
	for _, m := range closed {
		if !wait(m.c.ended) {
			return
		}
		over = append(over, m.sess)
	}
	for _, x := range over {
		if x.ending() && !wait(x.done) {
			return
		}
	}
}

// member is a connection of a session.
type member struct {
	sess *session
	c    *conn
}

// endsOf returns the sessions of all that are over, or on their way there, and the connections
// of all that their initiator has ended, perhaps before we have taken notice. It takes few
// system calls, however many there are.
func endsOf(all []*session) (over []*session, closed []member, calls int) {
	var asked []member // with a socket
	var sockets []syscall.RawConn
	for _, x := range all {
		x.mu.Lock()
		if x.endingLocked() {
			over = append(over, x)
		}
		for _, c := range x.conns.members.conns {
			switch m := (member{x, c}); {
			case c.raw != nil:
				asked, sockets = append(asked, m), append(sockets, c.raw)
			case c.queuePairEnded():
				closed = append(closed, m)
			}
		}
		x.mu.Unlock()
	}
	calls = sockio.PeersClosed(sockets, func(i int) { closed = append(closed, asked[i]) })
	return over, closed, calls
}

// queuePairEnded reports whether that of a connection over RoCE has ended.
func (c *conn) queuePairEnded() bool {
	dm, ok := c.dm.(*iser.Conn)
	return ok && dm.QP().State() != rdma.StateRTS
}
