package rdma

import (
	"sync"

	"softiser/rdma/internal/wire"
)

// QPStats count what a queue pair did. Snapshots are taken by QP.Stats; the
// figures are brought up to date at the end of each batch.
type QPStats struct {
	WireOut, WireIn                   uint64 // bytes of the stream in RDMA mode
	SendCalls, RecvCalls              uint64 // system calls that moved data
	FPDUsOut, FPDUsIn                 uint64
	BytesOut, BytesIn                 uint64 // payload
	SendsOut, SendsIn                 uint64 // messages, Immediate Data included
	WritesOut, WritesIn               uint64
	ReadRequestsOut, ReadRequestsIn   uint64
	ReadResponsesOut, ReadResponsesIn uint64
	AtomicsOut, AtomicsIn             uint64
	SentDirect, SentCopied            uint64 // payload bytes sent by reference, through the header buffer
	PlacedDirect, PlacedCopied        uint64 // payload bytes read straight to their place, through the read-ahead buffer
	SentCopiedTagged                  uint64 // of SentCopied: payload of RDMA Writes and Read Responses
	PlacedCopiedTagged                uint64 // of PlacedCopied: the same
	ZerocopyCalls                     uint64 // of SendCalls: by MSG_ZEROCOPY
	PollCalls, Polled                 uint64 // BusyPollAuto: system calls that look for bytes; waits that it has ended without parking
	CRCErrors                         uint64
	Faults                            uint64 // placements into memory that cannot be touched
	TerminatesOut, TerminatesIn       uint64
}

func (s *QPStats) add(o *QPStats) {
	s.WireOut += o.WireOut
	s.WireIn += o.WireIn
	s.SendCalls += o.SendCalls
	s.RecvCalls += o.RecvCalls
	s.FPDUsOut += o.FPDUsOut
	s.FPDUsIn += o.FPDUsIn
	s.BytesOut += o.BytesOut
	s.BytesIn += o.BytesIn
	s.SendsOut += o.SendsOut
	s.SendsIn += o.SendsIn
	s.WritesOut += o.WritesOut
	s.WritesIn += o.WritesIn
	s.ReadRequestsOut += o.ReadRequestsOut
	s.ReadRequestsIn += o.ReadRequestsIn
	s.ReadResponsesOut += o.ReadResponsesOut
	s.ReadResponsesIn += o.ReadResponsesIn
	s.AtomicsOut += o.AtomicsOut
	s.AtomicsIn += o.AtomicsIn
	s.SentDirect += o.SentDirect
	s.SentCopied += o.SentCopied
	s.PlacedDirect += o.PlacedDirect
	s.PlacedCopied += o.PlacedCopied
	s.SentCopiedTagged += o.SentCopiedTagged
	s.PlacedCopiedTagged += o.PlacedCopiedTagged
	s.ZerocopyCalls += o.ZerocopyCalls
	s.PollCalls += o.PollCalls
	s.Polled += o.Polled
	s.CRCErrors += o.CRCErrors
	s.Faults += o.Faults
	s.TerminatesOut += o.TerminatesOut
	s.TerminatesIn += o.TerminatesIn
}

// txStats and rxStats are counted without locks by the transmitter and by the
// receive goroutine.
type txStats struct {
	SendCalls, FPDUs, Bytes, Direct, Copied, CopiedTagged, Zerocopy uint64
	Msgs                                                            [16]uint64
}

type rxStats struct {
	RecvCalls, FPDUs, Bytes, Payload, Direct, Copied, CopiedTagged, CRCErrors, Faults, PollCalls, Polled uint64
	Msgs                                                                                                 [16]uint64
}

func sends(m *[16]uint64) uint64 {
	return m[wire.Send] + m[wire.SendInv] + m[wire.SendSE] + m[wire.SendSEInv] + m[wire.Immediate] + m[wire.ImmediateSE]
}

// answers counts what a receiver is likely to have waited for: Sends, and the ends
// of RDMA Reads.
func (r *rxStats) answers() uint64 { return sends(&r.Msgs) + r.Msgs[wire.ReadResponse] }

// publishTxLocked copies the transmitter's figures. Preconditions: the caller is
// the transmitter, or there is none.
func (qp *QP) publishTxLocked() {
	t := &qp.tx.stats
	qp.statMu.Lock()
	s := &qp.stats
	s.WireOut = qp.sentOff
	s.ZerocopyCalls, s.SentCopiedTagged = t.Zerocopy, t.CopiedTagged
	s.SendCalls, s.FPDUsOut, s.BytesOut, s.SentDirect, s.SentCopied = t.SendCalls, t.FPDUs, t.Bytes, t.Direct, t.Copied
	s.SendsOut = sends(&t.Msgs)
	s.WritesOut = t.Msgs[wire.Write]
	s.ReadRequestsOut, s.ReadResponsesOut = t.Msgs[wire.ReadRequest], t.Msgs[wire.ReadResponse]
	s.AtomicsOut = t.Msgs[wire.AtomicReq]
	qp.statMu.Unlock()
}

// publishRx copies the receiver's figures.
func (qp *QP) publishRx() {
	r := &qp.rx.stats
	qp.statMu.Lock()
	s := &qp.stats
	s.WireIn = r.Bytes
	s.RecvCalls, s.FPDUsIn, s.BytesIn, s.PlacedDirect, s.PlacedCopied = r.RecvCalls, r.FPDUs, r.Payload, r.Direct, r.Copied
	s.PlacedCopiedTagged = r.CopiedTagged
	s.CRCErrors, s.Faults, s.PollCalls, s.Polled = r.CRCErrors, r.Faults, r.PollCalls, r.Polled
	s.SendsIn = sends(&r.Msgs)
	s.WritesIn = r.Msgs[wire.Write]
	s.ReadRequestsIn, s.ReadResponsesIn = r.Msgs[wire.ReadRequest], r.Msgs[wire.ReadResponse]
	s.AtomicsIn = r.Msgs[wire.AtomicReq]
	qp.statMu.Unlock()
}

// Stats returns the counters.
func (qp *QP) Stats() QPStats {
	qp.statMu.Lock()
	defer qp.statMu.Unlock()
	return qp.stats
}

// DeviceStats are the counters of a device: of all its queue pairs, past and
// present, and what exists now.
type DeviceStats struct {
	QPStats
	QPs, MRs, PDs, CQs, SRQs int
	Connections              uint64 // established so far
}

type deviceCounters struct {
	mu    sync.Mutex // guards what follows
	past  QPStats
	conns uint64
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
	out.Connections = d.stat.conns
	d.stat.mu.Unlock()
	d.mu.Unlock()
	out.MRs = d.tab.Count()
	out.PDs, out.CQs, out.SRQs = int(d.nPD.Load()), int(d.nCQ.Load()), int(d.nSRQ.Load())
	return out
}

// retire removes a queue pair and keeps its counters.
func (d *Device) retire(qp *QP) {
	s := qp.Stats()
	d.mu.Lock()
	delete(d.qps, qp)
	d.stat.mu.Lock()
	d.stat.past.add(&s)
	d.stat.mu.Unlock()
	d.mu.Unlock()
}
