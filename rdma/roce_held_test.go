package rdma_test

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// TestEndedHoldsNothing: the connection manager has ended connections in mind for as long as
// their packets may be on the way, and thousands of them. Of their queue pairs, which have
// memory of their own, it keeps nothing, on either side.
func TestEndedHoldsNothing(t *testing.T) {
	for _, kind := range []rdma.QPType{rdma.TypeRC, rdma.TypeUC} {
		t.Run(kind.String(), func(t *testing.T) {
			a, b := rdmatest.NewEnd(t, overRoCE(), 0), rdmatest.NewEnd(t, overRoCE(), 1)
			var qps [2]weak.Pointer[rdma.QP]
			func() {
				var pair [2]*rdma.QP
				for i, e := range []*rdmatest.End{a, b} {
					qp, err := e.PD.CreateQP(rdma.QPConfig{Type: kind, SendCQ: e.CQ, RecvCQ: e.CQ})
					if err != nil {
						t.Fatal(err)
					}
					pair[i], qps[i] = qp, weak.Make(qp)
				}
				// More than a minute in mind, longer than this test waits.
				rdmatest.Connect(t, pair[0], pair[1], &rdma.ConnParams{RoCE: rdma.RoCEParams{AckTimeout: 68 * time.Second}}, nil)
				for _, qp := range pair {
					_ = qp.Close()
				}
			}()
			for end := time.Now().Add(30 * time.Second); qps[0].Value() != nil || qps[1].Value() != nil; {
				if time.Now().After(end) {
					t.Fatalf("queue pairs that are still held: active %v, passive %v", qps[0].Value() != nil, qps[1].Value() != nil)
				}
				runtime.GC()
			}
		})
	}
}
