package roce

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// Connect connects a queue pair to the listener at an address and rdma_cm port. The error is a
// *cm.RejectError when the peer has refused; the queue pair can be used again then.
func Connect(ctx context.Context, qp Pair, to netip.AddrPort, p *Params) error {
	if err := connectable(qp); err != nil {
		return err
	}
	b := qp.core()
	hp, mtu, err := b.dev.route(to.Addr(), p)
	if err != nil {
		return err
	}
	short, cancel := within(ctx, p.Timeout)
	defer cancel()
	psn, from := packet.PSN(cm.NewPSN()), sourcePort()
	forgotten := b.hold()
	conn, err := hp.CM().Connect(short, to.Addr(), &cm.Request{
		Service: mad.ServiceOf(mad.ProtocolTCP, to.Port()), Transport: qp.service(), SrcPort: from, QPN: b.Num, PSN: uint32(psn),
		ResponderResources: uint8(p.IRD), InitiatorDepth: uint8(p.ORD), RetryCount: uint8(p.Retries), RNRRetry: uint8(p.RNRRetries),
		MTU: uint8(mtu), AckTimeout: p.AckTimeout, SRQ: b.SRQ != nil, Private: p.Private,
	}, b.hooks(forgotten))
	if err != nil {
		forgotten()
		return hp.explain(mad.GSIQPN, err)
	}
	r := conn.Reply()
	err = qp.attach(hp, p, link{
		Info: Info{
			Private: r.Private, Initiator: true, IRD: p.IRD, ORD: min(p.ORD, int(r.ResponderResources)), MTU: mtu, RemoteQPN: r.QPN,
			Local: netip.AddrPortFrom(hp.Addr(), from), Remote: to,
		},
		out: packet.PSN(r.PSN), in: psn, rnrRetries: int(r.RNRRetry),
	})
	if err != nil {
		_ = conn.Refuse(mad.ReasonConsumer, nil)
		return err
	}
	return b.begin(conn, conn.Establish())
}

// within bounds the time that a peer may take to answer.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%w: %v; is UDP port 4791 open there, both ways, and somebody behind it?", verbs.ErrTimeout, d))
}

// Endpoint names one end of a connection that is made without the connection manager.
type Endpoint struct {
	Addr netip.Addr
	QPN  uint32
	PSN  uint32 // of the first packet that it sends
}

// Join connects a queue pair to one that its owner knows by other means than the connection
// manager; the peer does the same. Neither end is told of the other's end.
func Join(qp Pair, psn uint32, peer Endpoint, p *Params) error {
	if err := connectable(qp); err != nil {
		return err
	}
	b := qp.core()
	hp, mtu, err := b.dev.route(peer.Addr, p)
	if err != nil {
		return err
	}
	err = qp.attach(hp, p, link{
		Info: Info{
			Initiator: true, IRD: p.IRD, ORD: p.ORD, MTU: mtu, RemoteQPN: peer.QPN,
			Local: netip.AddrPortFrom(hp.Addr(), 0), Remote: netip.AddrPortFrom(peer.Addr, 0),
		},
		out: packet.PSN(psn), in: packet.PSN(peer.PSN), rnrRetries: p.RNRRetries,
	})
	if err != nil {
		return err
	}
	return b.begin(nil, nil)
}
