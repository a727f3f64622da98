package iscsi

import (
	"maps"
	"slices"

	"softiser/target/portal"
)

// TransportStatus is what sessions over one kind of connection are and have done.
type TransportStatus struct {
	Name        string `json:"transport"`
	Sessions    int    `json:"sessions"`    // now, discovery included
	Connections int    `json:"connections"` // of these sessions
	// Retransmits are segments that TCP has sent again below iSCSI over TCP; what is below iSER
	// counts for itself.
	Retransmits uint64 `json:"tcp_retransmits_total"`
	Traffic            // of sessions that have ended as well
}

// Traffic is what initiators have asked for and got.
type Traffic struct {
	Reads    uint64 `json:"reads_total"`
	Writes   uint64 `json:"writes_total"`
	Others   uint64 `json:"other_commands_total"`
	Failed   uint64 `json:"failed_commands_total"` // of these
	Aborted  uint64 `json:"aborted_commands_total"`
	BytesIn  uint64 `json:"payload_in_bytes"` // from initiators
	BytesOut uint64 `json:"payload_out_bytes"`
}

// RecoveryStatus counts what initiators have done about connections that were lost, and
// what the target had to.
type RecoveryStatus struct {
	Sessions    uint64 `json:"session_reinstatements_total"`
	Connections uint64 `json:"connection_reinstatements_total"`
	Lost        uint64 `json:"connections_lost_total"` // whose tasks waited: error recovery level 2
	Tasks       uint64 `json:"task_reassignments_total"`
}

func (t *Traffic) add(st *SessionStatus) {
	t.Reads += st.Reads
	t.Writes += st.Writes
	t.Others += st.Others
	t.Failed += st.Failed
	t.Aborted += st.Aborted
	t.BytesIn += st.BytesIn
	t.BytesOut += st.BytesOut
}

// wire is what the session's connections speak.
func (s *session) wire() portal.Hello {
	kind := s.kind
	if s.overRDMA() && kind == portal.TCP {
		kind = portal.RDMA
	}
	return portal.Hello{Protocol: portal.ISCSI, Transport: kind}
}

// transports adds up sessions by what carries them: those in list, whose status l is, and
// those that have ended, in past. What is configured is there from the start.
func (s *Frontend) transports(list []*session, l []SessionStatus, past map[portal.Transport]Traffic) []TransportStatus {
	sum := map[portal.Transport]TransportStatus{}
	for _, p := range s.cfg.Portals {
		c := p.Config()
		switch {
		case c.RoCE():
			sum[portal.RoCE] = TransportStatus{}
			continue
		case !c.NoISER:
			sum[portal.RDMA] = TransportStatus{}
		}
		if !c.NoTCP {
			sum[portal.TCP] = TransportStatus{}
		}
		if p.Certificates() != nil && !c.NoTCP {
			sum[portal.TLS] = TransportStatus{}
		}
	}
	for t, traffic := range past {
		sum[t] = TransportStatus{Traffic: traffic}
	}
	for i, x := range list {
		t := x.wire().Transport
		y := sum[t]
		y.Sessions++
		y.Connections += len(l[i].Connections)
		y.Traffic.add(&l[i])
		sum[t] = y
	}
	all := []TransportStatus{}
	for _, t := range slices.Sorted(maps.Keys(sum)) {
		y := sum[t]
		if t == portal.TCP || t == portal.TLS {
			y.Retransmits = s.wires.Tally(t).Retransmits()
		}
		y.Name = portal.Hello{Protocol: portal.ISCSI, Transport: t}.String()
		all = append(all, y)
	}
	return all
}
