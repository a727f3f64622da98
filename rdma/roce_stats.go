package rdma

import (
	"net/netip"
	"time"

	"softiser/rdma/internal/roce"
	"softiser/rdma/internal/roce/rc"
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
	Local, Peer netip.Addr
	Limit       int64         // bytes that may be in flight; halves with a loss, grows while round trips are short
	InFlight    int64         // bytes, of all connections
	Connections int           // that have something in flight
	RTT, MinRTT time.Duration // smoothed, and the shortest; 0: not measured
	Rate        uint64        // bytes per second
	Losses      uint64        // halvings of Limit
	Delayed     uint64        // round trips that were too long for Limit to grow
}

// RoCEPaths are the ways that the connections of a device have used.
func (d *Device) RoCEPaths() (paths []RoCEPath) {
	if t, ok := d.transport.(*overUDP); ok {
		t.dev.Paths(func(local, peer netip.Addr, s rc.PathStats) {
			paths = append(paths, RoCEPath{
				Local: local, Peer: peer, Limit: s.Limit, InFlight: s.InFlight, Connections: s.Connections,
				RTT: s.RTT, MinRTT: s.MinRTT, Rate: s.Rate, Losses: s.Losses, Delayed: s.Delayed,
			})
		})
	}
	return paths
}
