package target

import (
	"context"
	"net"
	"time"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/iser"
	"softiser/rdma"
)

// start gives a connection whose transport is known to its datamover.
func (p *portal) start(n *newcomer, kind transport, log *zap.Logger) error {
	nc := n.nc
	c := &conn{
		srv:    p.srv,
		portal: p,
		kind:   kind,
		local:  nc.LocalAddr().(*net.TCPAddr).AddrPort(),
		remote: nc.RemoteAddr().(*net.TCPAddr).AddrPort(),
		opened: n.opened,
		log:    log,
		place:  n.place,
		ended:  make(chan struct{}),
	}
	var err error
	if c.raw, err = nc.SyscallConn(); err != nil {
		return err
	}
	if c.dm, err = p.datamover(nc, kind, n.opened); err != nil {
		return err
	}
	c.startLogin()
	if !p.srv.addConn(c) {
		c.timer.Stop()
		c.dm.Terminate(errShutdown)
		return errShutdown
	}
	n.conn.Store(c)
	c.dm.Start(c)
	return nil
}

// datamover makes the transport of a connection. The connection belongs to it
// when there is no error.
func (p *portal) datamover(nc *net.TCPConn, kind transport, opened time.Time) (iscsi.Datamover, error) {
	stream := p.cfg.StreamLogin && p.srv.rdma != nil && !p.cfg.NoISER
	if kind == transportTCP && !stream {
		return iscsitcp.New(nc, iscsi.RoleTarget, iscsitcp.Config{
			SequenceTimeout: max(p.srv.cfg.Timeouts.Sequence, 0), Memory: p.srv.cfg.Staging,
		})
	}
	cfg := iser.ConnConfig{Memory: p.srv.cfg.Staging, RDMA: rdma.ConnParams{
		// The target issues the RDMA Reads and serves none, as Linux targets do:
		// IRD is there for peers that insist on at least one.
		IRD: 1, ORD: p.cfg.ORD,
		GSO: p.cfg.LargeFPDU, BusyPoll: max(p.cfg.BusyPoll, 0),
		SndBuf: p.cfg.SendBuffer, RcvBuf: p.cfg.RecvBuffer, Congestion: p.cfg.CongestionControl,
	}}
	if p.cfg.BusyPoll == 0 {
		cfg.RDMA.BusyPoll = rdma.BusyPollAuto
	}
	switch p.cfg.CRC {
	case CRCOffered:
		cfg.RDMA.CRC = rdma.CRCOffered
	case CRCOff:
		cfg.RDMA.CRC = rdma.CRCOff
	}
	switch p.cfg.Zerocopy {
	case ZerocopyAuto:
		cfg.RDMA.Zerocopy = rdma.ZerocopyAuto
	case ZerocopyOn:
		cfg.RDMA.Zerocopy = rdma.ZerocopyOn
	}
	if t := p.srv.cfg.Timeouts.FirstBytes; t > 0 {
		cfg.RDMA.Timeout = max(t-time.Since(opened), time.Millisecond)
	}
	if kind == transportTCP {
		return p.srv.rdma.Upgrade(nc, iscsi.RoleTarget, iscsitcp.Config{Memory: p.srv.cfg.Staging}, cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(p.srv.life, cancel)()
	return p.srv.rdma.Serve(ctx, nc, cfg)
}
