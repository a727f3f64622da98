package cm

import (
	"context"
	"fmt"
	"net/netip"

	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/verbs"
)

var errSlow = fmt.Errorf("%w: this side took too long", verbs.ErrTimeout)

// Connect asks the Manager at an address for a connection, and waits for its answer.
// Then the queue pair is made ready, by what Reply says, and Establish called. The
// error is a *RejectError when the peer has refused.
func (m *Manager) Connect(ctx context.Context, to netip.Addr, r *Request, h Hooks) (*Conn, error) {
	msg, err := m.request(plain(to), r)
	if err != nil {
		return nil, err
	}
	answer := make(chan error, 1)
	c := &Conn{
		m: m, hooks: h, active: true, peer: plain(to), to: to, localQPN: r.QPN, answer: answer,
		peerTimeout: timeout(responseTimeout) + 2*timeout(msg.Primary.AckTimeout-1), ackTimeout: msg.Primary.AckTimeout,
	}
	m.mu.Lock()
	if m.closed {
		m.unlock()
		return nil, errManagerClosed
	}
	m.register(c)
	msg.LocalCommID, c.tid = c.id, c.ownTID()
	c.setState(ReqSent)
	c.sendUntil(msg, repeatsREQ)
	m.unlock()

	select {
	case err = <-answer:
	case <-ctx.Done():
		m.mu.Lock()
		select {
		case err = <-answer:
		default:
			c.giveUp()
			c.ended = true
			c.gone()
			err = fmt.Errorf("rdma: connection to %v: %w", to, context.Cause(ctx))
		}
		m.unlock()
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// request is the REQ that says what r does, without our communication ID.
func (m *Manager) request(to netip.Addr, r *Request) (*mad.REQ, error) {
	if len(r.Private) > mad.UserREQ {
		return nil, verbs.Invalid("private data of %d bytes: a request over RoCE has room for %d", len(r.Private), mad.UserREQ)
	}
	if !ordinaryQPN(r.QPN) || r.PSN > 0xffffff || r.MTU < 1 || r.MTU > 5 || r.RetryCount > 7 || r.RNRRetry > 7 || r.AckTimeout > 31 || r.FlowLabel > 0xfffff {
		return nil, verbs.Invalid("connection request %+v", *r)
	}
	if to.Is4() != m.cfg.Local.Is4() {
		return nil, verbs.Invalid("peer %v and local address %v are of different families", to, m.cfg.Local)
	}
	_, port, ok := r.Service.Port()
	if !ok {
		return nil, verbs.Invalid("service ID %v is none of rdma_cm's", r.Service)
	}
	label, ack := r.FlowLabel, r.AckTimeout
	if label == 0 {
		label = (uint32(r.SrcPort)*31 + uint32(port)) & 0xfffff
	}
	if ack == 0 {
		ack = ackTimeout
	}
	msg := &mad.REQ{
		ServiceID: r.Service, LocalCAGUID: m.cfg.GUID, LocalQPN: r.QPN, StartingPSN: r.PSN,
		ResponderResources: r.ResponderResources, InitiatorDepth: r.InitiatorDepth,
		RemoteCMTimeout: responseTimeout, LocalCMTimeout: responseTimeout, MaxCMRetries: cmRetries,
		Service: r.Transport, FlowControl: r.FlowControl, RetryCount: r.RetryCount, RNRRetry: r.RNRRetry, SRQ: r.SRQ,
		PKey: fullPKey, PathMTU: r.MTU,
		Primary: mad.Path{
			LocalLID: noLID, RemoteLID: noLID, LocalGID: mad.GID(m.cfg.Local), RemoteGID: mad.GID(to),
			FlowLabel: label, TrafficClass: r.TrafficClass, HopLimit: hopLimit, AckTimeout: ack,
		},
	}
	(&mad.IPHeader{SrcPort: r.SrcPort, Src: m.cfg.Local, Dst: to}).Put(msg.Private[:])
	copy(msg.Private[mad.IPHeaderLen:], r.Private)
	return msg, nil
}

// rep takes the answer to our REQ, perhaps not for the first time.
func (m *Manager) rep(in origin, msg *mad.REP) {
	c := m.find(in, msg.RemoteCommID)
	if c == nil || !c.active {
		return
	}
	switch c.state {
	case ReqSent:
		c.repReceived(msg)
	case RepReceived:
		m.stats.Duplicates++
		if msg.LocalCommID == c.remote {
			m.send(c.to, c.tid, &mad.MRA{LocalCommID: c.id, RemoteCommID: c.remote, Which: mad.WhichREP, ServiceTimeout: serviceTimeout})
		}
	case Established:
		m.stats.Duplicates++
		if msg.LocalCommID == c.remote {
			m.sendAgain(c.to, mad.AttrRTU, c.repeat.b)
		}
	default:
		m.stats.Unmatched++
	}
}

func (c *Conn) repReceived(msg *mad.REP) {
	m := c.m
	if !ordinaryQPN(msg.LocalQPN) || msg.LocalCommID == 0 {
		m.stats.Malformed++
		return
	}
	c.remote, c.guid, c.qpn = msg.LocalCommID, msg.LocalCAGUID, msg.LocalQPN
	c.setState(RepReceived)
	if old := m.byQP[remoteQP{c.peer, c.guid, c.qpn}]; old != nil {
		m.stats.Stale++
		old.stale()
		c.reject(mad.WhichREP, mad.ReasonStaleConn, nil, nil)
		c.end(ErrStale)
		return
	}
	m.byQP[remoteQP{c.peer, c.guid, c.qpn}] = c
	m.byID[remoteID{c.peer, c.guid, c.remote}] = c
	c.reply = Reply{
		QPN: msg.LocalQPN, PSN: msg.StartingPSN, ResponderResources: msg.ResponderResources, InitiatorDepth: msg.InitiatorDepth,
		RNRRetry: msg.RNRRetry, AckDelay: msg.AckDelay, FlowControl: msg.FlowControl, SRQ: msg.SRQ, Private: msg.Private[:], GUID: msg.LocalCAGUID,
	}
	c.arm(m.cfg.Limits.Answer)
	c.answerLocked(nil)
}

// Reply is what the peer has answered; it does not change.
func (c *Conn) Reply() Reply { return c.reply }

// Establish ends the active side's opening: the queue pair is ready.
func (c *Conn) Establish() error {
	c.m.mu.Lock()
	defer c.m.unlock()
	if c.state != RepReceived {
		return fmt.Errorf("%w: the connection is %v", verbs.ErrState, c.state)
	}
	c.disarm()
	c.setState(Established)
	c.repeat.b = c.m.send(c.to, c.tid, &mad.RTU{LocalCommID: c.id, RemoteCommID: c.remote})
	return nil
}

// Refuse ends it: the queue pair cannot be made ready. There is no Hooks.Ended then.
func (c *Conn) Refuse(why mad.Reason, private []byte) error {
	c.m.mu.Lock()
	defer c.m.unlock()
	if c.state != RepReceived {
		return fmt.Errorf("%w: the connection is %v", verbs.ErrState, c.state)
	}
	c.reject(mad.WhichREP, why, nil, private)
	c.ended = true
	c.gone()
	return nil
}
