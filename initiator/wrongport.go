package initiator

import (
	"context"
	"errors"
	"fmt"

	"softiser/internal/iscsi"
)

// WrongProtocolError ends a Dial or Discover over iSER at a port that answers
// iSCSI over TCP and no RDMA start-up.
type WrongProtocolError struct {
	Address string // of the port
	RoCE    bool   // RoCE was asked for; else RDMA over TCP
	// Err is how the port broke the start-up off; nil: it kept silent. A port that
	// breaks off may speak iSER and have been short of something.
	Err error
}

// Unwrap is Err.
func (e *WrongProtocolError) Unwrap() error { return e.Err }

// Error says what answers there, and what to use instead.
func (e *WrongProtocolError) Error() string {
	if e.RoCE {
		why := "nothing answers over RoCE there"
		if e.Err != nil {
			why = e.Err.Error()
		}
		return fmt.Sprintf("%s; %s answers iSCSI over TCP: use iser:// or iscsi:// instead of iser+roce://, or give the target a portal for RoCE (listen: roce://…)", why, e.Address)
	}
	if e.Err != nil {
		return fmt.Sprintf("%v; %s answers iSCSI over TCP: unless it speaks iSER as well, use iscsi:// instead of iser://, or allow the fall-back to TCP (--fallback-tcp)", e.Err, e.Address)
	}
	return fmt.Sprintf("%s speaks iSCSI over TCP but not iSER: use iscsi:// instead of iser://, or allow the fall-back to TCP (--fallback-tcp)", e.Address)
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
