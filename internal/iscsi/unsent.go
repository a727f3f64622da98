package iscsi

// Memory is a bound that connections share for what their peers make them hold.
// blockdev.Pool is one.
type Memory interface {
	Reserve(n int) bool // false: there is no room for n more bytes
	Unreserve(n int)
}

// Bounds of the answers that a peer leaves unread on one connection, bytes. With
// more than answersFree of them the rest takes from the common Memory.
const (
	answersFree = 32 << 10
	answersStep = 64 << 10
	answersMost = 256 << 10
)

// Unsent counts the control PDUs that a datamover has queued and the socket has not
// taken. What a peer asks for, in pings, rejected PDUs or commands without data,
// costs it nothing if it does not read the answers; so a peer that owes so much
// reading is not read from until it has caught up:
//
//	Add ──▶ Full: the receive goroutine waits ── Sub ──▶ Room: it goes on
//
// Two ends that wait for each other like this would wait for ever: neither counts
// its own requests, only what the other one has made it say. The zero Unsent is
// ready for use; the datamover's lock guards it.
type Unsent struct {
	Memory Memory // nil: only the bound of the connection holds
	bytes  int
	lent   int // of Memory
}

// Add counts n bytes that have been queued.
func (u *Unsent) Add(n int) { u.bytes += n }

// Sub counts n bytes off that have been sent or dropped.
func (u *Unsent) Sub(n int) {
	if u.bytes -= n; u.lent > 0 && u.Room() {
		u.Memory.Unreserve(u.lent)
		u.lent = 0
	}
}

// Bytes returns what is counted.
func (u *Unsent) Bytes() int { return u.bytes }

// Many reports whether there is so much that Full has to be asked.
func (u *Unsent) Many() bool { return u.bytes > answersFree }

// Full reports whether the peer must read before it is read from again.
func (u *Unsent) Full() bool {
	if u.bytes > answersMost {
		return true
	}
	for u.Memory != nil && u.bytes > answersFree+u.lent {
		if !u.Memory.Reserve(answersStep) {
			return true
		}
		u.lent += answersStep
	}
	return false
}

// Room reports whether a peer that has been kept waiting is read from again.
func (u *Unsent) Room() bool { return u.bytes <= answersFree/2 }
