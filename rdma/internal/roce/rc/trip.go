package rc

import "time"

// trip measures round trips, one at a time: from the first sending of a packet that asks for
// an answer to that (Karn: of a packet that was sent again nobody knows which one was
// answered). With what they take, the last packets of what was sent are not left to the
// time-out of the connection, of half a second and more, if they are lost: when an answer is
// late, the oldest packet is sent once more. What the peer says to that tells what is missing.
type trip struct {
	timed   bool
	psn     uint64 // of the packet that is timed
	at      time.Duration
	mean    time.Duration // smoothed; 0: nothing measured yet
	vary    time.Duration // smoothed distance from mean
	probes  int           // since there was progress
	probing bool          // nothing but the oldest packet is sent, until there is
}

// leastProbe is how late an answer is at least: longer than a runtime with a garbage
// collector, or a busy host, may keep a process from answering.
const leastProbe = 10 * time.Millisecond

func (t *trip) begin(psn uint64, now time.Duration) {
	if !t.timed {
		t.timed, t.psn, t.at = true, psn, now
	}
}

// answered notes that all below psn has been answered; the result is what a round trip has
// taken, if one was timed.
func (t *trip) answered(psn uint64, now time.Duration) (took time.Duration) {
	t.probes, t.probing = 0, false
	if !t.timed || psn <= t.psn {
		return 0
	}
	t.timed = false
	took = max(1, now-t.at)
	if t.mean == 0 {
		t.mean, t.vary = took, took/2
	} else {
		t.vary += (max(took-t.mean, t.mean-took) - t.vary) / 4
		t.mean = smooth(t.mean, took)
	}
	return took
}

// repeated says that packets are sent again.
func (t *trip) repeated() { t.timed, t.probing = false, false }

// late is how long an answer may take before the oldest packet is sent once more: twice as
// long with every time; 0: not before timeout.
func (t *trip) late(timeout time.Duration) time.Duration {
	if t.mean == 0 {
		return 0
	}
	d := max(leastProbe, 2*t.mean+4*t.vary) << t.probes
	if d >= timeout/2 {
		return 0
	}
	return d
}
