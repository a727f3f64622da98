package iscsi

import (
	"slices"

	"softiser/internal/iscsi"
	"softiser/target/portal"
)

// targetListing is the rest of an answer to SendTargets (RFC 7143, Appendix C): the
// targets that have still to be told of.
type targetListing struct {
	c     *conn
	nodes []*node // of those that the server had at the request, what was asked for
	user  string  // who asks; "" where that says nothing of who will log in
}

// sendTargets answers SendTargets. "All" is for discovery sessions; in a normal
// session the initiator may ask for its own target by name or with an empty value.
func (x *textExchange) sendTargets(which string) (targetListing, bool) {
	s := x.c.sess
	switch {
	case which == "All" && !s.discovery():
		return targetListing{}, false
	case which == "" && s.discovery():
		return targetListing{}, false
	case which == "":
		which = s.node.cfg.Name
	}
	if which != "All" {
		n, _, _ := s.srv.lookup(which)
		if n == nil {
			return targetListing{}, true
		}
		return targetListing{c: x.c, nodes: []*node{n}, user: loginUser(s.srv, s.user)}, true
	}
	return targetListing{c: x.c, nodes: s.srv.nodeList(), user: loginUser(s.srv, s.user)}, true
}

// loginUser returns user if there is a target to which one of that name can log in, and ""
// for one who is there for discovery alone (discovery.auth has users of its own): behind that
// may be anybody.
func loginUser(s *Frontend, user string) string {
	if user == "" || slices.ContainsFunc(s.nodeList(), func(n *node) bool {
		return slices.ContainsFunc(n.access.Load().Auth.Users, func(c Credential) bool { return c.Name == user })
	}) {
		return user
	}
	return ""
}

func (l *targetListing) more() bool { return len(l.nodes) > 0 }

// next appends the record of the next target, if it is one for this initiator.
func (l *targetListing) next(dst []byte) []byte {
	n := l.nodes[0]
	l.nodes = l.nodes[1:]
	t := n.access.Load()
	if ok, _ := t.ACL.allow(l.c.sess.key.initiator, l.c.remote.Addr()); !ok {
		return dst
	}
	if ok, _ := t.ACL.allowCertificate(l.c.sess.key.initiator, l.c.remote.Addr(), l.c.shown.names); !ok {
		return dst
	}
	if l.user != "" {
		if ok, _ := t.ACL.allowUser(l.c.sess.key.initiator, l.c.remote.Addr(), l.user); !ok {
			return dst
		}
	}
	d := iscsi.DiscoveredTarget{Name: n.cfg.Name, Alias: t.Alias}
	for _, p := range n.srv.cfg.Portals {
		// What an initiator is told says nothing of a transport; it goes on with the one
		// by which it has asked.
		if !n.offeredOn(p) || p.Config().RoCE() != (l.c.kind == portal.RoCE) {
			continue
		}
		if a := p.AddressFor(l.c.local, l.c.remote.Addr()); a != "" {
			d.Portals = append(d.Portals, iscsi.TargetPortal{Address: a, PortalGroupTag: p.Config().Group, HasTag: true})
		}
	}
	for _, p := range t.Remote {
		if p.RoCE != (l.c.kind == portal.RoCE) {
			continue
		}
		d.Portals = append(d.Portals, iscsi.TargetPortal{Address: p.Address, PortalGroupTag: p.Group, HasTag: true})
	}
	if len(d.Portals) == 0 {
		return dst
	}
	return iscsi.AppendTarget(dst, &d)
}
