package volume

import "time"

// A worker that pushed after each command would send every answer by a system call of its
// own, and wake the initiator for each. While its steps are short it postpones the pushes (it
// owes them) and makes them up (it pays) when it has no next command, or a batch. Any other push
// of the same connection sends those answers too; as a connection that receives pushes all the
// time, a write that goes in turn (turns.go) is not even answered before the worker pays, or
// the batch would leave in pieces. A separate goroutine that pays while the worker goes on
// writing was slower, see benchmarks/LIMITS.md.
//
// No answer may wait for the storage of another command: only writes count as short, and only
// after several in a row were. A write into the page cache waits only when the kernel throttles
// it; it then holds the inode's lock, so that the writes behind it would wait anyway. Writes
// that are made but not answered wait for writes in turn only, never for a step that makes data
// durable or punches a hole. A write in turn may wait for a peer that has its blocks; that wait
// is bounded.
const (
	owedMost  = 16                     // debts, at most
	owedLong  = 200 * time.Microsecond // how long an answer is kept while steps are short
	stepShort = 100 * time.Microsecond // a step that has waited for no storage
	stepsSure = 8                      // after so many short steps in a row the next one is expected to be short
)

// owed is what a worker has not pushed yet.
type owed struct {
	debts [owedMost]debt
	n     int
	made  bool      // a write is among them that has not been answered
	since time.Time // of the first
}

// debt is a port that is to be pushed.
type debt struct {
	port Port
	step Request // a write that has been made, and is to be answered first; or nil
}

// add notes what is to be paid.
func (w *owed) add(d debt, now time.Time) {
	if w.n == 0 {
		w.since = now
	}
	w.debts[w.n] = d
	w.n++
	w.made = w.made || d.step != nil
}

// pay answers and pushes what is owed.
func (w *owed) pay() {
	for _, d := range w.debts[:w.n] {
		if d.step != nil {
			d.step.Step(Proceed)
		}
	}
	for _, d := range w.debts[:w.n] {
		d.port.Push()
	}
	clear(w.debts[:w.n])
	w.n, w.made = 0, false
}

// mayOweLocked reports whether the worker that owes w may go on with the next command
// before it pays. now is when its last step ended, which took so long. Preconditions:
// p.mu is held.
func (p *pool) mayOweLocked(w *owed, now time.Time, took time.Duration) bool {
	if took >= stepShort {
		p.short = 0
		return false
	}
	p.short = min(p.short+1, stepsSure)
	next := p.queue.head()
	return p.short == stepsSure && next != nil && p.reads.fresh.head == nil && !p.readableLocked() && next.hold.kind == HoldWrite && (next.inTurn || !w.made) && p.n <= p.most &&
		w.n < owedMost && now.Sub(w.since) < owedLong
}

// mayOweReadsLocked reports whether the reader that owes w may look whether the next read is in
// memory before it pays. Preconditions: p.mu is held.
func (p *pool) mayOweReadsLocked(w *owed, now time.Time) bool {
	return p.queue.head() == nil && p.reads.fresh.head == nil && p.readableLocked() && p.n <= p.most &&
		w.n < owedMost && now.Sub(w.since) < owedLong
}
