package roce

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/ud"
	"softiser/rdma/internal/verbs"
)

// datagrams is the machine of UD.
type datagrams struct {
	s *ud.Sender
	r *ud.Receiver
}

func (d *datagrams) take(from, to netip.Addr, p *packet.Packet) { d.r.Receive(from, to, p) }

func (d *datagrams) next(o *message.Outgoing) (*verbs.AddressHandle, bool) { return d.s.Next(o) }

func (d *datagrams) unreadable()                       { d.s.Unreadable() }
func (d *datagrams) sent()                             { d.s.Sent() }
func (d *datagrams) err() error                        { return d.r.Err() }
func (d *datagrams) takeWCs(wcs []verbs.WC) []verbs.WC { return d.r.TakeWCs(wcs) }
func (d *datagrams) flush()                            { d.r.Flush() }

// Open binds a queue pair for datagrams to a local address, and makes it ready. MTU 0 is
// the largest that the interface carries.
func (u *Unreliable) Open(local netip.Addr, qkey uint32, mtu packet.MTU) error {
	hp, err := u.dev.port(local)
	if err != nil {
		return err
	}
	if mtu, err = hp.carries(mtu); err != nil {
		return err
	}
	p := ud.Params{QPN: u.Num, QKey: qkey, MTU: mtu, PSN: packet.PSN(cm.NewPSN()), Local: u.Local}
	u.Mu.Lock()
	if err := u.idleLocked(); err != nil {
		u.Mu.Unlock()
		return err
	}
	u.m, u.qkey = &datagrams{ud.NewSender(u.QP, p), ud.NewReceiver(u.QP, p)}, qkey
	u.send = hp.DatagramSender(u.Num)
	hook := u.startLocked(hp, Info{MTU: mtu, Local: netip.AddrPortFrom(hp.Addr(), 0)})
	u.Mu.Unlock()
	hook()
	hp.Attach(u.Num, netip.Addr{}, u.take, u.batchEnd)
	return u.begin(nil, nil)
}

// QKey is what datagrams to the queue pair have to carry.
func (u *Unreliable) QKey() uint32 {
	u.Mu.Lock()
	defer u.Mu.Unlock()
	return u.qkey
}

// readyPort is the port of a queue pair for datagrams that is in use.
func (u *Unreliable) readyPort() (*hostPort, error) {
	u.Mu.Lock()
	defer u.Mu.Unlock()
	if st := u.StateLocked(); st != verbs.StateRTS {
		return nil, fmt.Errorf("%w: queue pair %d is in state %v", verbs.ErrState, u.Num, st)
	}
	return u.port, nil
}

// JoinGroup has the queue pair receive what is sent to a multicast group.
func (u *Unreliable) JoinGroup(group netip.Addr) error {
	hp, err := u.readyPort()
	if err != nil {
		return err
	}
	group = group.Unmap()
	switch {
	case !group.IsMulticast():
		return verbs.Invalid("%v is not the address of a multicast group", group)
	case group.Is4() != hp.Addr().Is4():
		return verbs.Invalid("group %v and local address %v are of different families", group, hp.Addr())
	}
	take := func(from netip.AddrPort, p *packet.Packet) { u.takeFor(group, from, p) }
	if err := hp.AttachGroup(group, u.Num, take, u.batchEnd); err != nil {
		return err
	}
	u.Mu.Lock()
	late := u.Dying.Load()
	if !late {
		u.groups = append(u.groups, group)
	}
	u.Mu.Unlock()
	if late { // the queue pair has left its groups already, without this one
		hp.DetachGroup(group, u.Num)
		return fmt.Errorf("%w: queue pair %d", verbs.ErrClosed, u.Num)
	}
	return nil
}

// LeaveGroup undoes JoinGroup.
func (u *Unreliable) LeaveGroup(group netip.Addr) error {
	group = group.Unmap()
	u.Mu.Lock()
	i := slices.Index(u.groups, group)
	if i >= 0 {
		u.groups = slices.Delete(u.groups, i, i+1)
	}
	u.Mu.Unlock()
	if i < 0 {
		return verbs.Invalid("queue pair %d has not joined %v", u.Num, group)
	}
	u.port.DetachGroup(group, u.Num)
	return nil
}

// Lookup asks for the queue pair behind an address and rdma_cm port for datagrams (SIDR), and waits for
// timeout at most.
func (u *Unreliable) Lookup(ctx context.Context, to netip.AddrPort, private []byte, timeout time.Duration) (*cm.LookupAnswer, error) {
	hp, err := u.readyPort()
	if err == nil {
		err = reachable(to.Addr())
	}
	if err != nil {
		return nil, err
	}
	short, cancel := within(ctx, timeout)
	defer cancel()
	a, err := hp.CM().Resolve(short, to.Addr(), &cm.Lookup{Service: mad.ServiceOf(mad.ProtocolUDP, to.Port()), SrcPort: sourcePort(), Private: private})
	if err != nil {
		return nil, hp.explain(mad.GSIQPN, err)
	}
	return a, nil
}

// Service answers lookups of one rdma_cm port for datagrams.
type Service struct {
	port *hostPort
	at   netip.AddrPort
}

// Serve answers lookups by f, which is told where it was asked and must not block. Port 0 stands for any that is free.
func (d *Device) Serve(at netip.AddrPort, f func(netip.AddrPort, *cm.Lookup) cm.LookupAnswer) (*Service, error) {
	hp, err := d.port(at.Addr())
	if err != nil {
		return nil, err
	}
	port, err := bind(at.Port(), func(port uint16) error {
		at := netip.AddrPortFrom(hp.Addr(), port)
		return hp.CM().Serve(mad.ServiceOf(mad.ProtocolUDP, port), func(l *cm.Lookup) cm.LookupAnswer { return f(at, l) })
	})
	if err != nil {
		return nil, err
	}
	return &Service{hp, netip.AddrPortFrom(hp.Addr(), port)}, nil
}

// Addr is where it answers.
func (s *Service) Addr() netip.AddrPort { return s.at }

// Close ends it.
func (s *Service) Close() { s.port.CM().Unserve(mad.ServiceOf(mad.ProtocolUDP, s.at.Port())) }
