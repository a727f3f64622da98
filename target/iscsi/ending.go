package iscsi

import (
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
	for _, x := range s.sessionList(n.node) {
		if x.key.initiator != n.key.initiator {
			continue
		}
		for _, o := range x.conns.list() {
			if o.peerClosed() && !wait(o.ended) {
				return
			}
		}
		if x.ending() && !wait(x.done) {
			return
		}
	}
}

// peerClosed reports whether the initiator has ended the connection, perhaps before we have
// taken notice.
func (c *conn) peerClosed() bool {
	if c.raw != nil {
		return sockio.PeerClosed(c.raw)
	}
	dm, ok := c.dm.(*iser.Conn)
	return ok && dm.QP().State() != rdma.StateRTS
}
