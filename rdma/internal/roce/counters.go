package roce

import (
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"

	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/port"
	"softiser/rdma/internal/roce/rc"
)

// Counters are what the queue pairs of a port have done, past and present. What is below the
// bytes is of reliable connections.
type Counters struct {
	Sent, Received           uint64 // packets
	SentBytes, ReceivedBytes uint64 // with the headers from BTH on, and the ICRC
	Repeated                 uint64 // packets of requests sent again
	Duplicates               uint64 // requests that had come before
	OutOfSeq                 uint64 // requests ahead of what was expected
	SentRNR, ReceivedRNR     uint64 // nobody had a receive buffer
	ReceivedSeq              uint64 // the peer has missed a request
	Timeouts                 uint64 // nothing was answered in time
	LostAnswers              uint64 // gaps between answers
	RetryExceeded            uint64 // connections that ended as the peer did not answer
	RNRExceeded              uint64 // … as it had no receive buffer for too long

	ECNMarked              uint64 // packets that routers have marked
	CNPSent                uint64 // congestion notification packets to peers
	CNPHandled, CNPIgnored uint64 // … from peers, which have slowed requests down or not
}

// count is Counters of a port, which its queue pairs add to.
type count struct {
	qps                                      atomic.Int64 // that packets may come for
	sent, received, sentBytes, receivedBytes atomic.Uint64
	repeated, duplicates, outOfSeq           atomic.Uint64
	sentRNR, receivedRNR, receivedSeq        atomic.Uint64
	timeouts, lostAnswers                    atomic.Uint64
	retryExceeded, rnrExceeded               atomic.Uint64
	ecnMarked, cnpSent                       atomic.Uint64
	cnpHandled, cnpIgnored                   atomic.Uint64
}

// reported is what of the statistics of a queue pair's machines the counters of the port have.
type reported struct {
	req  rc.RequesterStats
	resp rc.Stats
}

// add counts packets of a queue pair.
func (c *count) add(out, in sent) {
	c.sent.Add(out.packets)
	c.received.Add(in.packets)
	c.sentBytes.Add(out.wire)
	c.receivedBytes.Add(in.wire)
}

// Attach is that of the port, and counts the queue pair.
func (p *hostPort) Attach(qpn uint32, peer netip.Addr, h port.Handler, batchEnd func()) {
	p.count.qps.Add(1)
	p.Port.Attach(qpn, peer, h, batchEnd)
}

// Detach undoes Attach.
func (p *hostPort) Detach(qpn uint32) {
	p.Port.Detach(qpn)
	p.count.qps.Add(-1)
}

// reportLocked adds to the counters of the port what the machines have counted since the last time.
func (qp *QP) reportLocked() {
	c, t := &qp.port.count, &qp.reported
	if r := qp.req.Stats(); r != t.req {
		c.repeated.Add(r.Repeated - t.req.Repeated)
		c.receivedRNR.Add(r.RNRs - t.req.RNRs)
		c.receivedSeq.Add(r.SeqNAKs - t.req.SeqNAKs)
		c.timeouts.Add(r.Timeouts - t.req.Timeouts)
		c.lostAnswers.Add(r.LostAnswers - t.req.LostAnswers)
		t.req = r
	}
	if r := qp.resp.Stats(); r != t.resp {
		c.duplicates.Add(r.Duplicates - t.resp.Duplicates)
		c.outOfSeq.Add(r.OutOfSeq - t.resp.OutOfSeq)
		c.sentRNR.Add(r.RNRs - t.resp.RNRs)
		t.resp = r
	}
}

// reportEndLocked counts the end of a connection at the port.
func (qp *QP) reportEndLocked() {
	qp.reportLocked()
	var e *rc.Exceeded
	switch {
	case !errors.As(qp.req.Err(), &e):
	case e.RNR:
		qp.port.count.rnrExceeded.Add(1)
	default:
		qp.port.count.retryExceeded.Add(1)
	}
}

func (c *count) snapshot() Counters {
	return Counters{
		Sent: c.sent.Load(), Received: c.received.Load(), SentBytes: c.sentBytes.Load(), ReceivedBytes: c.receivedBytes.Load(),
		Repeated: c.repeated.Load(), Duplicates: c.duplicates.Load(), OutOfSeq: c.outOfSeq.Load(),
		SentRNR: c.sentRNR.Load(), ReceivedRNR: c.receivedRNR.Load(), ReceivedSeq: c.receivedSeq.Load(),
		Timeouts: c.timeouts.Load(), LostAnswers: c.lostAnswers.Load(), RetryExceeded: c.retryExceeded.Load(), RNRExceeded: c.rnrExceeded.Load(),
		ECNMarked: c.ecnMarked.Load(), CNPSent: c.cnpSent.Load(), CNPHandled: c.cnpHandled.Load(), CNPIgnored: c.cnpIgnored.Load(),
	}
}

// PortInfo is the state of the port of an address.
type PortInfo struct {
	Addr       netip.Addr
	MTU        int // the largest path MTU that fits the interface, bytes
	RecvBuffer int // bytes, as the kernel counts them
	GSO, GRO   bool
	QPs        int // that packets may come for
	Counters   Counters
	Port       port.Stats
	CM         cm.Stats
	Paths      []PathInfo
}

// Ports are those that the process has open, by address.
func Ports() []PortInfo {
	host.mu.Lock()
	defer host.mu.Unlock()
	var all []PortInfo
	for a, p := range host.ports {
		i := PortInfo{
			Addr: a, MTU: p.mtu.Bytes(), RecvBuffer: p.RecvBuffer(), QPs: int(p.count.qps.Load()),
			Counters: p.count.snapshot(), Port: p.Stats(), CM: p.CM().Stats(), Paths: p.paths.list(),
		}
		i.GSO, i.GRO = p.Offload()
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b PortInfo) int { return a.Addr.Compare(b.Addr) })
	return all
}
