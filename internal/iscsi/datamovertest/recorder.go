package datamovertest

import (
	"testing"

	"softiser/internal/iscsi"
)

// Recorder is the layer above a datamover in tests that play the other end byte
// by byte: it keeps what comes up.
type Recorder struct {
	PDUs  chan *iscsi.PDU
	Done  chan *iscsi.Transfer
	Ended chan error

	Numbers iscsi.Sequence // what Sequence answers
}

// NewRecorder makes a recorder with room for 64 of each.
func NewRecorder() *Recorder {
	return &Recorder{PDUs: make(chan *iscsi.PDU, 64), Done: make(chan *iscsi.Transfer, 64), Ended: make(chan error, 1)}
}

// ControlNotify implements iscsi.Upper; so do the following.
func (r *Recorder) ControlNotify(p *iscsi.PDU) {
	for p != nil {
		next := p.Unlink()
		r.PDUs <- keep(p)
		p = next
	}
}

// keep is p, or a copy of it, for use beyond the up-call.
func keep(p *iscsi.PDU) *iscsi.PDU {
	if p.Recycle != nil {
		return p
	}
	q := *p
	return &q
}

func (r *Recorder) DataCompletionNotify(x *iscsi.Transfer) {
	for x != nil {
		next := x.Unlink()
		r.Done <- x
		x = next
	}
}

func (r *Recorder) ConnectionTerminateNotify(err error) { r.Ended <- err }

func (r *Recorder) Sequence() iscsi.Sequence { return r.Numbers }

// PDU takes the next PDU; what says in a failure which one is awaited. The caller
// releases it.
func (r *Recorder) PDU(t testing.TB, what string) *iscsi.PDU {
	t.Helper()
	return recv(t, what, r.PDUs)
}

// Completion takes the next transfer that has ended.
func (r *Recorder) Completion(t testing.TB) *iscsi.Transfer {
	t.Helper()
	return recv(t, "completion", r.Done)
}

// End waits for the end of the connection and returns its reason.
func (r *Recorder) End(t testing.TB) error {
	t.Helper()
	return recv(t, "end", r.Ended)
}

// Release releases the PDUs that nobody took, when no more come.
func (r *Recorder) Release() {
	for len(r.PDUs) > 0 {
		(<-r.PDUs).Release()
	}
}
