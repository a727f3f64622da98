package bench

import "time"

// clock is the time of a clone.
type clock struct {
	epoch time.Time // zero of all time stamps

	// The runner's, as soon as the clone has begun:
	deadline time.Duration // 0: none
	began    time.Duration // from when on what it does is measured
	ramped   bool          // it is measured: the ramp is over
}

// set starts the clock at now; runtime 0: the clone has as long as it takes.
func (k *clock) set(now, ramp, runtime time.Duration) {
	k.began, k.ramped = now, ramp == 0
	if runtime > 0 {
		k.deadline = now + ramp + runtime
	}
}

// rampedUp reports whether a ramp of that length is over, and its end has not been noted.
func (k *clock) rampedUp(now, ramp time.Duration) bool { return !k.ramped && now-k.began >= ramp }

// restart has what is done from now on measured.
func (k *clock) restart(now time.Duration) { k.began, k.ramped = now, true }

func (k *clock) now() time.Duration { return time.Since(k.epoch) }

// expired reports whether the clone's time is over.
func (k *clock) expired(now time.Duration) bool { return k.deadline > 0 && now >= k.deadline }
