package cm

import "softiser/rdma/internal/roce/mad"

// Counts is a number of messages per kind, in the order of their attributes: REQ, MRA,
// REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP.
type Counts [9]uint64

// Of is the number of messages of kind a.
func (c *Counts) Of(a mad.Attr) uint64 { return c[a-mad.AttrREQ] }

// Stats counts what a Manager has done.
type Stats struct {
	Sent, Received Counts
	Retries        uint64 // messages sent again because no answer came
	Duplicates     uint64 // messages that had come before
	Malformed      uint64 // datagrams that are no message of connection management
	Unmatched      uint64 // answers to nothing, or not from where the question went
	Full           uint64 // requests dropped because too many wait; their senders repeat them
	Stale          uint64 // requests for a queue pair that an older connection still has

	Connections int // that exist, in any state
	Pending     int // asked for by a peer that has not proved its address yet
}

// Stats is a snapshot.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.unlock()
	s := m.stats
	s.Connections, s.Pending = len(m.conns), m.pending
	return s
}
