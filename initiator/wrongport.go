package initiator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"softiser/internal/iscsi"
)

// WrongProtocolError ends a Dial or Discover over iSER at a port that answers
// iSCSI over TCP and no RDMA start-up.
type WrongProtocolError struct {
	Address string // of the port
	// Err is how the port broke the start-up off; nil: it kept silent. A port that
	// breaks off may speak iSER and have been short of something.
	Err error
}

func (e *WrongProtocolError) Unwrap() error { return e.Err }

func (e *WrongProtocolError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%v; %s answers iSCSI over TCP: unless it speaks iSER as well, use iscsi:// instead of iser://, or allow the fall-back to TCP (--fallback-tcp)", e.Err, e.Address)
	}
	return fmt.Sprintf("%s speaks iSCSI over TCP but not iSER: use iscsi:// instead of iser://, or allow the fall-back to TCP (--fallback-tcp)", e.Address)
}

// A port that speaks only iSCSI takes an MPA Request for the beginning of a
// longer PDU and waits for the rest of it, without a word, until its own login
// time-out. So a portal that is silent after silence is asked for an iSCSI login
// on a second connection; when that is answered, the first has another grace to
// answer before it is given up: a slow portal may speak both.
const (
	portSilence = time.Second
	portGrace   = 1500 * time.Millisecond
)

// portDoubt is the doubt whether a port speaks iSER at all, as long as it has
// not shown it.
type portDoubt struct {
	addr   string
	speaks func(context.Context) bool // whether the port answers a login over plain TCP
}

// watch calls giveUp when the port answers plain iSCSI while ctx, which is the
// RDMA start-up's, is still waiting. The caller ends ctx and then waits for ended.
func (d portDoubt) watch(ctx context.Context, giveUp context.CancelCauseFunc) (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !pause(ctx, portSilence) || !d.speaks(ctx) || !pause(ctx, portGrace) {
			return
		}
		giveUp(&WrongProtocolError{Address: d.addr})
	}()
	return done
}

// pause waits for d; false means that ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// explain returns err, or what the port speaks instead when it has broken an
// RDMA start-up off.
func (d portDoubt) explain(ctx context.Context, err error) error {
	if wrong, ok := errors.AsType[*WrongProtocolError](context.Cause(ctx)); ok {
		return wrong
	}
	var op *net.OpError
	if ctx.Err() != nil || errors.As(err, &op) && op.Op == "dial" || !d.speaks(ctx) {
		return err
	}
	return &WrongProtocolError{Address: d.addr, Err: err}
}

// speaksISCSI reports whether addr answers a login over plain TCP. Nothing is
// proved there and no secret is used: a refusal is an answer.
func (t *transport) speaksISCSI(ctx context.Context, addr string) bool {
	cfg := *t.cfg
	cfg.Transport, cfg.Auth = TransportTCP, Auth{None: true}
	c, err := open(ctx, &transport{cfg: &cfg}, addr, iscsi.DiscoverySession, nil)
	if err != nil {
		le, ok := errors.AsType[*iscsi.LoginError](err)
		return ok && le.Remote
	}
	c.dm.Terminate(nil)
	<-c.gone
	return true
}
