package cm

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/verbs"
)

// serviceTimeout is the exponent that our MRAs name: 34 s, a little more than
// Limits.Answer.
const serviceTimeout = 23

// Listener takes the requests for one service ID.
type Listener struct {
	m       *Manager
	service mad.ServiceID
	reqs    chan *Incoming
	done    chan struct{}
	closed  bool
}

// Listen takes requests for service. backlog is how many may wait for Accept; the ones
// beyond are dropped, and come again.
func (m *Manager) Listen(service mad.ServiceID, backlog int) (*Listener, error) {
	m.mu.Lock()
	defer m.unlock()
	if m.closed {
		return nil, errManagerClosed
	}
	if m.listeners[service] != nil {
		return nil, verbs.Invalid("somebody listens on %v of %v already", service, m.cfg.Local)
	}
	l := &Listener{m: m, service: service, reqs: make(chan *Incoming, max(backlog, 1)), done: make(chan struct{})}
	m.listeners[service] = l
	return l, nil
}

// Accept waits for the next request.
func (l *Listener) Accept(ctx context.Context) (*Incoming, error) {
	for {
		select {
		case in := <-l.reqs:
			select {
			case <-in.over: // given up while it waited
			default:
				return in, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.done:
			return nil, fmt.Errorf("%w: listener", verbs.ErrClosed)
		}
	}
}

// Close ends the listener, and rejects the requests that nobody has accepted from it.
func (l *Listener) Close() {
	l.m.mu.Lock()
	defer l.m.unlock()
	l.closeLocked()
}

func (l *Listener) closeLocked() {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.m.listeners, l.service)
	close(l.done)
	for {
		select {
		case in := <-l.reqs:
			if c := in.c; c.state == ReqReceived {
				c.reject(mad.WhichREQ, mad.ReasonInvalidServiceID, nil, nil)
				c.end(nil)
			}
		default:
			return
		}
	}
}

// Incoming is a request of a peer. It is answered by Accept or Reject, once, within
// Limits.Answer.
type Incoming struct {
	c       *Conn
	over    chan struct{} // closed when there is nobody to answer any more
	Request Request       // what the peer asks for
}

// Peer is where the request came from, and is not yet proved to have come.
func (in *Incoming) Peer() netip.Addr { return in.c.to }

// Accept answers the request. The queue pair must be ready to receive, and may send
// once Hooks.Established has been called.
func (in *Incoming) Accept(r *Reply, h Hooks) (*Conn, error) {
	if len(r.Private) > mad.PrivateREP {
		return nil, verbs.Invalid("private data of %d bytes: a reply over RoCE has room for %d", len(r.Private), mad.PrivateREP)
	}
	if !ordinaryQPN(r.QPN) || r.PSN > 0xffffff || r.RNRRetry > 7 {
		return nil, verbs.Invalid("connection reply %+v", *r)
	}
	c, m := in.c, in.c.m
	m.mu.Lock()
	defer m.unlock()
	if err := in.take(); err != nil {
		return nil, err
	}
	c.hooks, c.localQPN, c.ended = h, r.QPN, false
	msg := &mad.REP{
		LocalCommID: c.id, RemoteCommID: c.remote, LocalQPN: r.QPN, StartingPSN: r.PSN,
		ResponderResources: r.ResponderResources, InitiatorDepth: r.InitiatorDepth, AckDelay: ackDelay,
		FlowControl: r.FlowControl, RNRRetry: r.RNRRetry, SRQ: r.SRQ, LocalCAGUID: m.cfg.GUID,
	}
	copy(msg.Private[:], r.Private)
	c.setState(RepSent)
	c.sendUntil(msg, repeatsREP)
	return c, nil
}

// Reject refuses the request, with private data for the peer's application.
func (in *Incoming) Reject(private []byte) error {
	if len(private) > mad.PrivateREJ {
		return verbs.Invalid("private data of %d bytes: a rejection over RoCE has room for %d", len(private), mad.PrivateREJ)
	}
	return in.refuse(mad.ReasonConsumer, private)
}

// Refuse is Reject for a reason of the connection's own.
func (in *Incoming) Refuse(why mad.Reason) error { return in.refuse(why, nil) }

func (in *Incoming) refuse(why mad.Reason, private []byte) error {
	m := in.c.m
	m.mu.Lock()
	defer m.unlock()
	if err := in.take(); err != nil {
		return err
	}
	in.c.reject(mad.WhichREQ, why, nil, private)
	in.c.gone()
	return nil
}

// take is called by whoever answers: nobody else does after it.
func (in *Incoming) take() error {
	c := in.c
	if c.in != in {
		select {
		case <-in.over:
			return fmt.Errorf("%w: %v has given its request up, or was not answered in time", verbs.ErrTimeout, c.to)
		default:
			return errAnswered
		}
	}
	c.in = nil
	c.disarm()
	return nil
}

// req takes a REQ. The order of the checks is that of Linux's ib_cm: known requests,
// queue pairs in use, listeners, and only then what is in it. Until all have passed
// nothing is kept, and at most one message goes back for one that came.
func (m *Manager) req(in origin, msg *mad.REQ) {
	if msg.LocalCommID == 0 || !ordinaryQPN(msg.LocalQPN) || msg.PKey&0x7fff != fullPKey&0x7fff {
		m.stats.Malformed++
		return
	}
	id, qp := remoteID{in.peer, msg.LocalCAGUID, msg.LocalCommID}, remoteQP{in.peer, msg.LocalCAGUID, msg.LocalQPN}
	if c := m.byID[id]; c != nil {
		c.reqAgain()
		return
	}
	if old := m.byQP[qp]; old != nil {
		m.stats.Stale++
		m.refuse(in, msg, mad.ReasonStaleConn)
		old.stale()
		return
	}
	l := m.listeners[msg.ServiceID]
	if l == nil {
		m.refuse(in, msg, mad.ReasonInvalidServiceID)
		return
	}
	srcPort, why := m.checkREQ(in, msg)
	if why != 0 {
		m.refuse(in, msg, why)
		return
	}
	if len(l.reqs) == cap(l.reqs) {
		m.stats.Full++
		return
	}
	if !m.pendingMore(in.peer) {
		return
	}
	c := &Conn{
		m: m, peer: in.peer, to: in.to, remote: msg.LocalCommID, guid: msg.LocalCAGUID, qpn: msg.LocalQPN, tid: in.tid, ended: true,
		peerTimeout: timeout(msg.LocalCMTimeout), ackTimeout: msg.Primary.AckTimeout,
	}
	m.register(c)
	m.byID[id], m.byQP[qp] = c, c
	c.setState(ReqReceived)
	c.arm(m.cfg.Limits.Answer)
	c.in = &Incoming{c: c, over: make(chan struct{}), Request: Request{
		Service: msg.ServiceID, Transport: msg.Service, SrcPort: srcPort, QPN: msg.LocalQPN, PSN: msg.StartingPSN,
		ResponderResources: msg.ResponderResources, InitiatorDepth: msg.InitiatorDepth,
		RetryCount: msg.RetryCount, RNRRetry: msg.RNRRetry, MTU: msg.PathMTU, AckTimeout: msg.Primary.AckTimeout,
		TrafficClass: msg.Primary.TrafficClass, FlowLabel: msg.Primary.FlowLabel, FlowControl: msg.FlowControl, SRQ: msg.SRQ,
		Private: bytes.Clone(msg.Private[mad.IPHeaderLen:]), GUID: msg.LocalCAGUID,
	}}
	l.reqs <- c.in // there is room: only req sends, and m.mu is held
}

// checkREQ says what is wrong with a request, or 0.
func (m *Manager) checkREQ(in origin, msg *mad.REQ) (srcPort uint16, why mad.Reason) {
	switch {
	case msg.Service != mad.ServiceRC && msg.Service != mad.ServiceUC:
		return 0, mad.ReasonInvalidTransport
	case msg.Primary.LocalGID != mad.GID(in.peer) || msg.Primary.RemoteGID != mad.GID(m.cfg.Local):
		return 0, mad.ReasonInvalidGID
	case msg.PathMTU < 1 || msg.PathMTU > 5:
		return 0, mad.ReasonInvalidMTU
	}
	var h mad.IPHeader
	if _, _, ok := msg.ServiceID.Port(); !ok || h.Parse(msg.Private[:]) != nil || h.Src != in.peer || h.Dst != m.cfg.Local {
		return 0, mad.ReasonConsumer // as Linux's rdma_cm says it, without private data
	}
	return h.SrcPort, 0
}

// refuse answers a REQ that nothing is kept of.
func (m *Manager) refuse(in origin, msg *mad.REQ, why mad.Reason) {
	m.send(in.to, in.tid, &mad.REJ{RemoteCommID: msg.LocalCommID, Which: mad.WhichREQ, Reason: why})
}

// reqAgain answers a request that has come before.
func (c *Conn) reqAgain() {
	c.m.stats.Duplicates++
	switch c.state {
	case ReqReceived:
		c.m.send(c.to, c.tid, &mad.MRA{LocalCommID: c.id, RemoteCommID: c.remote, Which: mad.WhichREQ, ServiceTimeout: serviceTimeout})
	case RepSent:
		c.m.sendAgain(c.to, mad.AttrREP, c.repeat.b)
	}
}

// rtu ends the opening of the passive side.
func (m *Manager) rtu(in origin, msg *mad.RTU) {
	c := m.find(in, msg.RemoteCommID)
	if c == nil || c.active || c.remote != msg.LocalCommID {
		return
	}
	if c.state != RepSent {
		m.stats.Duplicates++
		return
	}
	c.establishedLocked()
}

// given reports whether a REJ is that of a peer that gives up its REQ (reason 4), and
// finds the connection by the GUID in it when the peer does not know our ID.
func (m *Manager) given(in origin, msg *mad.REJ) *Conn {
	if msg.Reason != mad.ReasonTimeout || msg.Which != mad.WhichREQ || msg.InfoLength < 8 {
		return nil
	}
	c := m.byID[remoteID{in.peer, binary.BigEndian.Uint64(msg.ARI[:]), msg.LocalCommID}]
	if c == nil || c.active {
		return nil
	}
	return c
}
