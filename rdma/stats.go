package rdma

import (
	"sync"

	"softiser/rdma/internal/wire"
)

// QPStats count what a queue pair did. Snapshots are taken by QP.Stats; the
// figures are brought up to date at the end of each batch.
type QPStats struct {
	WireOut, WireIn             uint64 // bytes of the stream in RDMA mode
	SendCalls, RecvCalls        uint64 // system calls that moved data
	FPDUsOut                    uint64
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

// txStats and rxStats are counted without locks by the transmitter and by the
// receive goroutine.
type txStats struct {
	SendCalls, FPDUs, Bytes, Direct, CopiedTagged, Zerocopy uint64
	Msgs                                                    [16]uint64
}

type rxStats struct {
	RecvCalls, FPDUs, Bytes, Payload, Direct, Copied, CopiedTagged, Faults, PollCalls, Polled uint64
	Msgs                                                                                      [16]uint64
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
	s.SendCalls, s.FPDUsOut, s.BytesOut, s.SentDirect = t.SendCalls, t.FPDUs, t.Bytes, t.Direct
	s.SendsOut, s.ReadRequestsOut = sends(&t.Msgs), t.Msgs[wire.ReadRequest]
	qp.statMu.Unlock()
}

// publishRx copies the receiver's figures.
func (qp *QP) publishRx() {
	r := &qp.rx.stats
	qp.statMu.Lock()
	s := &qp.stats
	s.WireIn = r.Bytes
	s.RecvCalls, s.BytesIn, s.PlacedDirect, s.PlacedCopied = r.RecvCalls, r.Payload, r.Direct, r.Copied
	s.PlacedCopiedTagged = r.CopiedTagged
	s.Faults, s.PollCalls, s.Polled = r.Faults, r.PollCalls, r.Polled
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
