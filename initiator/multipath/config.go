package multipath

import (
	"cmp"
	"fmt"
	"time"

	"softiser/initiator/blockio"
)

// Policy chooses among paths that are equally good.
type Policy uint8

// Policies, as those of Linux' NVMe multipath.
const (
	RoundRobin Policy = iota // in turn
	QueueDepth               // the one with the fewest requests outstanding
)

var policyNames = [...]string{"round-robin", "queue-depth"}

// String returns the policy's name.
func (p Policy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// ParsePolicy reads a policy's name.
func ParsePolicy(s string) (Policy, error) {
	for i, n := range policyNames {
		if s == n {
			return Policy(i), nil
		}
	}
	return 0, fmt.Errorf("%q is no policy: want round-robin or queue-depth", s)
}

// Fence says what makes it safe to repeat a write whose outcome a lost path has left
// unknown.
type Fence uint8

// Ways to fence a path.
const (
	// FenceSession waits until the lost session has been reinstated, over whatever
	// portal, or until the storage has moved the volume to another path.
	FenceSession Fence = iota
	// FenceReset is that, or has a LUN RESET over another path end every command on the
	// volume, those of other hosts too. It trusts the target to have read by then what it
	// had received over the lost path.
	FenceReset
	// FenceNone repeats writes at once, as most hosts do, and leaves it to the storage that
	// no late one of them overtakes a later write.
	FenceNone
)

var fenceNames = [...]string{"session", "reset", "none"}

// String returns the fence's name.
func (f Fence) String() string {
	if int(f) < len(fenceNames) {
		return fenceNames[f]
	}
	return fmt.Sprintf("Fence(%d)", uint8(f))
}

// ParseFence reads a fence's name.
func ParseFence(s string) (Fence, error) {
	for i, n := range fenceNames {
		if s == n {
			return Fence(i), nil
		}
	}
	return 0, fmt.Errorf("%q is no fence: want session, reset or none", s)
}

// Config says what a volume is made of. Zero fields mean the documented defaults.
type Config struct {
	Paths  []Dialer // one or more
	Policy Policy   // default RoundRobin
	Fence  Fence    // default FenceSession
	// NoPathRetry is how long requests wait while no path can carry them, and writes of a
	// lost path for its fence, before they fail. Default 120 s; negative: for ever; FailFast:
	// not at all.
	NoPathRetry time.Duration
	// CheckInterval is how often a path is asked whether it still works, and what is not
	// there is looked for; while no path can carry requests, those that are there are asked
	// four times a second. Default 5 s.
	CheckInterval time.Duration
	// Cache is the account of what the volume has acknowledged. Nil: a new one.
	Cache *blockio.Cache
	// After, where it is not nil, is closed when the process whose paths some Dialers go on with
	// has ended: no other path logs in before.
	After <-chan struct{}
	// OnEvent, when set, is told what happens to paths, one line each, one at a time and in the
	// order in which it comes about; that a path is there at the start is no news. It must not block.
	OnEvent func(string)
	// Changed, when set, is called after each event, and when what a path is good for is known for the
	// first time. It must not block.
	Changed func()
}

// FailFast as Config.NoPathRetry has requests fail while there is no path.
const FailFast time.Duration = 1

// ErrNoPath ends a request that no path could carry; it is an ErrSessionLost.
var ErrNoPath = fmt.Errorf("%w: no path leads to the volume", blockio.ErrSessionLost)

func (c Config) withDefaults() Config {
	c.NoPathRetry = cmp.Or(c.NoPathRetry, 120*time.Second)
	c.CheckInterval = cmp.Or(c.CheckInterval, 5*time.Second)
	return c
}
