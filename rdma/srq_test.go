package rdma_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

func TestSharedReceiveQueue(t *testing.T) { forEach(t, sharedReceiveQueue) }

func sharedReceiveQueue(t *testing.T, o *rdmatest.Options) {
	events := make(chan rdma.Event, 8)
	a, b := rdmatest.NewPair(t, o) // only for a device with a second connection below
	srq, err := b.PD.CreateSRQ(rdma.SRQConfig{MaxRecv: 8})
	if err != nil {
		t.Fatal(err)
	}
	var qps []*rdma.QP
	var peers []*rdmatest.End
	for i := range 2 {
		qp, err := b.PD.CreateQP(rdma.QPConfig{SendCQ: b.CQ, RecvCQ: b.CQ, SRQ: srq, OnEvent: func(_ *rdma.QP, e rdma.Event) {
			if e == rdma.EventSRQLimit {
				events <- e
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		qps = append(qps, qp)
		e := rdmatest.NewEnd(t, o, i)
		rdmatest.Connect(t, e.QP, qp, nil, nil)
		peers = append(peers, e)
	}
	if err := qps[0].PostRecv(rdma.RecvWR{}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("PostRecv on a queue pair with a shared queue: %v", err)
	}
	bufs := make([][]byte, 4)
	for i := range bufs {
		bufs[i] = make([]byte, 8)
		if err := srq.PostRecv(rdma.RecvWR{ID: uint64(i), SGL: []rdma.SGE{b.SGE(bufs[i])}}); err != nil {
			t.Fatal(err)
		}
	}
	srq.Arm(2)
	for i := range 4 {
		e := peers[i%2]
		e.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.FlagInline, SGL: []rdma.SGE{{Mem: []byte{byte('a' + i)}}}})
		last := 3 - i // a stack
		wc := b.Want(t, uint64(last), rdma.WCRecv, rdma.StatusSuccess)
		if wc.QP != qps[i%2] || bufs[last][0] != byte('a'+i) {
			t.Errorf("message %d came as %+v, %q", i, wc, bufs[i])
		}
	}
	select {
	case <-events:
	case <-time.After(rdmatest.Timeout):
		t.Error("no limit event")
	}
	if len(events) != 0 {
		t.Error("more than one limit event")
	}
	if err := srq.Close(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("close of a queue in use: %v", err)
	}
	for _, qp := range qps {
		if err := qp.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := srq.Close(); err != nil {
		t.Error(err)
	}
	_ = a
}

// A receiver that finds the shared queue empty, because whoever was told that it gets low
// has not posted more yet, has it filled by its own owner: its connection does not end.
func TestSharedReceiveQueueEmpty(t *testing.T) {
	o := new(rdmatest.Options)
	_, b := rdmatest.NewPair(t, o)
	srq, err := b.PD.CreateSRQ(rdma.SRQConfig{MaxRecv: 8})
	if err != nil {
		t.Fatal(err)
	}
	post := func(id uint64) {
		if err := srq.PostRecv(rdma.RecvWR{ID: id, SGL: []rdma.SGE{b.SGE(make([]byte, 8))}}); err != nil {
			t.Error(err)
		}
	}
	told, late := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(late) })
	filled := 0 // by the second queue pair; on its receive goroutine
	handlers := []func(){
		func() { close(told); <-late },
		func() { filled++; post(uint64(9 + filled)) },
	}
	var peers []*rdmatest.End
	for i := range 2 {
		qp, err := b.PD.CreateQP(rdma.QPConfig{SendCQ: b.CQ, RecvCQ: b.CQ, SRQ: srq, OnEvent: func(_ *rdma.QP, e rdma.Event) {
			if e == rdma.EventSRQLimit {
				handlers[i]()
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer qp.Close()
		e := rdmatest.NewEnd(t, o, i)
		rdmatest.Connect(t, e.QP, qp, nil, nil)
		peers = append(peers, e)
	}
	send := func(i int) {
		peers[i].Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.FlagInline, SGL: []rdma.SGE{{Mem: []byte{1}}}})
	}
	defer release() // before the queue pairs are closed
	post(0)
	srq.Arm(1)
	send(0) // takes the only buffer; its owner is told, and takes its time
	<-told
	send(1)
	b.Want(t, 10, rdma.WCRecv, rdma.StatusSuccess)
	send(1)
	b.Want(t, 11, rdma.WCRecv, rdma.StatusSuccess)
	release()
	b.Want(t, 0, rdma.WCRecv, rdma.StatusSuccess)
}
