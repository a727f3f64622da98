package cm

import "time"

// Timeouts of messages are exponents: 4.096 µs·2^n (IBA vol. 1 §12.7.16). A peer that
// names a long one does not make us wait longer than maxTimeout.
const (
	minTimeout = 50 * time.Millisecond
	maxTimeout = 10 * time.Second
)

// timeout is what the exponent n says, bounded.
func timeout(n uint8) time.Duration {
	return min(max(time.Duration(4096)<<(n&31), minTimeout), maxTimeout)
}

// What this side says in its messages; as Linux's rdma_cm does.
const (
	responseTimeout = 20 // 4.3 s, of either side
	cmRetries       = 15
	ackDelay        = 15 // 134 ms
	ackTimeout      = 19 // 2.1 s
	hopLimit        = 64
	fullPKey        = 0xffff
	noLID           = 0xffff
)

// firstRepeat is when a message without an answer is sent again; the interval then
// doubles, up to the response timeout that holds for it. Linux waits 6 s from the
// beginning, and a lost REQ costs that.
const firstRepeat = 200 * time.Millisecond

// Repetitions. A REP goes to an address that has not been proved, so these bound what
// a forged REQ makes us send there; a DREQ may go to a peer that is dead.
const (
	repeatsREQ  = cmRetries
	repeatsREP  = 5
	repeatsDREQ = 7
	repeatsSIDR = 7
)

// repeat is a message that is sent until it is answered.
type repeat struct {
	b    []byte // the MAD
	sent int    // times
	left int    // times that it may be sent again
	wait time.Duration
	most time.Duration
}

func newRepeat(b []byte, repeats int, most time.Duration) repeat {
	return repeat{b: b, sent: 1, left: repeats, wait: min(firstRepeat, most), most: most}
}

// next counts one more repetition; false when there is none left.
func (r *repeat) next() bool {
	if r.left == 0 {
		return false
	}
	r.left--
	r.sent++
	r.wait = min(2*r.wait, r.most)
	return true
}
