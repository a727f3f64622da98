package rdma

import (
	"context"
	"net"
	"time"

	"softiser/rdma/internal/mpa"
)

// ServerConfig is how a connection request is received over TCP.
type ServerConfig struct {
	Timeout time.Duration // for the MPA Request to arrive; 5 s
}

// ConnRequest is a connection that a peer asks for. It must be answered by
// Accept or Reject, once; over RoCE within 30 s.
type ConnRequest struct{ r request }

// PrivateData is what the peer's ULP sent along; over RoCE always 56 bytes, with zeros
// behind what was sent.
func (r *ConnRequest) PrivateData() []byte { return r.r.private() }

// IRD is how many Reads the peer says it can serve, ORD how many it wants to have
// outstanding; both are 0 where it does not tell.
func (r *ConnRequest) IRD() int {
	ird, _, _ := r.r.reads()
	return ird
}

// ORD is described at IRD.
func (r *ConnRequest) ORD() int {
	_, ord, _ := r.r.reads()
	return ord
}

// TellsReads reports whether the peer tells its IRD and ORD. Over iWARP that is the enhanced
// start-up (RFC 6581 §9), which MPA revision 1 does not have, and revision 2 only with the flag S:
// without it, what each side serves is between the ULPs. Over RoCE every peer does.
func (r *ConnRequest) TellsReads() bool {
	_, _, told := r.r.reads()
	return told
}

// Type is that of the peer's queue pair, which the one of Accept must have too.
func (r *ConnRequest) Type() QPType { return r.r.qpType() }

// Rev is the MPA revision of the request; 0 over RoCE.
func (r *ConnRequest) Rev() int {
	if m, ok := r.r.(mpaRequest); ok {
		return int(m.r.Frame().Rev)
	}
	return 0
}

// CRC reports whether the peer asks for CRC; over RoCE nobody is asked.
func (r *ConnRequest) CRC() bool {
	m, ok := r.r.(mpaRequest)
	return !ok || m.r.Frame().Flags&mpa.FlagCRC != 0
}

// P2P is the set of ready-to-receive messages that the peer offers, or P2POff; always
// that over RoCE.
func (r *ConnRequest) P2P() P2PMode {
	if m, ok := r.r.(mpaRequest); ok {
		return m.r.Frame().RTR
	}
	return P2POff
}

// RemoteAddr is the address of the peer.
func (r *ConnRequest) RemoteAddr() net.Addr { return r.r.remote() }

// LocalAddr is the address that the peer connected to.
func (r *ConnRequest) LocalAddr() net.Addr { return r.r.local() }

// Accept connects qp. Receive buffers should be posted before. What this side sends
// waits until the peer has shown that it is ready: over iWARP by its first FPDU, as MPA
// demands, over RoCE by a message or the last step of the start-up. EventEstablished
// tells when. On error the connection is closed.
func (r *ConnRequest) Accept(ctx context.Context, qp *QP, p *ConnParams) error {
	if err := r.r.accept(ctx, qp, p); err != nil {
		return err
	}
	qp.pd.dev.connected()
	return nil
}

// Reject refuses the connection, with private data for the peer's ULP (RoCE: up to 148
// bytes), and closes it.
func (r *ConnRequest) Reject(privateData []byte) error { return r.r.reject(privateData) }

// ListenConfig describes a Listener. nil means all defaults.
type ListenConfig struct {
	ServerConfig
	// Backlog is how many start-ups in progress and requests not yet accepted there may be; 128. Over
	// TCP a connection beyond it waits, for a moment at most where another one has sent no request,
	// which is closed then: the oldest one of the address that has most of them.
	Backlog int
}

const defaultBacklog = 128

// Listener accepts connection requests. A slow peer does not hold up the others.
type Listener struct{ a acceptor }

// Listen listens on addr: "tcp", "127.0.0.1:7174" for example on a device of iWARP, and
// "roce", "10.0.0.1:7174" on one of RoCE, where the address must be that of an interface.
// Port 0 is any that is free.
func (d *Device) Listen(network, addr string, cfg *ListenConfig) (*Listener, error) {
	if d.life.over() {
		return nil, errGone("device")
	}
	a, err := d.transport.listen(network, addr, cfg)
	if err != nil {
		return nil, err
	}
	return &Listener{a}, nil
}

// Accept waits for the next connection request.
func (l *Listener) Accept(ctx context.Context) (*ConnRequest, error) {
	r, err := l.a.accept(ctx)
	if err != nil {
		return nil, err
	}
	return &ConnRequest{r}, nil
}

// Addr is the address that the listener listens on.
func (l *Listener) Addr() net.Addr { return l.a.addr() }

// Close ends the listener and drops requests that have not been accepted.
func (l *Listener) Close() error { return l.a.close() }
