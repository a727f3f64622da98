// Package verbstest gives the tests of engines queue pairs without a front.
package verbstest

import (
	"testing"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
)

// nobody is a front that does not want to know.
type nobody struct{}

func (nobody) StateChanged(_, _ verbs.State) func() { return func() {} }
func (nobody) Cause(err error) error                { return err }
func (nobody) Ended(error)                          {}
func (nobody) Event(verbs.Event)                    {}

// QP is a queue pair on a device of its own.
type QP struct {
	*verbs.QP
	Events *verbs.CQ // of both queues
	nextID uint64
}

// NewQP makes a queue pair with room for 16 requests and 64 receive buffers. It is not
// connected.
func NewQP(t testing.TB) *QP {
	t.Helper()
	d, cq, v := new(verbs.Device), new(verbs.CQ), new(verbs.QP)
	d.Table.Limit(1 << 10)
	cq.Init(1024, nil)
	v.Mem = mem.Stream{Opened: func(*mem.Region) {}, Closed: func(*mem.Region) {}, Revoked: func(*mem.Region) {}}
	v.Dev, v.PD, v.SendCQ, v.RecvCQ, v.MaxSend = d, &mem.Domain{Revoked: func(*mem.Region) {}}, cq, cq, 16
	v.Init(nobody{}, 64)
	return &QP{QP: v, Events: cq}
}

// Open makes a region, in two pieces so that nothing relies on one, that the peer may
// invalidate.
func (q *QP) Open(t testing.TB, p []byte, a mem.Access) (key uint32, r *mem.Region) {
	t.Helper()
	r = &mem.Region{Remote: true}
	r.Init(q.PD)
	if err := q.Dev.Table.Insert(r); err != nil {
		t.Fatal(err)
	}
	half := len(p) / 2 &^ 7
	key, _ = r.Open(&q.Mem, [][]byte{p[:half], p[half:]}, a)
	return key, r
}

// Buffer posts a receive buffer of n bytes in two pieces and returns it. The first one
// has ID 1.
func (q *QP) Buffer(t testing.TB, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	q.BufferAt(t, p[:n/3], p[n/3:])
	return p
}

// BufferAt posts a receive buffer.
func (q *QP) BufferAt(t testing.TB, pieces ...[]byte) {
	t.Helper()
	q.RQ.Lock()
	defer q.RQ.Unlock()
	q.nextID++
	b, err := q.RQ.PostLocked(q.nextID)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pieces {
		b.Add(p, mem.LocalKey)
	}
}

// Connect makes the queue pair take requests, each of which completes.
func (q *QP) Connect() {
	q.SignalAll = true
	q.Mu.Lock()
	q.SetState(verbs.StateRTS)
	q.Mu.Unlock()
}

// Queue posts a request with data, which fill completes; false if there is no room.
func (q *QP) Queue(op verbs.Opcode, data []byte, fill func(*verbs.WQE)) bool {
	q.Mu.Lock()
	defer q.Mu.Unlock()
	q.nextID++
	e, err := q.PostLocked(q.nextID, op)
	if err != nil {
		return false
	}
	e.Flags, e.Length, e.Remote = 0, uint32(len(data)), verbs.RemoteAddr{}
	e.Add(data[:len(data)/3], mem.LocalKey)
	e.Add(data[len(data)/3:], mem.LocalKey)
	if fill != nil {
		fill(e)
	}
	return true
}

// Completions takes all that there are.
func (q *QP) Completions() (wcs []verbs.WC) {
	q.Events.Lock()
	defer q.Events.Unlock()
	for wc := q.Events.NextLocked(); wc != nil; wc = q.Events.NextLocked() {
		wcs = append(wcs, *wc)
	}
	return wcs
}
