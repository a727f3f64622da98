package iscsi

import (
	"errors"
	"net/netip"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/peerorigin"
	"softiser/target/volume"
)

// The session table is shared by peers of whom most are honest and none need be
// (ADR 102):
//
//   - Once it is more than half full, a holder has a share of it for each kind of session.
//     A holder is a user who has proved himself, or else the origin of the connection.
//   - The last places are reserved for initiators that are known: authenticated, or named
//     by an access list.
//   - Discovery sessions make room. They end at a certain age, the oldest of a holder's when
//     it wants one beyond its share, and the oldest of all when the table is full.

var (
	errDiscoveryAge  = errors.New("the discovery session is as old as one may get")
	errDiscoveryRoom = errors.New("the discovery session makes room for another session")
)

// shareKey says of whose share a session is.
type shareKey struct {
	node      *node // of user
	user      string
	origin    netip.Prefix // without a user
	discovery bool
}

// shareOf is the share of a session whose leading connection is c.
func shareOf(n *node, user string, c *conn) shareKey {
	k := shareKey{discovery: n == nil}
	if user != "" {
		k.node, k.user = n, user
	} else {
		k.origin = peerorigin.Of(c.remote.Addr())
	}
	return k
}

// accountOf says on whose account the writes of a session whose leading connection is c have staging memory.
func accountOf(user string, c *conn) volume.Holder {
	return volume.Holder{Origin: peerorigin.Of(c.remote.Addr()), Proved: user}
}

// knows reports whether the list names the initiator, rather than letting in everybody
// from somewhere.
func (a ACL) knows(initiator string, from netip.Addr) bool {
	from = from.Unmap().WithZone("")
	for _, r := range a {
		if r.namesSome() && r.names(initiator) && (!r.Network.IsValid() || r.Network.Contains(from)) {
			return true
		}
	}
	return false
}

// knownTo reports whether the initiator of a login is known to the target, or to the
// server for a discovery session.
func (l *loginPhase) knownTo(n *node, initiator, user string) bool {
	acl := l.c.srv.cfg.DiscoveryACL
	if n != nil {
		acl = n.access.Load().ACL
	}
	return user != "" || acl.knows(initiator, l.c.remote.Addr())
}

// placeFor decides whether there is a place for n. If victim is not nil, it has to end first.
// A stranger is one whom no target knows, where targets know others: the last places are for those.
func (t *sessionTable) placeFor(n *session, stranger bool) (victim *session, err error) {
	l := &t.room
	total := len(t.tsihs)
	if mine := t.shares[n.share]; total >= l.Sessions/2 && mine >= l.SessionsPerAddress {
		if victim = t.oldestDiscovery(func(x *session) bool { return x.share == n.share }); n.discovery() && victim != nil {
			return victim, nil
		}
		return nil, iscsi.Refuse(iscsi.LoginOutOfResources, "%d of %d sessions are there, and %d of them are from where this one is: its share (limits.sessions_per_address)", total, l.Sessions, mine)
	}
	most := min(l.Sessions, maxTSIH)
	if stranger {
		most -= l.ReservedSessions
	}
	if total < most {
		return nil, nil
	}
	if victim = t.oldestDiscovery(func(*session) bool { return true }); victim != nil {
		return victim, nil
	}
	if stranger && total < l.Sessions {
		return nil, iscsi.Refuse(iscsi.LoginOutOfResources, "%d of %d sessions are there; the rest is reserved for initiators that authenticate or that an access list names (limits.reserved_sessions)", total, l.Sessions)
	}
	return nil, iscsi.Refuse(iscsi.LoginOutOfResources, "the limit of %d sessions is reached", l.Sessions)
}

// maxTSIH is how many sessions a TSIH, which is not 0, tells apart.
const maxTSIH = 0xfffe

// limitAgeLocked ends a discovery session when its time is over. The caller holds srv.mu.
func (s *session) limitAgeLocked() {
	if d := s.srv.sessions.room.DiscoveryAge; s.discovery() && d > 0 {
		s.aged = time.AfterFunc(d, func() {
			s.srv.stats.discoveryEnded.Add(1)
			s.dismiss(errDiscoveryAge)
		})
	}
}
