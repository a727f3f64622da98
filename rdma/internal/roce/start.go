package roce

import (
	"net/netip"
	"time"

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

// connectable is an error for a queue pair of the type UD.
func connectable(p Pair) error {
	if u, ok := p.(*Unreliable); ok && u.datagrams {
		return verbs.Invalid("a queue pair for datagrams has no connection; look its peers up")
	}
	return nil
}

// route opens the port that leads to a peer, and finds the path MTU.
func (d *Device) route(to netip.Addr, p *Params) (*hostPort, packet.MTU, error) {
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

// reachable is an error for an address that no peer can have: whoever receives what is sent there
// computes the ICRC over another destination address, and drops the packet silently.
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
