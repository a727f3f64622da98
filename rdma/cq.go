package rdma

import (
	"context"
	"fmt"

	"softiser/rdma/internal/verbs"
)

// CQConfig describes a completion queue.
type CQConfig struct {
	// Depth is the number of completions it holds; 0 means 256. It must hold what
	// all its queue pairs can have outstanding: overflow ends them (see
	// ErrOverflow).
	Depth int
	// Handler, when set, is called after completions have been added, once per
	// batch, on the goroutine that produced them: the receive goroutine of a queue
	// pair, its transmit goroutine, or one inside QP.Push or PostSend. It is never
	// called from inside Enqueue or PostRecv, never concurrently with itself for
	// one CQ, and no lock of this package is held. It should poll until the queue
	// is empty, which a Poll that does not fill its array has made it; it may Enqueue,
	// PostRecv and Push.
	Handler func(*CQ)
}

// CQ is a completion queue. All methods may be called concurrently.
type CQ struct {
	dev  *Device
	q    verbs.CQ
	life lifetime // queue pairs use it
}

// CreateCQ creates a completion queue.
func (d *Device) CreateCQ(cfg CQConfig) (*CQ, error) {
	def(&cfg.Depth, 256)
	if cfg.Depth < 1 || cfg.Depth > d.cfg.MaxCQE {
		return nil, invalid("completion queue depth %d, the device allows 1 to %d", cfg.Depth, d.cfg.MaxCQE)
	}
	if err := d.count(&d.nCQ, d.cfg.MaxCQ, "completion queues"); err != nil {
		return nil, err
	}
	cq := &CQ{dev: d}
	var handler func()
	if f := cfg.Handler; f != nil {
		handler = func() { f(cq) }
	}
	cq.q.Init(cfg.Depth, handler)
	return cq, nil
}

// Poll moves up to len(wc) completions into wc and returns their number.
func (cq *CQ) Poll(wc []WC) (n int) {
	cq.q.Lock()
	for n < len(wc) {
		c := cq.q.NextLocked()
		if c == nil {
			break
		}
		w := &wc[n]
		w.ID, w.QP, w.Status, w.Opcode, w.Flags = c.ID, pairOf(c.QP), c.Status, c.Opcode, c.Flags
		w.ByteLen, w.InvSTag, w.Imm, w.SrcQPN = c.ByteLen, c.InvSTag, c.Imm, c.SrcQPN
		n++
	}
	cq.q.Unlock()
	return n
}

// Len is the number of completions waiting.
func (cq *CQ) Len() int { return cq.q.Len() }

// ReqNotify arms the queue for one wake-up of Wait: by the next completion, or
// with solicitedOnly by the next one that is an error or answers a message with a
// solicited event. Arm, then Poll once more, then Wait.
func (cq *CQ) ReqNotify(solicitedOnly bool) { cq.q.ReqNotify(solicitedOnly) }

// Wait returns when the queue has something to poll, or after ReqNotify(true)
// when what was asked for has come. Without ReqNotify it means ReqNotify(false).
// The error is ErrClosed, ErrOverflow or that of ctx.
func (cq *CQ) Wait(ctx context.Context) error { return cq.q.Wait(ctx) }

// Overflowed reports whether a completion has been lost.
func (cq *CQ) Overflowed() bool { return cq.q.Overflowed() }

// Resize changes the depth. It fails with ErrBusy when more completions are
// waiting than fit.
func (cq *CQ) Resize(n int) error {
	if n < 1 || n > cq.dev.cfg.MaxCQE {
		return invalid("completion queue depth %d, the device allows 1 to %d", n, cq.dev.cfg.MaxCQE)
	}
	return cq.q.Resize(n)
}

// Close ends the queue. It fails with ErrBusy while a queue pair uses it.
func (cq *CQ) Close() error {
	users, first := cq.life.end()
	if users > 0 {
		return fmt.Errorf("%w: the completion queue serves %d queue pairs", ErrBusy, users)
	}
	if first {
		cq.q.Close()
		cq.dev.nCQ.Add(-1)
		cq.dev.life.release()
	}
	return nil
}
