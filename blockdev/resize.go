package blockdev

import "sync"

// ResizeHooks is the list of functions to call after a resize, for the devices' OnResize. The
// zero value is ready.
type ResizeHooks struct {
	telling sync.Mutex // held by Tell and Change; taken before mu

	mu        sync.Mutex // guards what follows; not held while a function is called
	next      int
	hooks     map[int]func(Info)
	reporting bool
	again     bool // Report has been called since the one who reports has asked what to say
}

// Add registers f; the returned function removes it and may be called twice.
func (h *ResizeHooks) Add(f func(Info)) (cancel func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hooks == nil {
		h.hooks = map[int]func(Info){}
	}
	id := h.next
	h.next++
	h.hooks[id] = f
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.hooks, id)
	}
}

// call calls every function, without a lock held.
func (h *ResizeHooks) call(info Info) {
	h.mu.Lock()
	fs := make([]func(Info), 0, len(h.hooks))
	for _, f := range h.hooks {
		fs = append(fs, f)
	}
	h.mu.Unlock()
	for _, f := range fs {
		f(info)
	}
}

// Tell calls every function with the result of info. Only one Tell runs at a time, so that after
// two concurrent resizes no function is called with the older size last. The functions must
// not change the size.
func (h *ResizeHooks) Tell(info func() Info) {
	h.telling.Lock()
	defer h.telling.Unlock()
	h.call(info())
}

// Change calls change and then, unless that fails, does what Tell does, before any other Change
// begins: a user that keeps something for blocks that a shrink removes learns of the shrink
// before the device grows again.
func (h *ResizeHooks) Change(change func() error, info func() Info) error {
	h.telling.Lock()
	defer h.telling.Unlock()
	if err := change(); err != nil {
		return err
	}
	h.call(info())
	return nil
}

// Report is Tell for callers that must not wait for functions called by others: if another
// goroutine is in Report already, that one calls the functions once more. A device uses either
// Tell and Change, or Report.
func (h *ResizeHooks) Report(info func() Info) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.again = true
	if h.reporting {
		return
	}
	h.reporting = true
	for h.again {
		h.again = false
		h.mu.Unlock()
		h.call(info())
		h.mu.Lock()
	}
	h.reporting = false
}
