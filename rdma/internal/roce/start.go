package roce

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/rc"
	"softiser/rdma/internal/verbs"
)

// Params are a side's wishes for one connection. Package rdma documents them.
type Params struct {
	Private    []byte
	IRD, ORD   int
	Local      netip.Addr // of the active side; the zero address: the one on the way to the peer
	MTU        packet.MTU // 0: the largest that the interface carries
	AckTimeout uint8      // exponent of 4.096 µs·2^n, 1 to 31
	Retries    int        // 0 to 7
	RNRRetries int        // 0 to 7, 7 for ever
	MinRNR     packet.RNRTimer
	Timeout    time.Duration // of the start-up
	BusyPoll   time.Duration // how long the port's receiver looks for packets before it sleeps; see port.Port.Spin
}

// Info is what the two sides have agreed on.
type Info struct {
	Private       []byte // of the peer's application; zeros behind what was sent
	Initiator     bool   // this side was the active one
	IRD, ORD      int
	MTU           packet.MTU
	RemoteQPN     uint32
	Local, Remote netip.AddrPort // with the ports of rdma_cm, not UDP's
}

// window is how many packets may be in flight at most: rxe's own limit.
const window = 128

// Pair is the engine of a queue pair, of any type.
type Pair interface {
	verbs.Engine
	Retire()
	Info() Info
	core() *base
	service() mad.Service
	attach(*hostPort, *Params, link) error
}

func (*QP) service() mad.Service { return mad.ServiceRC }

// connectable is an error if a queue pair is for datagrams.
func connectable(p Pair) error {
	if u, ok := p.(*Unreliable); ok && u.datagrams {
		return verbs.Invalid("a queue pair for datagrams has no connection; look its peers up")
	}
	return nil
}

// Connect connects a queue pair to who listens at an address, on a port of rdma_cm's. The
// error is a *cm.RejectError when the peer has refused; the queue pair can be used again
// then.
func Connect(ctx context.Context, qp Pair, to netip.AddrPort, p *Params) error {
	if err := connectable(qp); err != nil {
		return err
	}
	b := qp.core()
	hp, mtu, err := b.dev.way(to.Addr(), p)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeoutCause(ctx, p.Timeout, fmt.Errorf("%w: %v; is UDP port 4791 open there, both ways, and somebody behind it?", verbs.ErrTimeout, p.Timeout))
	defer cancel()
	psn, from := packet.PSN(cm.NewPSN()), askerPort()
	forgotten := b.hold()
	conn, err := hp.CM().Connect(short, to.Addr(), &cm.Request{
		Service: mad.ServiceOf(mad.ProtocolTCP, to.Port()), Transport: qp.service(), SrcPort: from, QPN: b.Num, PSN: uint32(psn),
		ResponderResources: uint8(p.IRD), InitiatorDepth: uint8(p.ORD), RetryCount: uint8(p.Retries), RNRRetry: uint8(p.RNRRetries),
		MTU: uint8(mtu), AckTimeout: p.AckTimeout, SRQ: b.SRQ != nil, Private: p.Private,
	}, b.hooks(forgotten))
	if err != nil {
		forgotten()
		return hp.deaf(mad.GSIQPN, err)
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

// way opens the port that leads to a peer, and finds the path MTU.
func (d *Device) way(to netip.Addr, p *Params) (*hostPort, packet.MTU, error) {
	if err := reachable(to); err != nil {
		return nil, 0, err
	}
	local := p.Local
	if !local.IsValid() {
		var err error
		if local, err = LocalAddr(to); err != nil {
			return nil, 0, err
		}
	} else if local.Unmap().Is4() != to.Unmap().Is4() {
		return nil, 0, verbs.Invalid("peer %v and local address %v are of different families", to, local)
	} else if local.IsLinkLocalUnicast() && local.Zone() == "" {
		local = local.WithZone(to.Zone()) // no change for IPv4
	}
	hp, err := d.port(local)
	if err != nil {
		return nil, 0, err
	}
	mtu, err := hp.carries(p.MTU)
	return hp, mtu, err
}

// reachable is an error for what no peer can have as its address: who is asked there has made the
// ICRC for another one, and drops it without a word.
func reachable(to netip.Addr) error {
	if to.IsUnspecified() || to.IsMulticast() {
		return verbs.Invalid("%v is not the address of a peer", to)
	}
	return nil
}

// carries is the path MTU that was asked for, 0 for the largest, if the interface carries it.
func (hp *hostPort) carries(want packet.MTU) (packet.MTU, error) {
	switch {
	case want == 0:
		return hp.mtu, nil
	case want > hp.mtu:
		return 0, verbs.Invalid("path MTU %d: the interface of %v carries at most %d", want.Bytes(), hp.Addr(), hp.mtu.Bytes())
	}
	return want, nil
}

// Endpoint names one end of a connection that is made without the connection manager.
type Endpoint struct {
	Addr netip.Addr
	QPN  uint32
	PSN  uint32 // of the first packet that it sends
}

// Join connects a queue pair to one that its owner has been told of by other means, as its
// peer's is to this one. Nobody tells the peer of the end.
func Join(qp Pair, psn uint32, peer Endpoint, p *Params) error {
	if err := connectable(qp); err != nil {
		return err
	}
	b := qp.core()
	hp, mtu, err := b.dev.way(peer.Addr, p)
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

// servicePort is a port for a listener, of those that are handed out.
func servicePort() uint16 { return uint16(firstPort + rand.IntN(1<<16-firstPort)) }

// askers counts who has asked a peer for something, beginning anywhere.
var (
	askers     atomic.Uint32
	firstAsker = rand.Uint32()
)

// askerPort is the port that somebody says he has who asks: one of his own, by which the peer tells
// him from others, and what he asks once more from what somebody else does.
func askerPort() uint16 { return uint16(firstPort + (firstAsker+askers.Add(1))%(1<<16-firstPort)) }

// firstPort is the first port that this side says it has, of those that are handed out.
const firstPort = 0xc000

// link is what a connection is made of.
type link struct {
	Info
	out, in    packet.PSN // of the first request of this side, of the peer
	rnrRetries int        // as often as the peer wants to be asked again
}

// attach makes the machines of a connection, and has the port hand packets to them. begin
// must follow.
func (qp *QP) attach(hp *hostPort, p *Params, l link) error {
	s, err := hp.Sender(l.Remote.Addr(), qp.Num)
	if err != nil {
		return err
	}
	qp.Mu.Lock()
	if err := qp.idleLocked(); err != nil {
		qp.Mu.Unlock()
		return err
	}
	qp.resp = rc.NewResponder(qp.QP, rc.Params{RemoteQPN: l.RemoteQPN, MTU: l.MTU, PSN: l.in, Resources: l.IRD, MinRNR: p.MinRNR})
	qp.peer = l.Remote.Addr()
	qp.req = rc.NewRequester(qp.QP, rc.RequesterParams{
		RemoteQPN: l.RemoteQPN, MTU: l.MTU, PSN: l.out, Depth: l.ORD, Window: window, MaxRead: hp.maxRead,
		Path: hp.paths.join(qp.peer, l.MTU.Bytes()), Intake: hp.intake,
		AckTimeout: ackTimeout(p.AckTimeout), Retries: p.Retries, RNRRetries: l.rnrRetries, Local: qp.Local,
	})
	qp.port, qp.info, qp.send, qp.start = hp, l.Info, s, hp.start
	qp.timer = time.AfterFunc(never, qp.tick)
	qp.timer.Stop()
	qp.open, qp.told = l.Initiator, l.Initiator
	qp.Connected = true
	hook := qp.SetState(verbs.StateRTS)
	qp.wg.Add(1)
	qp.Mu.Unlock()
	hook()
	hp.Attach(qp.Num, l.Remote.Addr(), qp.take, qp.batchEnd)
	hp.Spin(qp.Num, p.BusyPoll)
	return nil
}

// never is longer than anybody waits.
const never = 1000 * time.Hour

// ackTimeout is what the exponent says (IBA vol. 1 §9.7.6.1.3).
func ackTimeout(n uint8) time.Duration { return time.Duration(4096) << n }

// Listener takes connection requests for one port of rdma_cm's at one address.
type Listener struct {
	l    *cm.Listener
	port *hostPort
	at   netip.AddrPort
}

// Listen listens. Port 0 stands for any that is free.
func (d *Device) Listen(at netip.AddrPort, backlog int) (*Listener, error) {
	hp, err := d.port(at.Addr())
	if err != nil {
		return nil, err
	}
	const tries = 64
	for try := 0; ; try++ {
		to := cmp.Or(at.Port(), servicePort())
		l, err := hp.CM().Listen(mad.ServiceOf(mad.ProtocolTCP, to), backlog)
		if err == nil {
			return &Listener{l, hp, netip.AddrPortFrom(hp.Addr(), to)}, nil
		}
		if at.Port() != 0 || try == tries {
			return nil, err
		}
	}
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

// Accept connects a queue pair, of the type of the peer's. When the peer has given up
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
