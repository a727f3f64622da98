package rdma_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/await"
	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// CQ: solicited-only waits wake for solicited messages and for errors only.
func TestSolicitedOnly(t *testing.T) { forEach(t, solicitedOnly) }

func solicitedOnly(t *testing.T, o *rdmatest.Options) {
	a, b := rdmatest.NewPair(t, o)
	for i := range 3 {
		b.Recv(t, uint64(i), nil)
	}
	b.CQ.ReqNotify(true)
	a.Post(t, rdma.SendWR{Op: rdma.OpSend})
	await.True(t, "a completion waits", func() bool { return b.CQ.Len() != 0 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := b.CQ.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("woken by an ordinary message: %v", err)
	}
	a.Post(t, rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagSolicited})
	ctx2, cancel2 := context.WithTimeout(context.Background(), rdmatest.Timeout)
	defer cancel2()
	if err := b.CQ.Wait(ctx2); err != nil {
		t.Errorf("not woken by a solicited message: %v", err)
	}
	b.Poll(t, 2)
	b.CQ.ReqNotify(true)
	a.QP.Abort(nil)
	if err := b.CQ.Wait(ctx2); err != nil {
		t.Errorf("not woken by an error: %v", err)
	}
	b.Want(t, 2, rdma.WCRecv, rdma.StatusFlushed)
}

// A completion queue that overflows ends the queue pairs that overflow it.
func TestCQOverflow(t *testing.T) { forEach(t, overflow) }

func overflow(t *testing.T, o *rdmatest.Options) {
	o.CQ = rdma.CQConfig{Depth: 4}
	a, b := rdmatest.NewPair(t, o)
	for i := range 10 {
		b.Recv(t, uint64(i), nil)
	}
	for range 6 {
		if err := a.QP.PostSend(rdma.SendWR{Op: rdma.OpSend}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.WaitDone(t); !errors.Is(err, rdma.ErrOverflow) {
		t.Errorf("ended by: %v", err)
	}
	if !b.CQ.Overflowed() {
		t.Error("the queue does not know")
	}
	if err := b.CQ.Wait(context.Background()); !errors.Is(err, rdma.ErrOverflow) {
		t.Errorf("Wait: %v", err)
	}
}

func TestCQResize(t *testing.T) { forEach(t, resize) }

func resize(t *testing.T, o *rdmatest.Options) {
	o.CQ = rdma.CQConfig{Depth: 4}
	a, b := rdmatest.NewPair(t, o)
	for i := range 8 {
		b.Recv(t, uint64(i), nil)
	}
	send := func(n int) {
		for range n {
			if err := a.QP.PostSend(rdma.SendWR{Op: rdma.OpSend}); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(3)
	await.True(t, "three completions wait", func() bool { return b.CQ.Len() >= 3 })
	if err := b.CQ.Resize(2); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("resize below what waits: %v", err)
	}
	b.Want(t, 0, rdma.WCRecv, rdma.StatusSuccess)
	if err := b.CQ.Resize(16); err != nil {
		t.Fatal(err)
	}
	send(5)
	for i, wc := range b.Poll(t, 7) {
		if wc.ID != uint64(i+1) {
			t.Errorf("completion %d has ID %d", i+1, wc.ID)
		}
	}
}

// Everybody who waits learns of the end of a completion queue.
func TestCloseWakesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := rdma.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		cq, err := d.CreateCQ(rdma.CQConfig{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		end := make(chan error, 3)
		for range cap(end) {
			go func() { end <- cq.Wait(ctx) }()
		}
		synctest.Wait()
		if err := cq.Close(); err != nil {
			t.Fatal(err)
		}
		for range cap(end) {
			if err := <-end; !errors.Is(err, rdma.ErrClosed) {
				t.Error(err)
			}
		}
	})
}
