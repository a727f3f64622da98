package nvmf_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/await"
	"softiser/internal/nvme"
)

// A command that was outstanding when its controller went for good fails for that reason, however long it had been
// there: one loss is not taken for the second one of a command that kills controllers.
func TestCommandOfALostController(t *testing.T) {
	f := newFake(t)
	f.set(func(q *fakeQueue, k *nvme.Command, _ *nvme.CQE) bool {
		return q.id == 0 || k.SQE.Opcode() != nvme.OpRead
	})
	cfg := f.config()
	cfg.CtrlLossTimeout, cfg.ReconnectDelay = 300*time.Millisecond, 50*time.Millisecond
	n := open(t, cfg)
	done := make(chan error, 1)
	n.Submit(&blockio.Request{Op: blockio.OpRead, Buf: make([]byte, 4096), Done: func(r *blockio.Request) { done <- r.Err }})
	await.True(t, "the controller has the command", func() bool { return f.count(nvme.OpRead.IOName()) > 0 })
	sent := time.Now()
	await.True(t, "it is older than a controller may be lost", func() bool { return time.Since(sent) > 2*cfg.CtrlLossTimeout })
	f.ln.Close()
	f.drop()
	err := <-done
	if _, why := n.Association().State(); !errors.Is(err, blockio.ErrSessionLost) || why == nil || !strings.Contains(err.Error(), why.Error()) {
		t.Errorf("the command fails with %q; the association ended because: %v", err, why)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// Of a change that has failed in one part another part may yet be carried out when the association is lost, which
// whoever knows of other controllers has to be told.
func TestFailedInOnePartAndLost(t *testing.T) {
	for _, op := range []blockio.Op{blockio.OpRead, blockio.OpWrite} {
		f := newFake(t)
		f.ident.MDTS = 1
		n := open(t, f.config())
		var came atomic.Int32
		f.set(func(q *fakeQueue, _ *nvme.Command, e *nvme.CQE) bool {
			if q.id == 0 {
				return true
			}
			e.SetStatus(nvme.WriteFault | nvme.DoNotRetry)
			return came.Add(1) == 1
		})
		done, before := make(chan error, 1), n.Stats().Completed
		n.Submit(&blockio.Request{Op: op, Buf: make([]byte, 16<<10), Done: func(r *blockio.Request) { done <- r.Err }})
		await.True(t, "one part has failed, and the other one is there", func() bool { return n.Stats().Completed > before && came.Load() == 2 })
		f.drop()
		if err := <-done; !errors.Is(err, blockdev.ErrMedium) || errors.Is(err, blockio.ErrOutcomeUnknown) != (op == blockio.OpWrite) {
			t.Errorf("%v: %v", op, err)
		}
		f.set(nil)
	}
}
