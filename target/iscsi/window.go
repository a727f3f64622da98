package iscsi

import (
	"sync/atomic"

	"softiser/internal/iscsi"
)

// window is the command window of a session (RFC 7143 §4.2.2.1):
//
//	  ExpCmdSN                  MaxCmdSN
//	----+--------------------------+----
//	    | next ... may be sent ... |      MaxCmdSN = ExpCmdSN + free places - 1
//
// A command takes a place when it is accepted and gives it back when its
// response is queued. Its slot is kept a little longer, until the transport no
// longer needs its memory; slots bounds those, so that an initiator that sends
// commands and never reads responses is stopped by its own closed window.
//
// session.mu guards every field but shown and told: the transmitting side uses those, and may
// not take the lock (iscsi.Upper.Sequence).
type window struct {
	iscsi.CommandWindow
	size   int  // places
	slots  int  // slots, more than size
	active int  // commands accepted and not answered
	used   int  // slots taken
	shut   bool // places that become free are not given to the initiator, see rest.go

	shown atomic.Uint64 // ExpCmdSN<<32 | MaxCmdSN, as PDUs carry them
	told  atomic.Uint32 // MaxCmdSN of the last PDU that carried one
}

func (w *window) init(size int, cmdSN uint32) {
	w.CommandWindow = iscsi.NewCommandWindow(cmdSN, size)
	w.size, w.slots = size, 2*size
	w.publish()
}

// publish shows what the window has become.
func (w *window) publish() {
	if n := uint64(w.ExpCmdSN)<<32 | uint64(w.MaxCmdSN); n != w.shown.Load() {
		w.shown.Store(n)
	}
}

// show returns what a PDU is to carry. It does not need the lock.
func (w *window) show() (expCmdSN, maxCmdSN uint32) {
	n := w.shown.Load()
	return uint32(n >> 32), uint32(n)
}

// update opens the window as far as free places allow, and shows it.
func (w *window) update() {
	if !w.shut {
		w.Open(max(min(w.size-w.active, w.slots-w.used), 0))
	}
	w.publish()
}

// hidden reports whether the window is open although the last PDU told the initiator that it
// is closed, and no response is due that would tell otherwise.
func (w *window) hidden() bool {
	return w.active == 0 && w.told.Load() == w.ExpCmdSN-1 && w.Size() > 0
}
