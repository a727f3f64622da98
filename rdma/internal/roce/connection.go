package roce

import (
	"net/netip"

	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/uc"
	"softiser/rdma/internal/verbs"
)

// unreliableConn is the machine of UC.
type unreliableConn struct {
	s *uc.Sender
	r *uc.Receiver
}

func (c *unreliableConn) take(_, _ netip.Addr, p *packet.Packet) { c.r.Receive(p) }

func (c *unreliableConn) next(o *message.Outgoing) (*verbs.AddressHandle, bool) {
	return nil, c.s.Next(o)
}

func (c *unreliableConn) unreadable()                       { c.s.Unreadable() }
func (c *unreliableConn) sent()                             { c.s.Sent() }
func (c *unreliableConn) takeWCs(wcs []verbs.WC) []verbs.WC { return c.r.TakeWCs(wcs) }
func (c *unreliableConn) flush()                            { c.r.Flush() }

func (c *unreliableConn) err() error {
	if err := c.s.Err(); err != nil {
		return err
	}
	return c.r.Err()
}

func (*Unreliable) service() mad.Service { return mad.ServiceUC }

// attach makes the machine of a connection, and has the port hand packets to it. begin
// must follow.
func (u *Unreliable) attach(hp *hostPort, p *Params, l link) error {
	s, err := hp.Sender(l.Remote.Addr(), u.Num)
	if err != nil {
		return err
	}
	u.Mu.Lock()
	if err := u.idleLocked(); err != nil {
		u.Mu.Unlock()
		return err
	}
	u.m = &unreliableConn{
		uc.NewSender(u.QP, uc.SenderParams{RemoteQPN: l.RemoteQPN, MTU: l.MTU, PSN: l.out, Local: u.Local}),
		uc.NewReceiver(u.QP, l.MTU, l.in),
	}
	u.send = s
	hook := u.startLocked(hp, l.Info)
	u.Mu.Unlock()
	hook()
	hp.Attach(u.Num, l.Remote.Addr(), u.take, u.batchEnd)
	hp.Spin(u.Num, p.BusyPoll)
	return nil
}
