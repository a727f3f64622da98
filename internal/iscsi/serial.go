package iscsi

// Sequence numbers use serial number arithmetic modulo 2^32 (RFC 1982, RFC 7143
// §4.2.2).

// SerialLess reports whether a comes before b.
func SerialLess(a, b uint32) bool { return int32(a-b) < 0 }

// SerialLessEq reports whether a is b or comes before it.
func SerialLessEq(a, b uint32) bool { return int32(a-b) <= 0 }

// inWindow reports whether sn is in [first, last]; the window is empty when last
// is first-1.
func inWindow(sn, first, last uint32) bool { return sn-first <= last-first && !SerialLess(last, first) }

// CommandWindow is the target's command numbering of a session: which CmdSN it
// expects next and how far the initiator may go. It is not safe for concurrent
// use; the session guards it.
type CommandWindow struct {
	ExpCmdSN uint32
	MaxCmdSN uint32
}

// NewCommandWindow starts a window of size commands at the CmdSN of the leading
// login: the first command of the full feature phase carries that number.
func NewCommandWindow(cmdSN uint32, size int) CommandWindow {
	return CommandWindow{ExpCmdSN: cmdSN, MaxCmdSN: cmdSN + uint32(size) - 1}
}

// Accepts reports whether a non-immediate CmdSN lies inside the window. Others
// are dropped silently (RFC 7143 §4.2.2.1).
func (w *CommandWindow) Accepts(cmdSN uint32) bool { return inWindow(cmdSN, w.ExpCmdSN, w.MaxCmdSN) }

// Advance counts one command in order.
func (w *CommandWindow) Advance() { w.ExpCmdSN++ }

// Open lets the initiator have free commands beyond those received. MaxCmdSN
// never goes back (RFC 7143 §4.2.2.1).
func (w *CommandWindow) Open(free int) {
	if m := w.ExpCmdSN + uint32(free) - 1; SerialLess(w.MaxCmdSN, m) {
		w.MaxCmdSN = m
	}
}

// Size returns how many more commands the initiator may send.
func (w *CommandWindow) Size() int { return int(int32(w.MaxCmdSN - w.ExpCmdSN + 1)) }

// SenderWindow is the initiator's side: what it has used of what the target
// allows.
type SenderWindow struct {
	CmdSN    uint32 // next to use
	ExpCmdSN uint32
	MaxCmdSN uint32
}

// Update takes ExpCmdSN and MaxCmdSN of a target PDU. Numbers that went back are
// from a delayed PDU and are ignored (RFC 7143 §4.2.2.1).
func (w *SenderWindow) Update(s Sequence) {
	if SerialLess(s.MaxCmdSN, s.ExpCmdSN-1) {
		return
	}
	if SerialLess(w.ExpCmdSN, s.ExpCmdSN) {
		w.ExpCmdSN = s.ExpCmdSN
	}
	if SerialLess(w.MaxCmdSN, s.MaxCmdSN) {
		w.MaxCmdSN = s.MaxCmdSN
	}
}

// CanSend reports whether another non-immediate command fits.
func (w *SenderWindow) CanSend() bool { return SerialLessEq(w.CmdSN, w.MaxCmdSN) }

// Next takes the number for a non-immediate command.
func (w *SenderWindow) Next() uint32 {
	n := w.CmdSN
	w.CmdSN++
	return n
}
