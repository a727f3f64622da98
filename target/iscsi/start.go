package iscsi

import (
	"context"
	"errors"
	"net"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/iser"
	"softiser/internal/sockio"
	"softiser/internal/tlsio"
	"softiser/target/portal"
)

// Accept gives a connection to its datamover, which takes it to its login. It implements
// portal.Frontend.
func (s *Frontend) Accept(n *portal.Conn) error {
	c := newConn(s, n)
	var err error
	if n.Net != nil {
		if c.raw, err = n.Net.SyscallConn(); err != nil {
			return err
		}
	}
	if c.dm, c.shown, err = s.datamover(n); err != nil {
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

func newConn(s *Frontend, n *portal.Conn) *conn {
	c := &conn{
		srv: s, portal: n.Portal, kind: n.Transport, local: n.Local, remote: n.Remote, opened: n.Opened,
		log: n.Log, place: n.Place, ended: make(chan struct{}),
	}
	c.assemble()
	return c
}

func tcpConfig(s *Frontend, p *portal.Portal, tally *sockio.Tally) iscsitcp.Config {
	return iscsitcp.Config{
		Socket: sockio.Options{BusyPoll: p.Config().BusyPoll, Tally: tally}, SequenceTimeout: max(s.cfg.Timeouts.Sequence, 0), Memory: s.cfg.Staging,
	}
}

func (s *Frontend) iserConfig(p *portal.Portal) iser.ConnConfig {
	c := p.Config()
	return iser.ConnConfig{Memory: s.cfg.Staging, RDMA: c.RDMA()}
}

// datamover makes the transport of a connection, and tells of the certificate that the
// initiator has shown, if it has. The connection belongs to it when there is no error.
func (s *Frontend) datamover(n *portal.Conn) (dm iscsi.Datamover, c certificate, err error) {
	var nc net.Conn = n.Net
	if n.Transport == portal.TLS {
		t, c2, err := s.secure(n)
		if err != nil {
			return nil, c, err
		}
		nc, c = t, c2
	}
	dm, err = s.transport(n, nc)
	return dm, c, err
}

// secure does the handshake of TLS, within the time that a connection has before its login.
func (s *Frontend) secure(n *portal.Conn) (*tlsio.Conn, certificate, error) {
	certs := n.Portal.Certificates()
	if certs == nil { // a reload has taken them away since the portal was looked at
		return nil, certificate{}, errNoCertificates
	}
	deadline := n.Deadline
	if deadline.IsZero() {
		deadline = time.Now().Add(handshakeTime)
	}
	ctx, cancel := context.WithDeadline(s.life, deadline)
	defer cancel()
	t, err := tlsio.Server(ctx, n.Net, certs.Config())
	if err != nil {
		return nil, certificate{}, err
	}
	return t, certificateOf(t.State().PeerCertificates, certs.NameInitiators), nil
}

// handshakeTime bounds that of TLS where the portal has no bound.
const handshakeTime = 30 * time.Second

var errNoCertificates = errors.New("TLS: the portal has no certificate")

// transport makes the datamover of a connection over nc.
func (s *Frontend) transport(n *portal.Conn, nc net.Conn) (iscsi.Datamover, error) {
	p := n.Portal.Config()
	stream := p.StreamLogin && s.wires.RDMA != nil && !p.NoISER
	if n.Transport == portal.TLS || n.Transport == portal.TCP && !stream {
		return iscsitcp.New(nc, iscsi.RoleTarget, tcpConfig(s, n.Portal, s.wires.Tally(n.Transport)))
	}
	cfg := s.iserConfig(n.Portal)
	if !n.Deadline.IsZero() {
		cfg.RDMA.Timeout = max(time.Until(n.Deadline), time.Millisecond)
	}
	if n.Transport == portal.TCP {
		return s.wires.RDMA.Upgrade(n.Net, iscsi.RoleTarget, iscsitcp.Config{Socket: sockio.Options{BusyPoll: p.BusyPoll}, Memory: s.cfg.Staging}, cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	if n.Transport == portal.RoCE {
		return s.wires.RoCE.Accept(ctx, n.Request, cfg)
	}
	return s.wires.RDMA.Serve(ctx, n.Net, cfg)
}
