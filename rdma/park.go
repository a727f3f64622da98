package rdma

import (
	"net"

	"softiser/rdma/internal/iwarp"
)

// Carried is what a parked queue pair of iWARP is: what was agreed on, the numbers of the next
// messages, and bytes that were read and not looked at. It has JSON for another process, which
// calls Check, or better Device.CheckCarried, before it believes any of it.
//
// Posted receives and private data are not part of it. Neither is memory: the peer is taken
// to have no STag of the old process any more.
type Carried = iwarp.Carried

// A queue pair goes to another process like this:
//
//	old process                              new process
//	Park, Still, Carry ── Carried, socket ─▶ CreateQP, PostRecv, Adopt
//	Unpark, if that comes to nothing

// stream is the engine of a queue pair of iWARP.
func (qp *QP) stream() (e *iwarp.QP, ok bool) {
	e, ok = qp.v.Engine.(*iwarp.QP)
	return e, ok
}

// Park makes the receiver of a connected queue pair of iWARP stop between two messages as soon
// as may, which it calls without locks, reports true and no Read of this side is in flight.
// Completions of what has come before are handled by then. changed is called, with locks held,
// when Still may have become true; resumed, which may be nil, by the goroutine that runs the
// completion handlers, when the parking has ended. False: the queue pair cannot be parked, or is.
func (qp *QP) Park(may func() bool, changed, resumed func()) bool {
	e, ok := qp.stream()
	return ok && e.Park(may, changed, resumed)
}

// Nudge makes a queue pair that is to be parked call may again though nothing comes.
func (qp *QP) Nudge() {
	if e, ok := qp.stream(); ok {
		e.Nudge()
	}
}

// Still reports whether a queue pair has stopped to receive, and has ended all that was posted
// to its send queue. It sends nothing from then on, unless something is posted.
func (qp *QP) Still() bool {
	e, ok := qp.stream()
	return ok && e.Still()
}

// Unpark makes a queue pair go on.
func (qp *QP) Unpark() {
	if e, ok := qp.stream(); ok {
		e.Unpark()
	}
}

// Carry returns what goes to another process: what the queue pair is, and its socket, of which
// the descriptor may be duplicated, and which stays its own. Preconditions: Still.
func (qp *QP) Carry() (k Carried, socket net.Conn, err error) {
	if err := qp.pd.dev.wants(ProviderIWARP, "a queue pair that is carried"); err != nil {
		return k, nil, err
	}
	k, socket, err = qp.engine().Carry()
	return k, socket, public(err)
}

// CheckCarried says why the device cannot go on with what another process has carried.
func (d *Device) CheckCarried(k *Carried) error {
	if err := d.wants(ProviderIWARP, "a queue pair that was carried"); err != nil {
		return err
	}
	if err := k.Check(); err != nil {
		return invalid("%v", err)
	}
	if k.IRD > d.cfg.MaxIRD || k.ORD > d.cfg.MaxORD {
		return invalid("IRD %d, ORD %d: the device allows %d and %d", k.IRD, k.ORD, d.cfg.MaxIRD, d.cfg.MaxORD)
	}
	return nil
}

// Adopt connects qp by what another process has carried. Of p only the settings of the socket
// and of waiting count, and how payload is sent. nc belongs to qp from now on, unless there is
// an error; receive buffers are posted before.
func (qp *QP) Adopt(nc net.Conn, k *Carried, p *ConnParams) error {
	d := qp.pd.dev
	if err := d.CheckCarried(k); err != nil {
		return err
	}
	var own ConnParams
	if p != nil {
		own = *p
	}
	own.IRD, own.ORD = -1, -1 // those of k count
	w, err := own.iwarp(d)
	if err != nil {
		return err
	}
	if err := qp.engine().Adopt(nc, w, k); err != nil {
		return public(err)
	}
	d.connected()
	return nil
}
