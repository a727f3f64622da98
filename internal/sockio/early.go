package sockio

// Part of a batch goes first (ADR 216). At depths of some 6 to 60 two ends easily come to work in turn: one
// handles all that the other has sent, while that one waits; then its answers leave together,
// and it waits itself. The whole queue travels as one convoy, half of both processors' time is
// idle, and each round takes two wake-ups:
//
//	initiator ▒▒▒▒▒▒▒▒            ▒▒▒▒▒▒▒▒            ▒▒▒
//	target              ▒▒▒▒▒▒▒▒            ▒▒▒▒▒▒▒▒
//
// So of many messages that end a wait the first quarter is handled, and what that calls for is
// sent, before the rest:
//
//	initiator ▒▒ ▒▒▒▒▒▒ ▒▒ ▒▒▒▒▒▒ ▒▒ ▒▒▒▒▒▒
//	target       ▒▒ ▒▒▒▒▒▒ ▒▒ ▒▒▒▒▒▒ ▒▒ ▒▒▒
//
// Where both are at work all the time there are no waits, and batches are as large as they come.

// Many is how many messages together are worth a call more.
const Many = 6

// Early tells a reader when the part of a batch is over that goes first. With its zero value
// nothing does.
type Early struct {
	after int // so many messages; 0: there is no such part, or it is over
}

// Waited enters that the next read ends a wait, or may do so.
func (e *Early) Waited() { e.after = 1 }

// Over reports, once, whether the n messages that have been handled are the part that goes
// first. They are used of all that has come, in bytes or any other measure: how many there
// are is guessed by the first.
func (e *Early) Over(n, used, all int) bool {
	if n != e.after || n == 0 {
		return false
	}
	e.after = 0
	if n > 1 {
		return true
	}
	if used > 0 && all/used >= Many {
		e.after = max(all/used/4, 2)
	}
	return false
}
