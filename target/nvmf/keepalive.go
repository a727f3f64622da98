package nvmf

import (
	"math"
	"sync/atomic"
	"time"

	"softiser/internal/nvme"
)

// keepAlive ends a controller whose host has been silent for longer than its keep alive
// timeout; any command is a sign of life (TBKAS). controller.mu guards the fields, but for seen.
type keepAlive struct {
	c       *controller
	timeout time.Duration // 0: none
	timer   *time.Timer
	beat    uint64      // which timer counts
	seen    atomic.Bool // something has come since the timer was set
}

const (
	keepAliveUnit      = time.Second
	keepAliveSlack     = nvme.KeepAliveSlack
	discoveryKeepAlive = 2 * time.Minute // of a discovery controller without one

	// maxKeepAlive is the longest, as the feature has 32 bits for milliseconds.
	maxKeepAlive = math.MaxUint32 * time.Millisecond / keepAliveUnit * keepAliveUnit
)

// setLocked changes the timeout, rounded up to its granularity, and begins anew.
func (k *keepAlive) setLocked(d time.Duration) {
	if d == 0 && k.c.sub.kind == nvme.TypeDiscovery {
		d = discoveryKeepAlive
	}
	k.timeout = min((d+keepAliveUnit-1)/keepAliveUnit*keepAliveUnit, maxKeepAlive)
	k.stopLocked()
	if k.timeout > 0 && !k.c.over {
		k.seen.Store(false)
		k.startLocked()
	}
}

func (k *keepAlive) startLocked() {
	n := k.beat
	k.timer = time.AfterFunc(k.timeout+keepAliveSlack, func() { k.look(n) })
}

// stopLocked ends the watch for the host. A timer that has fired already finds that it does
// not count any more: a second one beside the next would see no command between the two.
func (k *keepAlive) stopLocked() {
	k.beat++
	if k.timer != nil {
		k.timer.Stop()
	}
}

// look ends the controller if its host has been silent; beat is that of the timer that asks.
func (k *keepAlive) look(beat uint64) {
	c := k.c
	c.mu.Lock()
	counts := !c.over && beat == k.beat
	silent := counts && !k.seen.Swap(false) && !c.resting()
	if counts && !silent {
		k.startLocked()
	}
	c.mu.Unlock()
	if silent {
		c.end(errKeepAlive)
	}
}
