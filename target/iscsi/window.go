package iscsi

import "softiser/internal/iscsi"

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
type window struct {
	iscsi.CommandWindow
	size   int // places
	slots  int // slots, more than size
	active int // commands accepted and not answered
	used   int // slots taken
}

func newWindow(size int, cmdSN uint32) window {
	return window{CommandWindow: iscsi.NewCommandWindow(cmdSN, size), size: size, slots: 2 * size}
}

// update opens the window as far as free places allow.
func (w *window) update() {
	w.Open(max(min(w.size-w.active, w.slots-w.used), 0))
}
