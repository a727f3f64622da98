package verbs

// Stats count what a queue pair did; package rdma documents the figures and has the
// same fields in the same order.
type Stats struct {
	WireOut, WireIn             uint64
	SendCalls, RecvCalls        uint64
	FPDUsOut                    uint64
	BytesOut, BytesIn           uint64
	SendsOut                    uint64
	ReadRequestsOut             uint64
	SentDirect                  uint64
	PlacedDirect, PlacedCopied  uint64
	SentCopiedTagged            uint64
	PlacedCopiedTagged          uint64
	ZerocopyCalls               uint64
	PollCalls, Polled           uint64
	Faults                      uint64
	TerminatesOut, TerminatesIn uint64
}

// Snapshot is a copy of the counters.
func (qp *QP) Snapshot() Stats {
	qp.StatMu.Lock()
	defer qp.StatMu.Unlock()
	return qp.Stats
}
