package iwarp

import (
	"testing"

	"softiser/internal/fsm"
	"softiser/internal/leaktest"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
)

// In tests a transition that the table of states does not have is a panic.
func TestMain(m *testing.M) {
	fsm.OnIllegal = func(err error) { panic(err) }
	leaktest.Main(m)
}

// nobody is a front that does not want to know.
type nobody struct{}

func (nobody) StateChanged(_, _ verbs.State) func() { return func() {} }
func (nobody) Cause(err error) error                { return err }
func (nobody) Ended(error)                          {}
func (nobody) Event(verbs.Event)                    {}

// newPair is a queue pair with a domain and a completion queue of its own.
func newPair(t testing.TB, maxRecv int) (*QP, *verbs.CQ) {
	t.Helper()
	d, cq, v := new(verbs.Device), new(verbs.CQ), new(verbs.QP)
	d.Table.Limit(1 << 16)
	cq.Init(1024, nil)
	dom := new(mem.Domain)
	v.Dev, v.PD, v.SendCQ, v.RecvCQ, v.MaxSend = d, dom, cq, cq, 128
	v.Init(nobody{}, maxRecv)
	qp := New(new(Device), v)
	dom.Revoked = qp.tx.revoked
	return qp, cq
}

// window is a region for one queue pair, as rdma.Window is.
type window struct {
	r     mem.Region
	table *mem.Table
}

func newWindow(t testing.TB, qp *QP, shared bool) *window {
	t.Helper()
	w := &window{table: &qp.Dev.Table}
	w.r.Remote = !shared
	w.r.Init(qp.PD)
	if err := w.table.Insert(&w.r); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *window) bind(qp *QP, segs [][]byte, a mem.Access) (stag uint32, base uint64) {
	w.r.Revoke()
	return w.r.Open(&qp.Mem, segs, a)
}

func (w *window) close() {
	w.r.Revoke()
	w.table.Remove(&w.r)
}
