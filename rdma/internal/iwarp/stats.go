package iwarp

import "softiser/rdma/internal/wire"

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

// publishLocked copies the transmitter's figures. Preconditions: the caller is
// the transmitter, or there is none.
func (t *transmitter) publishLocked() {
	qp := t.qp
	c := &t.stats
	qp.StatMu.Lock()
	s := &qp.Stats
	s.WireOut = t.sentOff
	s.ZerocopyCalls, s.SentCopiedTagged = c.Zerocopy, c.CopiedTagged
	s.SendCalls, s.FPDUsOut, s.BytesOut, s.SentDirect = c.SendCalls, c.FPDUs, c.Bytes, c.Direct
	s.SendsOut, s.ReadRequestsOut = sends(&c.Msgs), c.Msgs[wire.ReadRequest]
	qp.StatMu.Unlock()
}

// publish copies the receiver's figures. A read that was a look in vain is one of PollCalls.
func (x *receiver) publish() {
	qp := x.qp
	r := &x.stats
	qp.StatMu.Lock()
	s := &qp.Stats
	s.WireIn = r.Bytes
	s.RecvCalls, s.BytesIn, s.PlacedDirect, s.PlacedCopied = r.RecvCalls-qp.wait.Vain, r.Payload, r.Direct, r.Copied
	s.PlacedCopiedTagged = r.CopiedTagged
	s.Faults, s.PollCalls, s.Polled = r.Faults, r.PollCalls, r.Polled
	qp.StatMu.Unlock()
}
