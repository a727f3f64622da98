package rdma

import (
	"errors"
	"fmt"
	"net"

	"softiser/rdma/internal/verbs"
)

// QPConfig describes a queue pair. Zero fields mean the default beside them.
type QPConfig struct {
	SendCQ, RecvCQ *CQ            // required; may be the same
	SRQ            *SRQ           // receives come from there instead of PostRecv
	Type           QPType         // TypeRC, which is all that iWARP has
	Datagram       DatagramParams // of TypeUD
	MaxSend        int            // work requests in the send queue; 128
	MaxRecv        int            // buffers in the receive queue; 128
	MaxSGE         int            // pieces per work request; 16
	MaxInline      int            // bytes of FlagInline; 256
	SignalAll      bool           // every work request is signalled
	Context        any            // for the user; see QP.Context
	// OnEvent, when set, is called on a goroutine of the queue pair; it must not
	// block and must not call Close.
	OnEvent func(*QP, Event)
}

// QP is a queue pair: one connection to one peer, or an end for datagrams (TypeUD). The
// goroutines behind it over iWARP are one receiver and one transmitter, from connection to
// Done; over RoCE one for handlers and events.
//
// Memory named in a posted work request belongs to the queue pair until its
// completion. All methods may be called concurrently. Close must not be called
// from a CQ handler.
type QP struct {
	v   verbs.QP
	pd  *PD
	cfg QPConfig
}

// owner is a QP as its engine sees it; see verbs.Owner.
type owner QP

// pairOf is the queue pair that v belongs to.
func pairOf(v *verbs.QP) *QP { return (*QP)(v.Owner().(*owner)) }

// StateChanged returns the call of the hook.
func (o *owner) StateChanged(from, to QPState) func() {
	if f := o.pd.dev.cfg.Hooks.StateChange; f != nil {
		return func() { f((*QP)(o), from, to) }
	}
	return func() {}
}

// Cause says an engine's error in the words of this package.
func (o *owner) Cause(err error) error { return public(err) }

// Ended counts why the connection has ended, and calls the hook for Terminate messages.
func (o *owner) Ended(cause error) {
	o.pd.dev.ended(cause)
	var te *TerminateError
	if f := o.pd.dev.cfg.Hooks.Terminate; f != nil && errors.As(cause, &te) {
		f((*QP)(o), te)
	}
}

// Event tells the user.
func (o *owner) Event(e Event) {
	if f := o.cfg.OnEvent; f != nil {
		f((*QP)(o), e)
	}
}

// CreateQP creates an unconnected queue pair, or one of the type UD, which is ready to
// send and receive. A type that the provider does not have is refused.
func (pd *PD) CreateQP(cfg QPConfig) (*QP, error) {
	d := pd.dev
	def(&cfg.MaxSend, 128)
	def(&cfg.MaxRecv, 128)
	def(&cfg.MaxSGE, 16)
	def(&cfg.MaxInline, 256)
	switch {
	case cfg.SendCQ == nil || cfg.RecvCQ == nil:
		return nil, invalid("a queue pair needs SendCQ and RecvCQ")
	case cfg.SendCQ.dev != d || cfg.RecvCQ.dev != d:
		return nil, invalid("completion queue of another device")
	case cfg.SRQ != nil && cfg.SRQ.pd != pd:
		return nil, invalid("shared receive queue of another protection domain")
	case cfg.MaxSend < 1 || cfg.MaxSend > d.cfg.MaxQPWR:
		return nil, invalid("MaxSend %d, the device allows 1 to %d", cfg.MaxSend, d.cfg.MaxQPWR)
	case cfg.MaxRecv < 1 || cfg.MaxRecv > d.cfg.MaxQPWR:
		return nil, invalid("MaxRecv %d, the device allows 1 to %d", cfg.MaxRecv, d.cfg.MaxQPWR)
	case cfg.MaxSGE < 1 || cfg.MaxSGE > d.cfg.MaxSGE:
		return nil, invalid("MaxSGE %d, the device allows 1 to %d", cfg.MaxSGE, d.cfg.MaxSGE)
	case cfg.MaxInline < 0 || cfg.MaxInline > d.cfg.MaxInline:
		return nil, invalid("MaxInline %d, the device allows 0 to %d", cfg.MaxInline, d.cfg.MaxInline)
	}
	if err := d.checkType(&cfg); err != nil {
		return nil, err
	}
	qp := &QP{pd: pd, cfg: cfg}
	qp.v.Dev, qp.v.PD = &d.shared, &pd.mem
	qp.v.SendCQ, qp.v.RecvCQ = &cfg.SendCQ.q, &cfg.RecvCQ.q
	if cfg.SRQ != nil {
		qp.v.SRQ = &cfg.SRQ.q
	}
	qp.v.MaxSend, qp.v.SignalAll = cfg.MaxSend, cfg.SignalAll
	qp.v.Init((*owner)(qp), cfg.MaxRecv)
	if err := qp.hold(); err != nil {
		return nil, err
	}
	if err := d.adopt(qp); err != nil {
		qp.drop()
		return nil, err
	}
	if cfg.Type == TypeUD {
		if err := qp.open(); err != nil {
			_ = qp.Close()
			return nil, err
		}
	}
	return qp, nil
}

// adopt makes a queue pair one of the device's, with an engine.
func (d *Device) adopt(qp *QP) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.qps) >= d.cfg.MaxQP {
		return fmt.Errorf("%w: %d queue pairs", ErrLimit, d.cfg.MaxQP)
	}
	if err := d.transport.attach(qp); err != nil {
		return err
	}
	d.qps[qp] = struct{}{}
	return nil
}

// origin is an object that a queue pair is made from.
type origin struct {
	life *lifetime
	what string
}

// origins are those of the queue pair.
func (qp *QP) origins() []origin {
	all := []origin{{&qp.pd.life, "protection domain"}, {&qp.cfg.SendCQ.life, "completion queue"}, {&qp.cfg.RecvCQ.life, "completion queue"}}
	if qp.cfg.SRQ != nil {
		all = append(all, origin{&qp.cfg.SRQ.life, "shared receive queue"})
	}
	return all
}

// hold has the queue pair use what it is made from, until drop. The error says which of it has
// ended.
func (qp *QP) hold() error {
	all := qp.origins()
	for i, o := range all {
		if !o.life.use() {
			for _, o := range all[:i] {
				o.life.release()
			}
			return errGone(o.what)
		}
	}
	return nil
}

// drop undoes hold.
func (qp *QP) drop() {
	for _, o := range qp.origins() {
		o.life.release()
	}
}

// Type is QPConfig.Type.
func (qp *QP) Type() QPType { return qp.cfg.Type }

// Num is the number of the queue pair on its device.
func (qp *QP) Num() uint32 { return qp.v.Num }

// PD is the protection domain.
func (qp *QP) PD() *PD { return qp.pd }

// Context is QPConfig.Context.
func (qp *QP) Context() any { return qp.cfg.Context }

// Done is closed when the connection has ended, everything has been flushed and
// the goroutines of the queue pair are gone. It is never closed for a queue pair
// that was not connected, except by Close.
func (qp *QP) Done() <-chan struct{} { return qp.v.Done }

// Failing is closed when the connection has begun to end. The end waits for the
// completion handlers: one that waits, for instance because the peer reads too
// slowly to be asked for more, must return then.
func (qp *QP) Failing() <-chan struct{} { return qp.v.Failing }

// Err tells why the connection ended: nil while it lives and after a clean
// Disconnect from this side; io.EOF when the peer closed it; *TerminateError; or
// another error.
func (qp *QP) Err() error {
	qp.v.Mu.Lock()
	defer qp.v.Mu.Unlock()
	return qp.v.Err
}

// CRC reports whether FPDUs, or packets, carry a CRC.
func (qp *QP) CRC() bool { return qp.Info().CRC }

// LocalAddr is the local address, nil before the connection.
func (qp *QP) LocalAddr() net.Addr { return qp.Info().LocalAddr }

// RemoteAddr is the peer's address, nil before the connection.
func (qp *QP) RemoteAddr() net.Addr { return qp.Info().RemoteAddr }

// QPAttr are the settings of a queue pair.
type QPAttr struct {
	Num                                   uint32
	Type                                  QPType
	State                                 QPState
	MaxSend, MaxRecv, MaxSGE, MaxInline   int
	SendQueued, RecvQueued, ReadsInFlight int
}

// Attr returns settings and fill levels.
func (qp *QP) Attr() QPAttr {
	recvs := qp.v.RQ.Len()
	qp.v.Mu.Lock()
	defer qp.v.Mu.Unlock()
	return QPAttr{
		Num: qp.v.Num, Type: qp.cfg.Type, State: qp.v.StateLocked(),
		MaxSend: qp.cfg.MaxSend, MaxRecv: qp.cfg.MaxRecv, MaxSGE: qp.cfg.MaxSGE, MaxInline: qp.cfg.MaxInline,
		SendQueued: int(qp.v.SQ.Tail - qp.v.SQ.Head), RecvQueued: recvs, ReadsInFlight: qp.v.Engine.Reads(),
	}
}

// State returns the state of the queue pair.
func (qp *QP) State() QPState { return qp.v.State() }

// Disconnect closes the connection gracefully: what is queued is finished, then
// FIN is sent, and the peer's FIN is waited for; neither for ever, if the peer does
// not go on. New work is refused.
// Disconnect itself does not wait; see Done.
func (qp *QP) Disconnect() {
	qp.v.Mu.Lock()
	if qp.v.StateLocked() != StateRTS {
		qp.v.Mu.Unlock()
		return
	}
	hook := qp.v.SetState(StateClosing)
	qp.v.Engine.Drain()
	qp.v.Mu.Unlock()
	hook()
}

// Abort ends the connection at once with err as its cause; nil means ErrClosed.
func (qp *QP) Abort(err error) {
	if err == nil {
		err = fmt.Errorf("%w: queue pair aborted", ErrClosed)
	}
	qp.v.Fail(err)
}

// Close ends the connection, if there is one, waits until everything is flushed
// and the goroutines are gone, and frees the queue pair. It must not be called
// from a CQ handler or from OnEvent.
func (qp *QP) Close() error {
	v := &qp.v
	if v.Closed.Swap(true) {
		<-v.Done
		return nil
	}
	v.Mu.Lock()
	connected := v.Connected
	if !connected {
		v.SetState(StateError)
	}
	v.Mu.Unlock()
	if connected {
		qp.Abort(nil)
		v.Engine.Wait()
	} else {
		close(v.Done)
	}
	qp.pd.dev.retire(qp)
	qp.drop()
	return nil
}
