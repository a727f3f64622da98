package rdma

import (
	"sync/atomic"

	"softiser/rdma/internal/mem"
)

// Window is a cheap STag that is bound, used once, and bound again: over exactly
// the given pieces of memory, for one queue pair, under a fresh random key each
// time. The pieces form one range of tagged offsets. The bound queue pair's peer
// may invalidate it by Send with Invalidate.
type Window struct {
	pd   *PD
	r    mem.Region
	gone atomic.Bool
}

// AllocWindow makes an unbound window.
func (pd *PD) AllocWindow() (*Window, error) {
	w := &Window{pd: pd}
	w.r.Remote = true
	if err := pd.insert(&w.r); err != nil {
		return nil, err
	}
	return w, nil
}

// Bind opens the window over segs for the peer of qp and returns its STag and
// the tagged offset of the first byte. It takes effect at once, ahead of what is
// queued; OpBindMW is the same in the order of the send queue. Binding a bound
// window invalidates it first.
func (w *Window) Bind(qp *QP, segs [][]byte, a Access) (stag uint32, base uint64, err error) {
	if w.gone.Load() || qp.pd != w.pd {
		return 0, 0, invalid("window and queue pair belong to different protection domains")
	}
	if err := checkAccess(a|AccessLocalWrite, 0); err != nil {
		return 0, 0, err
	}
	w.r.Revoke()
	stag, base = w.r.Open(&qp.v.Mem, segs, mem.Access(a))
	return stag, base, nil
}

// Invalidate closes the window; it may be called at any time, by anyone, more
// than once. When it returns, nothing touches the memory any more. It waits for a
// placement in progress, at most one non-blocking system call. If a Read Response
// from the window has been sent in part, that connection ends.
func (w *Window) Invalidate() { w.r.Revoke() }

// Valid reports whether the window is open: bound, and not invalidated by either
// end.
func (w *Window) Valid() bool { return w.r.State().Valid }

// STag is the current STag, valid or not.
func (w *Window) STag() uint32 { return w.r.State().STag }

// Faults counts RDMA Writes of the peer, since Bind, that did not reach the
// memory because it could not be touched. Such a Write does not end the
// connection: whoever owns the window looks here when the peer says that the data
// is complete.
func (w *Window) Faults() uint64 { return w.r.Faults() }

// Close ends the window.
func (w *Window) Close() error {
	w.r.Revoke()
	if !w.gone.Swap(true) {
		w.pd.remove(&w.r)
	}
	return nil
}
