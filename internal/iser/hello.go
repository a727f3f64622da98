package iser

import (
	"fmt"

	"softiser/internal/fsm"
	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
)

// helloState is where the Hello exchange stands:
//
//	helloNone ──Enable, iSERHelloRequired──▶ helloWait ──Hello, HelloReply──▶ helloDone
type helloState uint8

const (
	helloNone helloState = iota
	helloWait
	helloDone
)

// nextHello is the drawing as a table. Done without having waited is a Hello that the
// target answers though it was not agreed on.
var nextHello = fsm.Of([][]helloState{
	helloNone: {helloWait, helloDone},
	helloWait: {helloDone},
	helloDone: {},
})

var helloNames = [...]string{"none", "waiting", "done"}

// String names the state.
func (s helloState) String() string { return helloNames[s] }

// exchange is the Hello exchange of a connection (RFC 7145 §5.1.3). Guarded by Conn.mu.
type exchange struct {
	role  iscsi.Role
	pump  *rdmamsg.Pump
	state helloState
}

// set is the only writer of the state.
func (x *exchange) set(to helloState) error {
	if !nextHello.Has(x.state, to) {
		return fsm.Illegal("iser", "the Hello exchange", x.state, to)
	}
	x.state = to
	// Nothing of the initiator overtakes the exchange.
	x.pump.Hold = to == helloWait && x.role == iscsi.RoleInitiator
	return nil
}

// begin expects the exchange, which has been agreed on. The initiator says in it that it
// serves so many RDMA Reads at a time.
func (x *exchange) begin(ird int) error {
	if err := x.set(helloWait); err != nil {
		return err
	}
	if x.role == iscsi.RoleInitiator {
		x.send(&hello{maxVer: Version, ver: Version, depth: uint16(ird)})
	}
	return nil
}

// take handles a Hello or HelloReply in the full feature phase. A Hello that nobody needs is
// answered all the same; the target says in its answer that it asks for at most ord RDMA
// Reads at a time.
func (x *exchange) take(msg []byte, ord int) error {
	var h hello
	h.parse(msg)
	if h.reply != (x.role == iscsi.RoleInitiator) || x.state == helloDone {
		return errHello
	}
	if x.role == iscsi.RoleInitiator {
		if x.state != helloWait {
			return fmt.Errorf("%w: HelloReply without a Hello", errFormat)
		}
		if h.reject || h.ver != Version {
			return fmt.Errorf("iser: the target rejects the connection in its HelloReply (version %d)", h.ver)
		}
		return x.set(helloDone)
	}
	if err := x.set(helloDone); err != nil {
		return err
	}
	r := hello{reply: true, maxVer: Version, ver: Version, depth: uint16(min(ord, int(h.depth)))}
	r.reject = h.ver > Version || h.maxVer < Version
	x.send(&r)
	return nil
}

var errHello = fmt.Errorf("%w: unexpected Hello or HelloReply", errFormat)

// send queues a Hello or HelloReply ahead of everything else.
func (x *exchange) send(h *hello) {
	m := x.pump.Message(HeaderLen)
	m.Buf, m.First = h.append(m.Buf), true
	x.pump.Send(m)
}
