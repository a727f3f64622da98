package initiator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"softiser/initiator/internal/redial"
	"softiser/initiator/internal/wrongport"
	"softiser/internal/congestion"
	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/iser"
	"softiser/internal/sockio"
	"softiser/rdma"
)

// transport makes the connections of one session, one after the other. It is
// used by one goroutine at a time: Dial's, then recover's.
type transport struct {
	cfg    *Config
	device *iser.Device // taken with the first iSER connection
	plain  bool         // fell back to TCP
	spoken bool         // the port has completed an RDMA start-up
	fell   func(err error)

	pace     redial.Pace   // of the attempts after a loss
	patience time.Duration // for a TCP connection; 0: as long as the login may take
	onlyMD5  bool          // the target does not take a list of CHAP algorithms
}

// fallbackTimeout bounds the MPA start-up when TCP is the alternative: a plain
// iSCSI target waits for the rest of what it takes for a long PDU.
const fallbackTimeout = 3 * time.Second

// dial makes a connection to addr.
func (t *transport) dial(ctx context.Context, addr string) (iscsi.Datamover, error) {
	switch {
	case t.cfg.dial != nil:
		return t.cfg.dial(ctx, t.cfg, addr)
	case t.cfg.Transport == TransportTCP, t.plain:
		return t.dialTCP(ctx, addr)
	}
	dm, err := t.dialISER(ctx, addr)
	var op *net.OpError
	if err == nil || !t.cfg.FallbackTCP || ctx.Err() != nil || errors.As(err, &op) && op.Op == "dial" {
		return dm, err
	}
	t.plain = true
	if t.fell != nil {
		t.fell(err)
	}
	return t.dialTCP(ctx, addr)
}

// wantsRDMA reports whether a session that is not RDMA is not what was asked for.
func (t *transport) wantsRDMA() bool {
	return t.cfg.dial == nil && t.cfg.Transport != TransportTCP && !t.cfg.FallbackTCP
}

// close gives the RDMA device back. Every connection has ended.
func (t *transport) close() error {
	if t.device == nil {
		return nil
	}
	t.device = nil
	return devices.Release(t.cfg.provider())
}

func (t *transport) connect(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: t.patience, Control: congestion.Dialing(t.cfg.Congestion)}
	if a := t.cfg.LocalAddress; a.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	}
	return t.pace.Dial(ctx, d, addr)
}

func (t *transport) socket() sockio.Options {
	return sockio.Options{SendBuffer: t.cfg.SendBuffer, RecvBuffer: t.cfg.RecvBuffer, BusyPoll: t.cfg.BusyPoll}
}

// dialTCP connects for plain iSCSI.
func (t *transport) dialTCP(ctx context.Context, addr string) (iscsi.Datamover, error) {
	nc, err := t.connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	if t.cfg.TLS != nil {
		if nc, err = t.secure(ctx, nc, addr); err != nil {
			return nil, err
		}
	}
	dm, err := iscsitcp.New(nc, iscsi.RoleInitiator, iscsitcp.Config{Socket: t.socket()})
	if err != nil {
		nc.Close()
		return nil, err
	}
	return dm, nil
}

// open takes part in the RDMA device.
func (t *transport) open() (err error) {
	if t.device == nil {
		t.device, err = devices.Acquire(t.cfg.provider())
	}
	return err
}

// iser is how a connection over iWARP is made.
func (t *transport) iser() iser.ConnConfig {
	c := t.cfg
	return iser.ConnConfig{RDMA: rdma.ConnParams{
		CRC: c.CRC, Zerocopy: cmp.Or(c.Zerocopy, rdma.ZerocopyAuto), BusyPoll: c.BusyPoll,
		MPA: rdma.MPAParams{MaxFPDU: c.MaxFPDU, GSO: c.LargeFPDU}, Congestion: c.Congestion,
		SndBuf: c.SendBuffer, RcvBuf: c.RecvBuffer, Timeout: c.LoginTimeout,
	}}
}

// goesOnWith reports whether a session of another process is of a kind that would be made here.
func (t *transport) goesOnWith(k *carriedState) bool {
	c := t.cfg
	if k.RDMA != nil {
		return c.Transport == TransportISER
	}
	return c.TLS == nil && (c.Transport == TransportTCP || c.Transport == TransportISER && c.FallbackTCP)
}

// restore makes a connection of one that another process has carried. On error nc is the
// caller's to close.
func (t *transport) restore(nc net.Conn, k *carriedState) (iscsi.Datamover, error) {
	if k.RDMA == nil {
		t.plain = t.cfg.Transport != TransportTCP
		return iscsitcp.RestoreInitiator(nc, iscsitcp.Config{Socket: t.socket()}, &k.Params, &k.Stream)
	}
	if err := t.open(); err != nil {
		return nil, err
	}
	dm, err := t.device.RestoreInitiator(nc, t.iser(), &k.Params, k.RDMA)
	if err != nil {
		return nil, err
	}
	t.spoken = true
	return dm, nil
}

// dialISER connects for iSER: MPA first, as Linux does, or the login first.
func (t *transport) dialISER(ctx context.Context, addr string) (iscsi.Datamover, error) {
	if err := t.open(); err != nil {
		return nil, err
	}
	if t.cfg.Transport == TransportRoCE {
		return t.dialRoCE(ctx, addr)
	}
	nc, err := t.connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	c, cc := t.cfg, t.iser()
	if c.FallbackTCP {
		cc.RDMA.Timeout = min(cc.RDMA.Timeout, fallbackTimeout)
	}
	if c.StreamLogin {
		dm, err := t.device.Upgrade(nc, iscsi.RoleInitiator, iscsitcp.Config{Socket: t.socket()}, cc)
		if err != nil {
			nc.Close()
			return nil, err
		}
		return dm, nil
	}
	return t.start(ctx, addr, func(ctx context.Context) (iscsi.Datamover, error) { return t.device.Client(ctx, nc, cc) })
}

// dialRoCE connects for iSER over RoCE.
func (t *transport) dialRoCE(ctx context.Context, addr string) (iscsi.Datamover, error) {
	cc := iser.ConnConfig{RDMA: rdma.ConnParams{Timeout: t.cfg.LoginTimeout, RoCE: rdma.RoCEParams{LocalAddr: t.cfg.LocalAddress}}}
	if t.patience > 0 {
		cc.RDMA.Timeout = min(cc.RDMA.Timeout, t.patience)
	}
	return t.start(ctx, addr, func(ctx context.Context) (iscsi.Datamover, error) { return t.device.DialRoCE(ctx, addr, cc) })
}

// start does the RDMA start-up. As long as the port has not shown that it speaks iSER, what
// it speaks instead is found out before its silence is believed.
func (t *transport) start(ctx context.Context, addr string, connect func(context.Context) (iscsi.Datamover, error)) (dm iscsi.Datamover, err error) {
	if t.spoken || t.cfg.FallbackTCP {
		dm, err = connect(ctx)
	} else {
		dm, err = wrongport.Connect(ctx, wrongport.Doubt{
			Speaks: func(ctx context.Context) bool { return t.speaksISCSI(ctx, addr) },
			Wrong: func(err error) error {
				return &WrongProtocolError{Address: addr, RoCE: t.cfg.Transport == TransportRoCE, Err: err}
			},
		}, connect)
	}
	if err != nil {
		return nil, fmt.Errorf("no RDMA connection: %w", err)
	}
	t.spoken = true
	return dm, nil
}
