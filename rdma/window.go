package rdma

import "fmt"

// Window is a cheap STag that is bound, used once, and bound again: over exactly
// the given pieces of memory, for one queue pair, under a fresh random key each
// time. The pieces form one range of tagged offsets. The bound queue pair's peer
// may invalidate it by Send with Invalidate.
type Window struct{ r region }

// AllocWindow makes an unbound window.
func (pd *PD) AllocWindow() (*Window, error) {
	if pd.gone.Load() {
		return nil, fmt.Errorf("%w: protection domain", ErrClosed)
	}
	w := &Window{r: region{dev: pd.dev, pd: pd, invOK: true}}
	if err := pd.dev.tab.insert(&w.r); err != nil {
		return nil, err
	}
	pd.use.Add(1)
	return w, nil
}

// Bind opens the window over segs for the peer of qp and returns its STag and
// the tagged offset of the first byte. It takes effect at once, ahead of what is
// queued; OpBindMW is the same in the order of the send queue. Binding a bound
// window invalidates it first.
func (w *Window) Bind(qp *QP, segs [][]byte, a Access) (stag uint32, base uint64, err error) {
	if qp.pd != w.r.pd {
		return 0, 0, invalid("window and queue pair belong to different protection domains")
	}
	if err := checkAccess(a|AccessLocalWrite, 0); err != nil {
		return 0, 0, err
	}
	w.r.revoke()
	stag, base = w.r.bind(qp, segs, a)
	return stag, base, nil
}

// bind aims an invalid region at segs under a fresh key.
func (r *region) bind(qp *QP, segs [][]byte, a Access) (uint32, uint64) {
	return r.bindKey(qp, segs, a, uint8(freshKey(r.stag)))
}

// bindKey is bind with a given key.
func (r *region) bindKey(qp *QP, segs [][]byte, a Access, key uint8) (uint32, uint64) {
	r.mu.Lock()
	if r.valid {
		r.takeBackLocked() // two have bound it at the same time
	}
	r.setLocked(segs, a)
	r.stag = r.stag&^0xff | uint32(key)
	r.qp = qp
	r.valid = true
	r.lendLocked()
	r.faults.Store(0)
	stag, base := r.stag, r.base
	r.mu.Unlock()
	return stag, base
}

// Invalidate closes the window; it may be called at any time, by anyone, more
// than once. When it returns, nothing touches the memory any more. It waits for a
// placement in progress, at most one non-blocking system call. If a Read Response
// from the window has been sent in part, that connection ends.
func (w *Window) Invalidate() { w.r.revoke() }

// Valid reports whether the window is open: bound, and not invalidated by either
// end.
func (w *Window) Valid() bool {
	w.r.mu.RLock()
	defer w.r.mu.RUnlock()
	return w.r.valid
}

// STag is the current STag, valid or not.
func (w *Window) STag() uint32 {
	w.r.mu.RLock()
	defer w.r.mu.RUnlock()
	return w.r.stag
}

// Faults counts RDMA Writes of the peer, since Bind, that did not reach the
// memory because it could not be touched. Such a Write does not end the
// connection: whoever owns the window looks here when the peer says that the data
// is complete.
func (w *Window) Faults() uint64 { return w.r.faults.Load() }

// Close ends the window.
func (w *Window) Close() error {
	w.r.revoke()
	w.r.mu.Lock()
	pd := w.r.pd
	w.r.pd = nil
	w.r.mu.Unlock()
	if pd != nil {
		w.r.dev.tab.remove(&w.r)
		pd.use.Add(-1)
	}
	return nil
}
