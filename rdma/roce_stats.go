package rdma

import (
	"net/netip"
	"time"

	"softiser/rdma/internal/roce"
)

// RoCEStats is what a reliable connection over RoCE is doing.
type RoCEStats struct {
	Window     int           // packets that it may have in flight by itself
	RTT        time.Duration // smoothed; 0: not measured yet
	Packets    uint64        // of requests, repeated ones included
	Repeated   uint64        // sent again
	Timeouts   uint64        // answers that did not come in time
	Probes     uint64        // packets sent again because an answer was late, before a time-out
	SeqNAKs    uint64        // rcvd_seq_err of rxe: the peer has missed packets
	LostReads  uint64        // gaps between answers to Reads and atomics
	RNRs       uint64        // rcvd_rnr_err: the peer had no receive buffer
	OutOfSeq   uint64        // out_of_seq_request: packets of the peer behind a gap
	Duplicates uint64        // duplicate_request: packets of the peer that had come before
	RNRsSent   uint64        // send_rnr_err: this side had no receive buffer
}

// RoCEStats returns the figures; false for other connections than reliable ones over RoCE.
func (qp *QP) RoCEStats() (RoCEStats, bool) {
	e, ok := qp.v.Engine.(*roce.QP)
	if !ok {
		return RoCEStats{}, false
	}
	s, ok := e.State()
	return RoCEStats{
		Window: s.Window, RTT: s.RTT,
		Packets: s.Requests.Packets, Repeated: s.Requests.Repeated, Timeouts: s.Requests.Timeouts, Probes: s.Requests.Probes,
		SeqNAKs: s.Requests.SeqNAKs, LostReads: s.Requests.LostAnswers, RNRs: s.Requests.RNRs,
		OutOfSeq: s.Answers.OutOfSeq, Duplicates: s.Answers.Duplicates, RNRsSent: s.Answers.RNRs,
	}, ok
}

// RoCEPath is what the reliable connections between two addresses know of the way, and share
// of it. Rate is the limit on what they send: Limit bytes in each RTT.
type RoCEPath struct {
	Local       netip.Addr    `json:"local"`
	Peer        netip.Addr    `json:"peer"`
	QPs         int           `json:"queue_pairs"`        // connected; 0 for a way that is only remembered
	Limit       int64         `json:"limit_bytes"`        // that may be in flight; halves with a loss, grows while round trips are short
	InFlight    int64         `json:"in_flight_bytes"`    // of all connections
	Connections int           `json:"active_queue_pairs"` // that have something in flight
	RTT         time.Duration `json:"rtt_ns"`             // smoothed; 0: not measured
	MinRTT      time.Duration `json:"shortest_rtt_ns"`
	Rate        int64         `json:"rate_bytes_per_second"`
	Losses      uint64        `json:"losses_total"`    // halvings of Limit
	Congested   uint64        `json:"congested_total"` // … and for notices of congestion (CNP)
	Delayed     uint64        `json:"delayed_total"`   // round trips that were too long for Limit to grow
}

// RoCEPaths are the ways that the connections of a device have used.
func (d *Device) RoCEPaths() (paths []RoCEPath) {
	if t, ok := d.transport.(*overUDP); ok {
		t.dev.Paths(func(local netip.Addr, p roce.PathInfo) { paths = append(paths, pathOf(local, &p)) })
	}
	return paths
}

func pathOf(local netip.Addr, p *roce.PathInfo) RoCEPath {
	return RoCEPath{
		Local: local, Peer: p.Peer, QPs: p.QPs, Limit: p.Limit, InFlight: p.InFlight, Connections: p.Connections,
		RTT: p.RTT, MinRTT: p.MinRTT, Rate: int64(p.Rate), Losses: p.Losses, Congested: p.Congested, Delayed: p.Delayed,
	}
}
