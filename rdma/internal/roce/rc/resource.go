package rc

import "softiser/rdma/internal/roce/packet"

// resource remembers a READ or an atomic, for the case that it comes again (IBA vol. 1
// §9.7.5.1.2: as many as the peer may have outstanding).
type resource struct {
	psn  packet.PSN
	n    int         // PSNs that the answer takes
	reth packet.RETH // of a READ
	orig uint64      // of an atomic: its result
	rest int         // how often what was missing of a READ was asked for, and its key was revoked
	atom bool
	used bool
}

// resources is a ring; the oldest gives its place to the newest.
type resources struct {
	ring []resource
	next int
}

func (q *resources) remember(r resource) {
	r.used = true
	q.ring[q.next] = r
	q.next = (q.next + 1) % len(q.ring)
}

// find is what psn belonged to; nil if nothing that is remembered. The newest one counts:
// numbers come again after 2^24 packets, and one from before may still be here.
func (q *resources) find(psn packet.PSN) *resource {
	for i := range q.ring {
		if r := &q.ring[(q.next+len(q.ring)-1-i)%len(q.ring)]; r.used {
			if d := psn.Sub(r.psn); d >= 0 && d < r.n {
				return r
			}
		}
	}
	return nil
}

// between says whether any remembered one has PSNs in (from, to).
func (q *resources) between(from, to packet.PSN) bool {
	for i := range q.ring {
		if r := &q.ring[i]; r.used && r.psn.Sub(from) > 0 && r.psn.Sub(to) < 0 {
			return true
		}
	}
	return false
}
