package bench

import "time"

// clock is the time of a clone.
type clock struct {
	epoch    time.Time     // zero of all time stamps
	deadline time.Duration // 0: none; the runner's, as soon as the clone has begun
}

func (k *clock) now() time.Duration { return time.Since(k.epoch) }

// expired reports whether the clone's time is over.
func (k *clock) expired(now time.Duration) bool { return k.deadline > 0 && now >= k.deadline }
