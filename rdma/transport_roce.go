package rdma

import (
	"cmp"
	"context"
	"math"
	"math/bits"
	"net"
	"net/netip"
	"time"

	"softiser/rdma/internal/roce"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/port"
)

// overUDP is the provider RoCE.
type overUDP struct{ dev roce.Device }

func (*overUDP) attr(a *DeviceAttr) {
	a.Name, a.Version = "softiser1", "soft-RoCE v2"
	a.MaxImm, a.SendImm, a.Types = math.MaxUint32, true, []QPType{TypeRC, TypeUC, TypeUD}
	a.MaxPathMTU, a.MaxMulticastGroups = packet.MTU4096.Bytes(), port.MaxGroups
	a.PrivateData = PrivateDataLimits{
		Request: mad.UserREQ, Reply: mad.PrivateREP, Reject: mad.PrivateREJ, Lookup: mad.UserSIDRREQ, LookupReply: mad.PrivateSIDRREP,
	}
}

func (t *overUDP) attach(qp *QP) error {
	switch qp.cfg.Type {
	case TypeUC:
		return roce.NewUC(&t.dev, &qp.v)
	case TypeUD:
		return roce.NewUD(&t.dev, &qp.v)
	}
	return roce.NewRC(&t.dev, &qp.v)
}

func (*overUDP) retire(qp *QP) { roceOf(qp).Retire() }
func (t *overUDP) close()      { t.dev.Close() }

func roceOf(qp *QP) roce.Pair { return qp.v.Engine.(roce.Pair) }

func (*overUDP) extensions(*QP) bool { return true }

func (*overUDP) info(qp *QP) ConnInfo {
	i := roceOf(qp).Info()
	if !i.Local.IsValid() {
		return ConnInfo{}
	}
	out := ConnInfo{
		PrivateData: i.Private, Initiator: i.Initiator, CRC: true, IRD: i.IRD, ORD: i.ORD, LocalAddr: RoCEAddr(i.Local),
		RoCE: RoCEInfo{PathMTU: i.MTU.Bytes(), RemoteQPN: i.RemoteQPN},
	}
	if i.Remote.IsValid() { // nobody is for datagrams
		out.RemoteAddr = RoCEAddr(i.Remote)
	}
	return out
}

// RoCEAddr is one end of a connection over RoCE: an address, and a port of rdma_cm.
type RoCEAddr netip.AddrPort

// Network is "roce".
func (RoCEAddr) Network() string { return ProviderRoCE.Network() }

// String is address and port, as Dial takes them.
func (a RoCEAddr) String() string { return netip.AddrPort(a).String() }

// minRNR is how long a peer is told to wait that met no receive buffer: 0.64 ms. Shorter
// ones make Linux's rxe ask so often that nothing else gets done.
const minRNR packet.RNRTimer = 12

// Exponents of the time-out of requests, 4.096 µs·2^n. The default is that of recent
// Linux.
const (
	ackTimeoutDefault = 17
	ackTimeoutMax     = 31
)

// roce checks p against the device, which must be one of RoCE; nil means all defaults. limit is
// how long private data may be.
func (p *ConnParams) roce(d *Device, limit int) (*roce.Params, error) {
	if err := d.wants(ProviderRoCE, "a connection over RoCE"); err != nil {
		return nil, err
	}
	if p == nil {
		p = &ConnParams{}
	}
	r := &p.RoCE
	out := &roce.Params{Private: p.PrivateData, Local: r.LocalAddr, AckTimeout: ackTimeoutDefault, Retries: r.RetryCount, RNRRetries: r.RNRRetry, MinRNR: minRNR, Timeout: cmp.Or(p.Timeout, startTimeout), BusyPoll: p.BusyPoll}
	var err error
	if out.IRD, out.ORD, err = p.queues(d); err != nil {
		return nil, err
	}
	if out.IRD > math.MaxUint8 || out.ORD > math.MaxUint8 {
		return nil, invalid("IRD %d, ORD %d: over RoCE at most %d can be agreed on", out.IRD, out.ORD, math.MaxUint8)
	}
	if len(p.PrivateData) > limit {
		return nil, invalid("private data of %d bytes: over RoCE there is room for %d", len(p.PrivateData), limit)
	}
	for _, q := range []*int{&out.Retries, &out.RNRRetries} {
		def(q, maxRetries)
		if *q = max(*q, 0); *q > maxRetries {
			return nil, invalid("%d retries: at most %d", *q, maxRetries)
		}
	}
	if out.MTU, err = pathMTU(r.PathMTU); err != nil {
		return nil, err
	}
	if r.AckTimeout != 0 {
		units := (max(r.AckTimeout, 0) + 4095) / 4096
		out.AckTimeout = uint8(max(1, bits.Len64(uint64(units)-1)))
		if units == 0 || out.AckTimeout > ackTimeoutMax {
			return nil, invalid("acknowledgements within %v: want 8 µs to %v", r.AckTimeout, time.Duration(4096)<<ackTimeoutMax)
		}
	}
	return out, nil
}

// maxRetries is the largest that the request for a connection can say; for RNRRetry it
// means for ever.
const maxRetries = 7

func (t *overUDP) dial(ctx context.Context, network, addr string, qp *QP, p *ConnParams) error {
	w, err := p.roce(qp.pd.dev, mad.UserREQ)
	if err != nil {
		return err
	}
	all, err := resolveAll(ctx, network, addr, w.Local)
	if err != nil {
		return err
	}
	return connectOneOf(ctx, all, qp, w)
}

func connectOneOf(ctx context.Context, all []netip.AddrPort, qp *QP, w *roce.Params) error {
	return oneOf(ctx, all, w.Timeout, func(to netip.AddrPort, d time.Duration) (bool, error) {
		w.Timeout = d
		err := roce.Connect(ctx, roceOf(qp), to, w)
		return elsewhere(public(err)) && qp.State() == StateIdle, err
	})
}

// startTimeout is how long connecting, or a lookup, may take.
const startTimeout = 10 * time.Second

func (t *overUDP) listen(network, addr string, cfg *ListenConfig) (acceptor, error) {
	at, err := resolve(context.Background(), network, addr)
	if err != nil {
		return nil, err
	}
	backlog := defaultBacklog
	if cfg != nil && cfg.Backlog > 0 {
		backlog = cfg.Backlog
	}
	l, err := t.dev.Listen(at, backlog)
	if err != nil {
		return nil, err
	}
	return cmAcceptor{l}, nil
}

// cmAcceptor takes requests from the connection manager.
type cmAcceptor struct{ l *roce.Listener }

func (a cmAcceptor) addr() net.Addr { return RoCEAddr(a.l.Addr()) }

func (a cmAcceptor) accept(ctx context.Context) (request, error) {
	r, err := a.l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return cmRequest{r}, nil
}

func (a cmAcceptor) close() error {
	a.l.Close()
	return nil
}

// cmRequest is a REQ of the connection manager.
type cmRequest struct{ r *roce.Request }

func (c cmRequest) private() []byte { return c.r.Private() }
func (c cmRequest) reads() (ird, ord int, told bool) {
	return c.r.IRD(), c.r.ORD(), true
}
func (c cmRequest) local() net.Addr  { return RoCEAddr(c.r.Local()) }
func (c cmRequest) remote() net.Addr { return RoCEAddr(c.r.Remote()) }
func (c cmRequest) qpType() QPType {
	if c.r.Unreliable() {
		return TypeUC
	}
	return TypeRC
}
func (c cmRequest) reject(b []byte) error { return c.r.Reject(b) }

func (c cmRequest) accept(_ context.Context, qp *QP, p *ConnParams) error {
	w, err := p.roce(qp.pd.dev, mad.PrivateREP)
	if err != nil {
		c.r.Fail()
		return err
	}
	return c.r.Accept(roceOf(qp), w)
}
