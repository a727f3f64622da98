package rdma

import "sync"

// QPStats count what a queue pair did. Snapshots are taken by QP.Stats; the
// figures are brought up to date at the end of each batch.
type QPStats struct {
	WireOut, WireIn             uint64 // bytes of the stream in RDMA mode; over RoCE: of packets, from their base header on
	SendCalls, RecvCalls        uint64 // system calls that moved data; over RoCE: batches of packets
	FPDUsOut                    uint64 // frames of MPA; over RoCE: packets
	BytesOut, BytesIn           uint64 // payload
	SendsOut                    uint64 // messages, Immediate Data included
	ReadRequestsOut             uint64
	SentDirect                  uint64 // payload bytes sent by reference
	PlacedDirect, PlacedCopied  uint64 // payload bytes read straight to their place, through the read-ahead buffer
	SentCopiedTagged            uint64 // payload bytes of RDMA Writes and Read Responses sent through the header buffer
	PlacedCopiedTagged          uint64 // of PlacedCopied: the same
	ZerocopyCalls               uint64 // of SendCalls: by MSG_ZEROCOPY
	PollCalls, Polled           uint64 // BusyPollAuto: system calls that look for bytes; waits that it has ended without parking
	Faults                      uint64 // placements into memory that cannot be touched
	TerminatesOut, TerminatesIn uint64
}

func (s *QPStats) add(o *QPStats) {
	s.WireOut += o.WireOut
	s.WireIn += o.WireIn
	s.SendCalls += o.SendCalls
	s.RecvCalls += o.RecvCalls
	s.FPDUsOut += o.FPDUsOut
	s.BytesOut += o.BytesOut
	s.BytesIn += o.BytesIn
	s.SendsOut += o.SendsOut
	s.ReadRequestsOut += o.ReadRequestsOut
	s.SentDirect += o.SentDirect
	s.PlacedDirect += o.PlacedDirect
	s.PlacedCopied += o.PlacedCopied
	s.SentCopiedTagged += o.SentCopiedTagged
	s.PlacedCopiedTagged += o.PlacedCopiedTagged
	s.ZerocopyCalls += o.ZerocopyCalls
	s.PollCalls += o.PollCalls
	s.Polled += o.Polled
	s.Faults += o.Faults
	s.TerminatesOut += o.TerminatesOut
	s.TerminatesIn += o.TerminatesIn
}

// Stats returns the counters.
func (qp *QP) Stats() QPStats { return QPStats(qp.v.Snapshot()) }

// DeviceStats are the counters of a device: of all its queue pairs, past and
// present, and what exists now.
type DeviceStats struct {
	QPStats
	QPs, MRs, PDs, CQs, SRQs int
	Connections              uint64 // established so far
	Retransmits              uint64 // segments that TCP has sent again below them; 0 of RoCE, see RoCEPort
	Ends                     []EndCount
}

type deviceCounters struct {
	mu    sync.Mutex // guards what follows
	past  QPStats
	conns uint64
	ends  map[endKey]uint64
}

// Stats returns the counters.
func (d *Device) Stats() DeviceStats {
	var out DeviceStats
	d.mu.Lock()
	out.QPs = len(d.qps)
	for qp := range d.qps {
		s := qp.Stats()
		out.QPStats.add(&s)
	}
	d.stat.mu.Lock()
	out.QPStats.add(&d.stat.past)
	out.Connections, out.Ends = d.stat.conns, d.endsLocked()
	d.stat.mu.Unlock()
	d.mu.Unlock()
	if t, ok := d.transport.(*overTCP); ok {
		out.Retransmits = t.dev.Retransmits()
	}
	out.MRs = d.shared.Table.Count()
	out.PDs, out.CQs, out.SRQs = int(d.nPD.Load()), int(d.nCQ.Load()), int(d.nSRQ.Load())
	return out
}

// connected counts a connection.
func (d *Device) connected() {
	d.stat.mu.Lock()
	d.stat.conns++
	d.stat.mu.Unlock()
}

// retire removes a queue pair and keeps its counters.
func (d *Device) retire(qp *QP) {
	s := qp.Stats()
	d.transport.retire(qp)
	d.mu.Lock()
	delete(d.qps, qp)
	d.stat.mu.Lock()
	d.stat.past.add(&s)
	d.stat.mu.Unlock()
	d.mu.Unlock()
}
