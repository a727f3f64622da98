package rc

import "time"

// rtt estimates the round-trip time (RFC 6298 §2), and says when a probe is due. One packet
// at a time is measured, from its first transmission to its answer: with a packet that was
// sent again nobody knows which of the two was answered (Karn's algorithm, §3).
//
// A probe repeats the oldest packet without an answer when that is late, and the peer's answer
// says what is missing. Without it a loss at the end of what was sent would wait for the
// time-out of the connection, which is half a second or more.
type rtt struct {
	timed   bool
	psn     uint64 // of the packet that is timed
	at      time.Duration
	srtt    time.Duration // smoothed; 0: nothing measured yet
	rttvar  time.Duration
	probes  int  // since there was progress
	probing bool // nothing but the oldest packet is sent, until there is progress
}

// minProbe is the shortest wait before a probe: longer than a garbage collector, or a busy
// host, may keep a peer from answering.
const minProbe = 10 * time.Millisecond

// begin measures a packet that is sent for the first time, unless another one is measured.

func (t *rtt) begin(psn uint64, now time.Duration) {
	if !t.timed {
		t.timed, t.psn, t.at = true, psn, now
	}
}

// answered notes that everything below psn has been answered. It returns the round-trip time
// if that ends a measurement, and 0 otherwise.
func (t *rtt) answered(psn uint64, now time.Duration) (took time.Duration) {
	t.probes, t.probing = 0, false
	if !t.timed || psn <= t.psn {
		return 0
	}
	t.timed = false
	took = max(1, now-t.at)
	if t.srtt == 0 {
		t.srtt, t.rttvar = took, took/2
	} else {
		t.rttvar += (max(took-t.srtt, t.srtt-took) - t.rttvar) / 4
		t.srtt = smooth(t.srtt, took)
	}
	return took
}

// abandon ends a measurement, and probing: packets are sent again.
func (t *rtt) abandon() { t.timed, t.probing = false, false }

// probe is called when a probe is sent.
func (t *rtt) probe() {
	t.probes++
	t.timed, t.probing = false, true
}

// probeAfter is how long an answer may take before a probe is sent: twice as long after each
// one. 0: there is none before timeout.
func (t *rtt) probeAfter(timeout time.Duration) time.Duration {
	if t.srtt == 0 {
		return 0
	}
	d := max(minProbe, 2*t.srtt+4*t.rttvar) << t.probes
	if d >= timeout/2 {
		return 0
	}
	return d
}
