package iscsi

import (
	"context"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/iser"
	"softiser/internal/sockio"
	"softiser/target/portal"
)

// Accept gives a connection to its datamover, which takes it to its login. It implements
// portal.Frontend.
func (s *Frontend) Accept(n *portal.Conn) error {
	c := &conn{
		srv:    s,
		portal: n.Portal,
		kind:   n.Transport,
		local:  n.Local,
		remote: n.Remote,
		opened: n.Opened,
		log:    n.Log,
		place:  n.Place,
		ended:  make(chan struct{}),
	}
	c.assemble()
	var err error
	if n.Net != nil {
		if c.raw, err = n.Net.SyscallConn(); err != nil {
			return err
		}
	}
	if c.dm, err = s.datamover(n); err != nil {
		return err
	}
	c.startLogin()
	if !s.addConn(c) {
		c.timer.Stop()
		c.dm.Terminate(errShutdown)
		return errShutdown
	}
	n.OnEvict(func() { c.close(errEvicted) })
	c.dm.Start(c)
	return nil
}

// datamover makes the transport of a connection. The connection belongs to it
// when there is no error.
func (s *Frontend) datamover(n *portal.Conn) (iscsi.Datamover, error) {
	p := n.Portal.Config()
	stream := p.StreamLogin && s.rdma != nil && !p.NoISER
	if n.Transport == portal.TCP && !stream {
		return iscsitcp.New(n.Net, iscsi.RoleTarget, iscsitcp.Config{
			Socket: sockio.Options{BusyPoll: p.BusyPoll}, SequenceTimeout: max(s.cfg.Timeouts.Sequence, 0), Memory: s.cfg.Staging,
		})
	}
	cfg := iser.ConnConfig{Memory: s.cfg.Staging, RDMA: p.RDMA()}
	if !n.Deadline.IsZero() {
		cfg.RDMA.Timeout = max(time.Until(n.Deadline), time.Millisecond)
	}
	if n.Transport == portal.TCP {
		return s.rdma.Upgrade(n.Net, iscsi.RoleTarget, iscsitcp.Config{Socket: sockio.Options{BusyPoll: p.BusyPoll}, Memory: s.cfg.Staging}, cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	if n.Transport == portal.RoCE {
		return s.roce.Accept(ctx, n.Request, cfg)
	}
	return s.rdma.Serve(ctx, n.Net, cfg)
}
