package iwarp

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

	"softiser/rdma/internal/verbs"
)

// Request is a connection that a peer asks for.
type Request struct {
	nc   net.Conn
	req  mpa.Frame
	once sync.Once
}

// Receive reads the MPA Request from nc, and not a byte more. It takes nc over, and
// closes it on error. d bounds it; 0 means 5 s.
func Receive(ctx context.Context, nc net.Conn, d time.Duration) (*Request, error) {
	r := &Request{nc: nc}
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

// Frame is what the peer asks for.
func (r *Request) Frame() *mpa.Frame { return &r.req }

// Conn is the connection, for its addresses.
func (r *Request) Conn() net.Conn { return r.nc }

var errAnswered = fmt.Errorf("%w: the connection request has been answered already", verbs.ErrState)

// Accept connects qp; on error the connection is closed. A request is answered once.
func (r *Request) Accept(ctx context.Context, qp *QP, p *Params) error {
	err := errAnswered
	r.once.Do(func() {
		if err = r.accept(ctx, qp, p); err != nil {
			_ = r.nc.Close()
		}
	})
	return err
}

func (r *Request) accept(ctx context.Context, qp *QP, p *Params) error {
	if err := congestion.Accepted(p.Congestion, r.nc); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	if err := sockio.Apply(r.nc, sockio.Options{SendBuffer: p.SndBuf, RecvBuffer: p.RcvBuf}); err != nil {
		return err
	}
	rep, res, err := p.Answer(&r.req)
	if err != nil {
		r.reject(nil)
		return fmt.Errorf("%w: %w", verbs.ErrRefused, err)
	}
	if st := qp.State(); st != verbs.StateIdle {
		r.reject(nil)
		return errNotIdle(qp.Num, st)
	}
	err = startup(ctx, r.nc, p.Timeout, requestTimeout, func() error {
		_, err := r.nc.Write(rep.Append(nil))
		return err
	})
	if err != nil {
		return fmt.Errorf("rdma: MPA start-up with %v: %w", r.nc.RemoteAddr(), err)
	}
	return qp.attach(r.nc, p, &res, false, &r.req, rep)
}

// Fail answers the request, if nobody has, by the end of the connection.
func (r *Request) Fail() { r.once.Do(func() { _ = r.nc.Close() }) }

// Reject refuses the connection, with private data for the peer's ULP, and closes it.
func (r *Request) Reject(privateData []byte) error {
	err := errAnswered
	r.once.Do(func() {
		err = r.reject(privateData)
		_ = r.nc.Close()
	})
	return err
}

func (r *Request) reject(privateData []byte) error {
	f, err := mpa.Reject(&r.req, privateData)
	if err != nil {
		return err
	}
	_ = r.nc.SetWriteDeadline(time.Now().Add(termTimeout))
	_, err = r.nc.Write(f.Append(nil))
	return err
}
