package iser

import (
	"context"
	"errors"
	"fmt"
	"net"

	"softiser/internal/congestion"
	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
	"softiser/rdma"
)

// This file is how a connection is made, by either side.

// ConnConfig is how a connection is made. Zero fields mean the default beside
// them.
type ConnConfig struct {
	// RDMA holds CRC, FPDU size, timeouts and socket options. PrivateData is set
	// by this package; IRD and ORD default to 128 and 1 for the initiator, 1 and 32
	// for the target.
	RDMA rdma.ConnParams
	// NoRemoteInvalidate keeps this side from agreeing to Send with Invalidate.
	NoRemoteInvalidate bool
	// Memory bounds, over all connections, the answers that peers leave unread; nil:
	// each connection has a bound of its own only.
	Memory iscsi.Memory
	// RequireHello makes the initiator ask for the Hello exchange (RFC 7145 §6.10).
	RequireHello bool

	// rfc: the stream was upgraded, the peer follows RFC 7145 to the letter.
	rfc bool
}

// newConn makes the queue pair; it is not connected yet.
func (d *Device) newConn(role iscsi.Role, cfg ConnConfig) (*Conn, error) {
	c := &Conn{role: role, cfg: cfg, startCh: make(chan struct{}), ended: make(chan struct{}), quiet: role == iscsi.RoleTarget}
	c.over.told.L = &c.mu
	c.unread.init(cfg.Memory)
	c.hello.role, c.hello.pump = role, &c.pump
	c.params = iscsi.NewNegotiation(role, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
	var err error
	c.link, err = d.NewLink(rdmamsg.LinkConfig{Sent: c.sendHandler, Received: c.recvHandler, Disconnected: func() { go c.finish() }})
	if err != nil {
		return nil, fmt.Errorf("iser: %w", err)
	}
	c.qp, c.windows = c.link.QP, c.link.Windows()
	c.pump.Init(c.link, (*owner)(c))
	return c, nil
}

// Dial connects as initiator.
func (d *Device) Dial(ctx context.Context, network, addr string, cfg ConnConfig) (*Conn, error) {
	nd := net.Dialer{Control: congestion.Dialing(cfg.RDMA.Congestion)}
	nc, err := nd.DialContext(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("iser: %w", err)
	}
	return d.Client(ctx, nc, cfg)
}

// Client connects as initiator over an open TCP connection, which it takes over.
func (d *Device) Client(ctx context.Context, nc net.Conn, cfg ConnConfig) (*Conn, error) {
	return d.connect(cfg, nc.Close, func(qp *rdma.QP, p *rdma.ConnParams) (*rdma.ConnInfo, error) { return rdma.Client(ctx, nc, qp, p) })
}

// DialRoCE connects as initiator over RoCE, of which the device is. The port in addr is one
// of rdma_cm.
func (d *Device) DialRoCE(ctx context.Context, addr string, cfg ConnConfig) (*Conn, error) {
	return d.connect(cfg, func() error { return nil }, func(qp *rdma.QP, p *rdma.ConnParams) (*rdma.ConnInfo, error) {
		return rdmamsg.DialRoCE(ctx, addr, qp, p)
	})
}

// connect makes a connection as initiator; giveUp undoes what the caller has begun when
// there is no queue pair for start.
func (d *Device) connect(cfg ConnConfig, giveUp func() error, start func(*rdma.QP, *rdma.ConnParams) (*rdma.ConnInfo, error)) (*Conn, error) {
	c, err := d.newConn(iscsi.RoleInitiator, cfg)
	if err != nil {
		_ = giveUp()
		return nil, err
	}
	p := cfg.RDMA
	p.PrivateData = privateData(!cfg.NoRemoteInvalidate)
	if p.IRD == 0 {
		p.IRD = 128
	}
	if p.ORD == 0 {
		p.ORD = 1
	}
	info, err := start(c.qp, &p)
	if err != nil {
		c.discard()
		return nil, fmt.Errorf("iser: %w", err)
	}
	c.connected(*info, !cfg.NoRemoteInvalidate && allowsInvalidate(info.PrivateData))
	return c, nil
}

// Serve accepts as target what is an open TCP connection whose next bytes are an
// MPA Request. It takes nc over.
func (d *Device) Serve(ctx context.Context, nc net.Conn, cfg ConnConfig) (*Conn, error) {
	req, err := rdma.Server(ctx, nc, &rdma.ServerConfig{Timeout: cfg.RDMA.Timeout})
	if err != nil {
		return nil, fmt.Errorf("iser: %w", err)
	}
	return d.Accept(ctx, req, cfg)
}

// Accept accepts a connection request as target.
func (d *Device) Accept(ctx context.Context, req *rdma.ConnRequest, cfg ConnConfig) (*Conn, error) {
	c, err := d.newConn(iscsi.RoleTarget, cfg)
	if err != nil {
		_ = req.Reject(nil)
		return nil, err
	}
	inv := !cfg.NoRemoteInvalidate && allowsInvalidate(req.PrivateData())
	p := cfg.RDMA
	p.PrivateData = privateData(inv)
	if p.IRD == 0 {
		p.IRD = 1
	}
	if p.ORD == 0 {
		p.ORD = 32
	}
	if err := req.Accept(ctx, c.qp, &p); err != nil {
		c.discard()
		return nil, fmt.Errorf("iser: %w", err)
	}
	c.connected(c.qp.Info(), inv)
	if c.info.ORD == 0 {
		// Without RDMA Reads no WRITE could be served. A peer that does not tell (MPA revision 1, or 2
		// without the flag S) is believed to serve as many as this side wants.
		c.Terminate(errors.New("iser: the peer serves no RDMA Reads (IRD 0)"))
		return nil, errors.New("iser: the peer serves no RDMA Reads (IRD 0): it must connect with an IRD of at least 1")
	}
	return c, nil
}

// connected takes note of what the two sides have agreed on.
func (c *Conn) connected(info rdma.ConnInfo, inv bool) {
	c.mu.Lock()
	c.info, c.inv, c.pump.ORD = info, inv, info.ORD
	c.mu.Unlock()
}
