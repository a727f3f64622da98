package rdma

import (
	"context"
	"net/netip"

	"softiser/internal/fsm"
)

// SetMSN makes the next messages of every queue carry the number sn, and expects
// it of the peer. Nothing may be on its way.
func SetMSN(qp *QP, sn uint32) { qp.engine().StartMSN(sn) }

// In tests a transition that the table of states does not have is a panic.
func init() { fsm.OnIllegal = func(err error) { panic(err) } }

// DialOneOf is Dial of a device of RoCE to a host that has these addresses.
func DialOneOf(ctx context.Context, all []netip.AddrPort, qp *QP, p *ConnParams) error {
	w, err := p.roce(qp.pd.dev, 0)
	if err != nil {
		return err
	}
	return public(connectOneOf(ctx, all, qp, w))
}
