package nvmerdma

import (
	"errors"
	"testing"

	"softiser/internal/await"
	"softiser/internal/handover/handovertest"
	"softiser/internal/nvme"
	"softiser/internal/nvme/queuetest"
	"softiser/rdma"
)

// A host's connection goes from process to process with a command outstanding, and says
// nothing while it is parked.
func TestHostParks(t *testing.T) {
	h := newHostWith(t, capsuleLen)
	q := scripted(t, h)
	answer := func(cid uint16) {
		t.Helper()
		var e nvme.CQE
		e.SetCID(cid)
		if err := h.qp.PostSend(rdma.SendWR{ID: 1, Op: rdma.OpSend, SGL: []rdma.SGE{{Mem: e[:], LKey: h.pd.LocalDMAKey()}}}); err != nil {
			t.Fatal(err)
		}
	}
	first := q.Set(0, nvme.OpFlush, 0)
	q.H.Submit(first) // its answer shows that the controller has begun, before which nothing is parked
	q.H.Push()
	h.await(t)
	answer(first.SQE.CID())
	q.Wait()
	var before []*queuetest.Queue
	for range 5 {
		c := q.Set(0, nvme.OpFlush, 0)
		q.H.Submit(c)
		q.H.Push()
		h.await(t)
		n := q.H.(*Host)
		if !n.Park(always) || n.Park(always) {
			t.Fatal("it is parked twice, or not at all")
		}
		await.True(t, "it stands", func() bool { n.Nudge(); return n.Still() })
		answer(c.SQE.CID()) // for the next process
		before = append(before, q)
		q = crossedHost(t, n, c)
		if a := q.Wait(); a.CQE.CID() != c.SQE.CID() || !a.CQE.Status().OK() {
			t.Fatalf("%v", a.CQE)
		}
	}
	for _, q := range append(before, q) {
		q.H.Terminate(errors.New("enough"))
		q.H.(*Host).Unpark()
		q.End()
	}
	if q.H.(*Host).Park(always) {
		t.Error("one that has ended can be parked")
	}
}

// crossedHost goes on with a parked connection as another process does, c being outstanding.
func crossedHost(t *testing.T, h *Host, c *nvme.HostCommand) *queuetest.Queue {
	t.Helper()
	k, nc := handovertest.Crossed(t, h.Carry)
	n, err := RestoreHost(nc, HostConfig{Device: device(t, Config{Host: true})}, &k)
	if err != nil {
		t.Fatal(err)
	}
	q := queuetest.NewQueue(t, n, k.Slots)
	o := q.Set(c.Slot, c.SQE.Opcode(), 0)
	o.SQE = c.SQE
	if err := n.Outstanding(o); err != nil || n.Outstanding(o) == nil {
		t.Fatalf("%v, or it is outstanding twice", err)
	}
	n.Start(q)
	return q
}

// What no process of ours carries is refused.
func TestRestoreHostRefuses(t *testing.T) {
	good := CarriedHost{QP: rdma.Carried{Rev: 2, Initiator: true, IRD: 8, ORD: 1, FPDUSize: 1500}, Slots: 2}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	d := device(t, Config{Host: true})
	for name, spoil := range map[string]func(*CarriedHost){
		"controller": func(k *CarriedHost) { k.QP.Initiator = false }, "capsules": func(k *CarriedHost) { k.InCapsule = InCapsule + 1 },
		"no slots": func(k *CarriedHost) { k.Slots = 0 }, "slots": func(k *CarriedHost) { k.Slots = nvme.MaxHostEntries + 1 },
		"unread": func(k *CarriedHost) { k.QP.Unread = make([]byte, 1<<20) },
	} {
		k := good
		spoil(&k)
		if k.Check() == nil {
			t.Errorf("%s: taken", name)
		}
		if _, err := RestoreHost(nil, HostConfig{Device: d}, &k); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
}
