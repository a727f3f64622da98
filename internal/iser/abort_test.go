package iser

import (
	"runtime"
	"testing"

	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/rdma"
)

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
