package iser

import (
	"runtime"
	"testing"

	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/rdma"
)

// A PutData that is aborted after some of its RDMA Writes have been queued is
// complete when the last of these is: they use its memory.
func TestAbortQueuedPutData(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	const pieces = 2 * sendDepth * maxSGE // more than the send queue takes
	dst := make([]byte, pieces)
	w, err := r.pd.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	stag, base, err := w.Bind(r.qp, [][]byte{dst}, rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	// The target may send only when it has heard of the initiator.
	var b iscsi.BHS
	b.NewNopOut().SetITT(1)
	r.send(control(header{}, &b, nil))
	r.up.PDU(t, "NOP-Out").Release()

	c := r.c
	left := make(chan int, 1)
	c.mu.Lock()
	up := c.up
	c.up = &watcher{up, func() {
		c.mu.Lock()
		left <- c.out
		c.mu.Unlock()
	}}
	c.mu.Unlock()
	x := &iscsi.Transfer{ITT: 8, Ref: refOf(stags{ReadSTag: stag, ReadBase: base}), Len: pieces}
	src := make([]byte, pieces)
	for i := range src {
		x.Segs = append(x.Segs, src[i:i+1])
	}
	if err := c.PutData(x); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.pumpLocked()
	queued := c.out
	c.mu.Unlock()
	if queued != sendDepth {
		t.Fatalf("%d requests are queued", queued)
	}
	c.AbortTransfer(x)
	c.Push()
	r.up.Completion(t)
	if n := <-left; n != 0 || x.Err != iscsi.ErrAborted {
		t.Errorf("complete with %d requests outstanding: %v", n, x.Err)
	}
	c.mu.Lock()
	free := 0
	for o := c.ops.free; o != nil && free <= len(c.ops.all); o = o.next {
		free++
	}
	if free != len(c.ops.all) {
		t.Errorf("%d of %d ops are free", free, len(c.ops.all))
	}
	c.mu.Unlock()
}

// watcher calls f before each DataCompletionNotify.
type watcher struct {
	iscsi.Upper
	f func()
}

func (w *watcher) DataCompletionNotify(x *iscsi.Transfer) {
	w.f()
	w.Upper.DataCompletionNotify(x)
}

// A queue depth above 256 is allowed, and a whole read-ahead buffer of small PDUs
// may arrive while the upper layer is busy.
func TestManyPDUsAtOnce(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	const n = 600
	var b iscsi.BHS
	b.NewNopOut()
	msg := control(header{}, &b, nil)
	go func() { // the upper layer takes 64 and then waits until we take them
		var wcs [64]rdma.WC
		sent, done := 0, 0
		for ; sent < n; done += r.cq.Poll(wcs[:]) {
			for ; sent < n && sent-done < 100; sent++ {
				wr := rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{{Mem: msg, LKey: r.pd.LocalDMAKey()}}}
				if r.qp.PostSend(wr) != nil {
					return
				}
			}
			runtime.Gosched()
		}
	}()
	await.True(t, "all of it is in the socket, or the connection has ended", func() bool {
		return r.qp.Stats().SendsOut >= n || r.qp.State() != rdma.StateRTS
	})
	for range n {
		r.up.PDU(t, "NOP-Out").Release()
	}
}
