package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"softiser/internal/congestion"
	"softiser/rdma/internal/iwarp"
	"softiser/rdma/internal/mpa"
)

// ServerConfig is how a connection request is received.
type ServerConfig struct {
	Timeout time.Duration // for the MPA Request to arrive; 5 s
}

// ConnRequest is a connection that a peer asks for. It must be answered by
// Accept or Reject, once.
type ConnRequest struct{ r *iwarp.Request }

// Server reads the MPA Request from an open connection, and not a byte more. It
// takes nc over, and closes it on error. nil means all defaults.
func Server(ctx context.Context, nc net.Conn, cfg *ServerConfig) (*ConnRequest, error) {
	var d time.Duration
	if cfg != nil {
		d = cfg.Timeout
	}
	r, err := iwarp.Receive(ctx, nc, d)
	if err != nil {
		return nil, err
	}
	return &ConnRequest{r}, nil
}

// PrivateData is what the peer's ULP sent along.
func (r *ConnRequest) PrivateData() []byte { return r.r.Frame().Private }

// IRD is how many Reads the peer says it can serve, ORD how many it wants to have
// outstanding; both are 0 with MPA revision 1, which does not tell.
func (r *ConnRequest) IRD() int { return int(r.r.Frame().IRD) }

// ORD is described at IRD.
func (r *ConnRequest) ORD() int { return int(r.r.Frame().ORD) }

// Rev is the MPA revision of the request.
func (r *ConnRequest) Rev() int { return int(r.r.Frame().Rev) }

// CRC reports whether the peer asks for CRC.
func (r *ConnRequest) CRC() bool { return r.r.Frame().Flags&mpa.FlagCRC != 0 }

// P2P is the set of ready-to-receive messages that the peer offers, or P2POff.
func (r *ConnRequest) P2P() P2PMode { return r.r.Frame().RTR }

// RemoteAddr is the address of the peer.
func (r *ConnRequest) RemoteAddr() net.Addr { return r.r.Conn().RemoteAddr() }

// LocalAddr is the address that the peer connected to.
func (r *ConnRequest) LocalAddr() net.Addr { return r.r.Conn().LocalAddr() }

// Accept connects qp. Receive buffers should be posted before. FPDUs of this side
// wait until the peer's first one has arrived, as MPA demands; EventEstablished
// tells when. On error the connection is closed.
func (r *ConnRequest) Accept(ctx context.Context, qp *QP, p *ConnParams) error {
	w, err := p.params(qp.pd.dev)
	if err != nil {
		r.r.Fail()
		return err
	}
	if err := r.r.Accept(ctx, qp.engine(), w); err != nil {
		return err
	}
	qp.pd.dev.connected()
	return nil
}

// Reject refuses the connection, with private data for the peer's ULP, and closes
// it.
func (r *ConnRequest) Reject(privateData []byte) error { return r.r.Reject(privateData) }

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

// loop accepts connections and receives the request of each on a goroutine of its own,
// as many at a time as Backlog says.
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
