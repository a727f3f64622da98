package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"softiser/internal/congestion"
	"softiser/internal/sockio"
	"softiser/rdma/internal/mpa"
)

// ServerConfig is how a connection request is received.
type ServerConfig struct {
	Timeout time.Duration // for the MPA Request to arrive; 5 s
}

// ConnRequest is a connection that a peer asks for. It must be answered by
// Accept or Reject, once.
type ConnRequest struct {
	nc   net.Conn
	req  mpa.Frame
	once sync.Once
}

// Server reads the MPA Request from an open connection, and not a byte more. It
// takes nc over, and closes it on error. nil means all defaults.
func Server(ctx context.Context, nc net.Conn, cfg *ServerConfig) (*ConnRequest, error) {
	var d time.Duration
	if cfg != nil {
		d = cfg.Timeout
	}
	r := &ConnRequest{nc: nc}
	err := startup(ctx, nc, d, requestTimeout, func() error {
		err := mpa.ReadFrame(nc, &r.req, false)
		if err == nil {
			err = mpa.Check(&r.req)
		}
		return err
	})
	var ref *mpa.Refusal
	if errors.As(err, &ref) || errors.Is(err, mpa.ErrNoWord) {
		// Understood but not acceptable: say so (RFC 5044 §7.1.2).
		_ = r.Reject(nil)
	}
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("rdma: MPA start-up with %v: %w", nc.RemoteAddr(), err)
	}
	return r, nil
}

// PrivateData is what the peer's ULP sent along.
func (r *ConnRequest) PrivateData() []byte { return r.req.Private }

// IRD is how many Reads the peer says it can serve, ORD how many it wants to have
// outstanding; both are 0 with MPA revision 1, which does not tell.
func (r *ConnRequest) IRD() int { return int(r.req.IRD) }

// ORD is described at IRD.
func (r *ConnRequest) ORD() int { return int(r.req.ORD) }

// Rev is the MPA revision of the request.
func (r *ConnRequest) Rev() int { return int(r.req.Rev) }

// CRC reports whether the peer asks for CRC.
func (r *ConnRequest) CRC() bool { return r.req.Flags&mpa.FlagCRC != 0 }

// P2P is the set of ready-to-receive messages that the peer offers, or P2POff.
func (r *ConnRequest) P2P() P2PMode { return r.req.RTR }

// RemoteAddr is the address of the peer.
func (r *ConnRequest) RemoteAddr() net.Addr { return r.nc.RemoteAddr() }

// LocalAddr is the address that the peer connected to.
func (r *ConnRequest) LocalAddr() net.Addr { return r.nc.LocalAddr() }

var errAnswered = fmt.Errorf("%w: the connection request has been answered already", ErrState)

// Accept connects qp. Receive buffers should be posted before. FPDUs of this side
// wait until the peer's first one has arrived, as MPA demands; EventEstablished
// tells when. On error the connection is closed.
func (r *ConnRequest) Accept(ctx context.Context, qp *QP, p *ConnParams) error {
	if p == nil {
		p = &ConnParams{}
	}
	err := errAnswered
	r.once.Do(func() {
		if err = r.accept(ctx, qp, p); err != nil {
			_ = r.nc.Close()
		}
	})
	return err
}

func (r *ConnRequest) accept(ctx context.Context, qp *QP, p *ConnParams) error {
	w, err := p.wish(qp.dev)
	if err != nil {
		return err
	}
	if err := congestion.Accepted(p.Congestion, r.nc); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	if err := sockio.Apply(r.nc, sockio.Options{SendBuffer: p.SndBuf, RecvBuffer: p.RcvBuf}); err != nil {
		return err
	}
	rep, res, err := w.Answer(&r.req)
	if err != nil {
		r.reject(nil)
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if st := qp.State(); st != StateIdle {
		r.reject(nil)
		return fmt.Errorf("%w: queue pair %d is in state %v, a connection needs Idle", ErrState, qp.num, st)
	}
	err = startup(ctx, r.nc, p.Timeout, requestTimeout, func() error {
		_, err := r.nc.Write(rep.Append(nil))
		return err
	})
	if err != nil {
		return fmt.Errorf("rdma: MPA start-up with %v: %w", r.nc.RemoteAddr(), err)
	}
	_, err = qp.attach(r.nc, p, &res, false)
	return err
}

// Reject refuses the connection, with private data for the peer's ULP, and closes
// it.
func (r *ConnRequest) Reject(privateData []byte) error {
	err := errAnswered
	r.once.Do(func() {
		err = r.reject(privateData)
		_ = r.nc.Close()
	})
	return err
}

func (r *ConnRequest) reject(privateData []byte) error {
	f, err := mpa.Reject(&r.req, privateData)
	if err != nil {
		return err
	}
	_ = r.nc.SetWriteDeadline(time.Now().Add(termTimeout))
	_, err = r.nc.Write(f.Append(nil))
	return err
}

// ListenConfig describes a Listener. nil means all defaults.
type ListenConfig struct {
	ServerConfig
	Backlog int // start-ups in progress plus requests not yet accepted; 128
}

// Listener accepts connection requests on a TCP port. A slow peer does not hold
// up the others.
type Listener struct {
	ln    net.Listener
	cfg   ListenConfig
	reqs  chan *ConnRequest
	slots chan struct{}
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

// Listen listens on addr, for example "tcp", "127.0.0.1:7174".
func (d *Device) Listen(network, addr string, cfg *ListenConfig) (*Listener, error) {
	lc := net.ListenConfig{Control: congestion.Listening(congestion.Auto)}
	ln, err := lc.Listen(context.Background(), network, addr)
	if err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	return d.ListenOn(ln, cfg), nil
}

// ListenOn is Listen on an open listener, which it takes over.
func (d *Device) ListenOn(ln net.Listener, cfg *ListenConfig) *Listener {
	l := &Listener{ln: ln}
	if cfg != nil {
		l.cfg = *cfg
	}
	def(&l.cfg.Backlog, 128)
	l.reqs = make(chan *ConnRequest)
	l.slots = make(chan struct{}, l.cfg.Backlog)
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.wg.Add(1)
	go l.loop()
	return l
}

func (l *Listener) loop() {
	defer l.wg.Done()
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		nc, err := l.ln.Accept()
		if err != nil {
			if l.ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				// Out of descriptors, perhaps: go on when some are free again.
				<-l.slots
				select {
				case <-time.After(50 * time.Millisecond):
					continue
				case <-l.ctx.Done():
				}
			}
			return
		}
		l.wg.Add(1)
		go func() {
			defer l.wg.Done()
			defer func() { <-l.slots }()
			r, err := Server(l.ctx, nc, &l.cfg.ServerConfig)
			if err != nil {
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

// Accept waits for the next connection request.
func (l *Listener) Accept(ctx context.Context) (*ConnRequest, error) {
	select {
	case r := <-l.reqs:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ctx.Done():
		return nil, fmt.Errorf("%w: listener", ErrClosed)
	}
}

// Addr is the address that the listener listens on.
func (l *Listener) Addr() net.Addr { return l.ln.Addr() }

// Close ends the listener and drops requests that have not been accepted.
func (l *Listener) Close() error {
	l.stop()
	err := l.ln.Close()
	l.wg.Wait()
	return err
}
