package nvmf_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"softiser/initiator/blockio"
	. "softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/nvme"
)

// TestOwnCancelIsNoTrouble: what a caller has cancelled is aborted without an event; what has taken too
// long for him is told.
func TestOwnCancelIsNoTrouble(t *testing.T) {
	for _, tc := range []struct {
		why  error
		want int64
	}{{context.Canceled, 0}, {context.DeadlineExceeded, 1}} {
		t.Run(tc.why.Error(), func(t *testing.T) {
			f := newFake(t)
			var told atomic.Int64
			cfg := f.config()
			cfg.OnEvent = func(e Event) {
				if e.Kind == EventAborted {
					told.Add(1)
				}
			}
			n := open(t, cfg)
			f.set(func(q *fakeQueue, k *nvme.Command, _ *nvme.CQE) bool {
				return q.id == 0 || k.SQE.Opcode() != nvme.OpRead
			})
			done := make(chan error, 1)
			r := &blockio.Request{Op: blockio.OpRead, Buf: make([]byte, 512), Done: func(r *blockio.Request) { done <- r.Err }}
			n.Submit(r)
			await.True(t, "the controller has the read", func() bool { return f.count("Read") == 1 })
			n.Cancel(r, tc.why)
			await.True(t, "the controller is asked to abort it", func() bool { return f.count("Abort") == 1 })
			f.set(nil)
			// A command is counted before it is held.
			await.True(t, "the read is answered", func() bool { return f.release(1, nvme.OpRead, nvme.AbortRequested, 0) == 1 })
			if err := <-done; !errors.Is(err, tc.why) {
				t.Error(err)
			}
			if told.Load() != tc.want {
				t.Errorf("%d events, want %d", told.Load(), tc.want)
			}
		})
	}
}
