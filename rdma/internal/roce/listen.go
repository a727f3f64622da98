package roce

import (
	"context"
	"net/netip"

	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// Listener takes connection requests for one rdma_cm port of one address.
type Listener struct {
	l    *cm.Listener
	port *hostPort
	at   netip.AddrPort
}

// Listen listens at an address and rdma_cm port. Port 0 stands for any that is free.
func (d *Device) Listen(at netip.AddrPort, backlog int) (*Listener, error) {
	hp, err := d.port(at.Addr())
	if err != nil {
		return nil, err
	}
	var l *cm.Listener
	port, err := bind(at.Port(), func(port uint16) (err error) {
		l, err = hp.CM().Listen(mad.ServiceOf(mad.ProtocolTCP, port), backlog)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Listener{l, hp, netip.AddrPortFrom(hp.Addr(), port)}, nil
}

// Addr is where it listens.
func (l *Listener) Addr() netip.AddrPort { return l.at }

// Close ends it, and rejects the requests that nobody has accepted.
func (l *Listener) Close() { l.l.Close() }

// Accept waits for the next request that this side can serve.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	for {
		in, err := l.l.Accept(ctx)
		if err != nil {
			return nil, err
		}
		switch r := &in.Request; {
		case r.Transport != mad.ServiceRC && r.Transport != mad.ServiceUC:
			_ = in.Refuse(mad.ReasonInvalidTransport)
		case packet.MTU(r.MTU) > l.port.mtu:
			// Our own packets would not fit the interface.
			_ = in.Refuse(mad.ReasonInvalidMTU)
		default:
			return &Request{in, l}, nil
		}
	}
}

// Request is a connection that a peer asks for. It is answered once.
type Request struct {
	in *cm.Incoming
	l  *Listener
}

// Private is what the peer's application sent along, with zeros behind it.
func (r *Request) Private() []byte { return r.in.Request.Private }

// IRD is how many Reads the peer serves at once, ORD how many it wants outstanding.
func (r *Request) IRD() int { return int(r.in.Request.ResponderResources) }

// ORD is described at IRD.
func (r *Request) ORD() int { return int(r.in.Request.InitiatorDepth) }

// Unreliable says that the peer's queue pair is of the type UC.
func (r *Request) Unreliable() bool { return r.in.Request.Transport == mad.ServiceUC }

// Remote is where the request came from, which nobody has proved yet.
func (r *Request) Remote() netip.AddrPort {
	return netip.AddrPortFrom(r.in.Peer(), r.in.Request.SrcPort)
}

// Local is where it was sent to.
func (r *Request) Local() netip.AddrPort { return r.l.at }

// Reject refuses it.
func (r *Request) Reject(private []byte) error { return r.in.Reject(private) }

// Fail refuses it for a reason of our own.
func (r *Request) Fail() { _ = r.in.Refuse(mad.ReasonNoResources) }

// Accept connects a queue pair, which must be of the peer's type. If the peer has given up
// meanwhile, the queue pair has ended.
func (r *Request) Accept(qp Pair, p *Params) error {
	q := &r.in.Request
	err := connectable(qp)
	if err == nil && qp.service() != q.Transport {
		err = verbs.Invalid("the queue pair of the peer is of another type: unreliable there: %v, here: %v", r.Unreliable(), qp.service() == mad.ServiceUC)
	}
	if err != nil {
		r.Fail()
		return err
	}
	b, psn := qp.core(), packet.PSN(cm.NewPSN())
	l := link{
		Info: Info{
			Private: q.Private, IRD: min(p.IRD, int(q.InitiatorDepth)), ORD: min(p.ORD, int(q.ResponderResources)),
			MTU: packet.MTU(q.MTU), RemoteQPN: q.QPN, Local: r.Local(), Remote: r.Remote(),
		},
		out: packet.PSN(q.PSN), in: psn, rnrRetries: int(q.RNRRetry),
	}
	if err := qp.attach(r.l.port, p, l); err != nil {
		r.Fail()
		return err
	}
	forgotten := b.hold()
	conn, err := r.in.Accept(&cm.Reply{
		QPN: b.Num, PSN: uint32(psn), ResponderResources: uint8(l.IRD), InitiatorDepth: uint8(l.ORD),
		RNRRetry: uint8(p.RNRRetries), SRQ: b.SRQ != nil, Private: p.Private,
	}, b.hooks(forgotten))
	if err != nil {
		forgotten()
	}
	return b.begin(conn, err)
}
