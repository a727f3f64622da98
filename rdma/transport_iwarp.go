package rdma

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"time"

	"softiser/internal/congestion"
	"softiser/rdma/internal/iwarp"
	"softiser/rdma/internal/mpa"
)

// overTCP is the provider iWARP.
type overTCP struct {
	dev iwarp.Device

	mu      sync.Mutex // guards what follows
	nextQPN uint32
}

func (*overTCP) attr(a *DeviceAttr) {
	a.Version = "soft-iWARP, MPA revision 2"
	a.MaxImm, a.MaskedAtomics, a.Types = math.MaxUint64, true, []QPType{TypeRC}
	a.PrivateData = PrivateDataLimits{Request: mpa.MaxUser, Reply: mpa.MaxUser, Reject: mpa.MaxUser}
}

func (t *overTCP) attach(qp *QP) error {
	iwarp.New(&t.dev, &qp.v)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nextQPN++
	qp.v.Num = t.nextQPN
	return nil
}

func (*overTCP) retire(*QP) {}
func (*overTCP) close()     {}

// engine is the engine of iWARP, of a queue pair that has it.
func (qp *QP) engine() *iwarp.QP { return qp.v.Engine.(*iwarp.QP) }

func (*overTCP) extensions(qp *QP) bool { return qp.engine().Extensions() }

func (*overTCP) info(qp *QP) ConnInfo {
	i := qp.engine().Info()
	return ConnInfo{
		PrivateData: i.Private, Initiator: i.Initiator, CRC: i.CRC, IRD: i.IRD, ORD: i.ORD, LocalAddr: i.Local, RemoteAddr: i.Remote,
		MPA: MPAInfo{Rev: i.Rev, GSO: i.GSO, P2P: i.RTR, MSS: i.MSS, FPDUSize: i.FPDUSize},
	}
}

// iwarp checks p against the device, which must be one of iWARP; nil means all defaults.
func (p *ConnParams) iwarp(d *Device) (*iwarp.Params, error) {
	if err := d.wants(ProviderIWARP, "a TCP connection"); err != nil {
		return nil, err
	}
	if p == nil {
		p = &ConnParams{}
	}
	if p.MPA.Rev < 0 || p.MPA.Rev > 2 {
		return nil, invalid("MPA revision %d, supported are 1 and 2", p.MPA.Rev)
	}
	w := mpa.Wish{Rev: p.MPA.Rev, CRC: p.CRC, P2P: p.MPA.P2P, GSO: p.MPA.GSO, Private: p.PrivateData}
	var err error
	if w.IRD, w.ORD, err = p.queues(d); err != nil {
		return nil, err
	}
	return &iwarp.Params{
		Wish: w, MaxFPDU: p.MPA.MaxFPDU, BusyPoll: p.BusyPoll, Zerocopy: p.Zerocopy, ZerocopyMin: p.ZerocopyMin,
		SndBuf: p.SndBuf, RcvBuf: p.RcvBuf, Congestion: p.Congestion, Timeout: p.Timeout,
		SpeakFirst: p.MPA.SpeakFirst, Abortive: p.MPA.Abortive, Extensions: p.Extensions,
	}, nil
}

func (*overTCP) dial(ctx context.Context, network, addr string, qp *QP, p *ConnParams) error {
	var cc string
	if p != nil {
		cc = p.Congestion
	}
	d := net.Dialer{Control: congestion.Dialing(cc)}
	nc, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	return connect(ctx, nc, qp, p)
}

// Client connects qp, of a device of iWARP, over an open connection as MPA initiator. It
// takes nc over, and closes it on error. The error is a *RejectError when the peer's ULP
// refused.
func Client(ctx context.Context, nc net.Conn, qp *QP, p *ConnParams) (*ConnInfo, error) {
	if err := connect(ctx, nc, qp, p); err != nil {
		return nil, public(err)
	}
	qp.pd.dev.connected()
	info := qp.Info()
	return &info, nil
}

func connect(ctx context.Context, nc net.Conn, qp *QP, p *ConnParams) error {
	w, err := p.iwarp(qp.pd.dev)
	if err == nil {
		err = qp.engine().Connect(ctx, nc, w)
	}
	if err != nil {
		_ = nc.Close()
	}
	return err
}

// mpaRequest is the request of an MPA initiator.
type mpaRequest struct{ r *iwarp.Request }

func (m mpaRequest) private() []byte { return m.r.Frame().Private }
func (m mpaRequest) reads() (ird, ord int, told bool) {
	f := m.r.Frame()
	return int(f.IRD), int(f.ORD), f.Enhanced
}
func (m mpaRequest) local() net.Addr       { return m.r.Conn().LocalAddr() }
func (m mpaRequest) remote() net.Addr      { return m.r.Conn().RemoteAddr() }
func (mpaRequest) qpType() QPType          { return TypeRC }
func (m mpaRequest) reject(b []byte) error { return m.r.Reject(b) }

func (m mpaRequest) accept(ctx context.Context, qp *QP, p *ConnParams) error {
	w, err := p.iwarp(qp.pd.dev)
	if err != nil {
		m.r.Fail()
		return err
	}
	return m.r.Accept(ctx, qp.engine(), w)
}

// Server reads the MPA Request from an open connection, and not a byte more. It
// takes nc over, and closes it on error. nil means all defaults.
func Server(ctx context.Context, nc net.Conn, cfg *ServerConfig) (*ConnRequest, error) {
	r, err := receive(ctx, nc, cfg)
	if err != nil {
		return nil, err
	}
	return &ConnRequest{r}, nil
}

func receive(ctx context.Context, nc net.Conn, cfg *ServerConfig) (request, error) {
	var d time.Duration
	if cfg != nil {
		d = cfg.Timeout
	}
	r, err := iwarp.Receive(ctx, nc, d)
	if err != nil {
		return nil, err
	}
	return mpaRequest{r}, nil
}

func (*overTCP) listen(network, addr string, cfg *ListenConfig) (acceptor, error) {
	lc := net.ListenConfig{Control: congestion.Listening(congestion.Auto)}
	lc.SetMultipathTCP(false) // an FPDU fits a segment of one path
	ln, err := lc.Listen(context.Background(), network, addr)
	if err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	return newTCPAcceptor(ln, cfg), nil
}

// ListenOn is Listen of a device of iWARP on an open listener, which it takes over.
func (d *Device) ListenOn(ln net.Listener, cfg *ListenConfig) *Listener {
	return &Listener{newTCPAcceptor(ln, cfg)}
}

// tcpAcceptor receives MPA Requests on the connections of a TCP listener.
type tcpAcceptor struct {
	ln    net.Listener
	cfg   ListenConfig
	reqs  chan request
	slots chan struct{}
	mute  startups // those of the slots that have no request yet
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

func newTCPAcceptor(ln net.Listener, cfg *ListenConfig) *tcpAcceptor {
	l := &tcpAcceptor{ln: ln}
	if cfg != nil {
		l.cfg = *cfg
	}
	def(&l.cfg.Backlog, defaultBacklog)
	l.reqs = make(chan request)
	l.slots = make(chan struct{}, l.cfg.Backlog)
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.wg.Add(1)
	go l.loop()
	return l
}

// slot takes one of as many as Backlog says, if need be from a connection that says nothing; false:
// the listener is closed.
func (l *tcpAcceptor) slot() bool {
	for {
		select {
		case l.slots <- struct{}{}:
			return true
		default:
		}
		var later <-chan time.Time
		if due, ok := l.mute.giveWay(); ok && due > 0 {
			later = time.After(due)
		}
		select {
		case l.slots <- struct{}{}:
			return true
		case <-later:
		case <-l.ctx.Done():
			return false
		}
	}
}

// loop accepts connections and receives the request of each on a goroutine of its own,
// as many at a time as Backlog says.
func (l *tcpAcceptor) loop() {
	defer l.wg.Done()
	for {
		nc, err := l.ln.Accept()
		if err != nil {
			if l.ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				// Out of descriptors, perhaps: go on when some are free again.
				select {
				case <-time.After(50 * time.Millisecond):
					continue
				case <-l.ctx.Done():
				}
			}
			return
		}
		if !l.slot() {
			_ = nc.Close()
			return
		}
		l.wg.Add(1)
		c := l.mute.add(nc)
		go func() {
			defer l.wg.Done()
			defer func() { <-l.slots }()
			r, err := receive(l.ctx, nc, &l.cfg.ServerConfig)
			if there := l.mute.done(c); err != nil || !there {
				return
			}
			select {
			case l.reqs <- r:
			case <-l.ctx.Done():
				_ = nc.Close()
			}
		}()
	}
}

func (l *tcpAcceptor) accept(ctx context.Context) (request, error) {
	select {
	case r := <-l.reqs:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ctx.Done():
		return nil, fmt.Errorf("%w: listener", ErrClosed)
	}
}

func (l *tcpAcceptor) addr() net.Addr { return l.ln.Addr() }

func (l *tcpAcceptor) close() error {
	l.stop()
	err := l.ln.Close()
	l.wg.Wait()
	return err
}
