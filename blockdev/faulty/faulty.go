// Package faulty wraps a block device and makes it fail by rules: errors,
// delays, stalls, torn and lost writes, failing flushes. Which calls are hit is decided
// by counts and by a seeded generator, so that a run can be repeated.
//
//	d := faulty.New(dev, 1,
//		faulty.Rule{Op: faulty.Read, Off: 4096, Len: 4096, Err: blockdev.ErrMedium},
//		faulty.Rule{Op: faulty.Write, Chance: 0.01, Torn: true},
//		faulty.Rule{Op: faulty.Read, Delay: 50 * time.Millisecond})
//
// Write leases are always staged, because only then is there a moment at which
// a write can be torn or lost. A rule that acts on reads makes NoWait leases
// fail with ErrWouldBlock where it delays, so that a slow disk is slow and not
// a blocked connection.
package faulty

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"softiser/blockdev"
)

// Op is a set of operations that a rule applies to.
type Op uint8

const (
	Read    Op = 1 << iota // read leases and ReadAt
	Write                  // commits of write leases and WriteAt
	Flush                  // Flush, FlushRange and the flush part of FUA
	Discard                // Discard and WriteZeroes
	Lease                  // asking for a write lease
	All     = Read | Write | Flush | Discard | Lease
)

// Rule says what goes wrong, where and how often. Rules are tried in order;
// delays add up, and the first that fails, tears or loses ends the search.
type Rule struct {
	Op       Op
	Off, Len int64 // only operations that touch this range; Len 0: everywhere
	After    int   // let this many matching operations pass first
	Times    int   // act at most this often; 0: without a limit
	Chance   float64

	Delay time.Duration // wait before the operation
	// Hold, when not nil, makes the operation wait until it is closed: storage that
	// does not answer. What else the rule says happens then.
	Hold <-chan struct{}
	Err  error // fail with this, without doing anything
	Torn bool  // write only some of the blocks, then fail with ErrMedium
	Lost bool  // report success and write nothing
}

// Device is a faulty device. Rules may be changed while it is in use.
type Device struct {
	lower blockdev.Device
	pool  *blockdev.Pool

	mu    sync.Mutex // guards what follows
	rnd   *rand.Rand
	rules []rule
	hits  atomic.Int64
	held  atomic.Int64 // operations that wait for a Hold now
	sleep func(time.Duration)
}

type rule struct {
	Rule
	seen, done int
}

// New wraps lower, which it owns from then on. Staging memory comes from the
// default pool.
func New(lower blockdev.Device, seed uint64, rules ...Rule) *Device {
	return NewPool(lower, blockdev.DefaultPool(), seed, rules...)
}

// NewPool is New with a pool for staged writes.
func NewPool(lower blockdev.Device, pool *blockdev.Pool, seed uint64, rules ...Rule) *Device {
	d := &Device{lower: lower, pool: pool, rnd: rand.New(rand.NewPCG(seed, 0)), sleep: time.Sleep}
	d.SetRules(rules...)
	return d
}

// SetRules replaces all rules; their counts begin anew.
func (d *Device) SetRules(rules ...Rule) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules = make([]rule, len(rules))
	for i, r := range rules {
		d.rules[i].Rule = r
	}
}

// Hits counts the operations that failed, were torn or got lost.
func (d *Device) Hits() int64 { return d.hits.Load() }

// Held is how many operations wait for a Rule.Hold now.
func (d *Device) Held() int { return int(d.held.Load()) }

// verdict is what the rules say of one operation.
type verdict struct {
	delay time.Duration
	holds []<-chan struct{}
	err   error
	torn  bool
	lost  bool
	keep  func() bool // torn: whether to write the next block
}

// judge finds what the rules have in store for an operation on [off, off+n). Delays and
// holds add up until a rule says how the operation ends.
func (d *Device) judge(op Op, off, n int64) (v verdict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.rules {
		r := &d.rules[i]
		if r.Op&op == 0 || r.Len != 0 && (off >= r.Off+r.Len || r.Off >= off+n) {
			continue
		}
		r.seen++
		if r.seen <= r.After || r.Times != 0 && r.done >= r.Times || r.Chance != 0 && d.rnd.Float64() >= r.Chance {
			continue
		}
		r.done++
		v.delay += r.Delay
		if r.Hold != nil {
			v.holds = append(v.holds, r.Hold)
		}
		if r.Err != nil || r.Torn || r.Lost {
			v.err, v.torn, v.lost = r.Err, r.Torn, r.Lost
			if v.torn {
				torn := rand.New(rand.NewPCG(d.rnd.Uint64(), 1))
				v.keep = func() bool { return torn.IntN(2) == 0 }
			}
			d.hits.Add(1)
			return v
		}
	}
	return v
}

// slow reports whether a rule may delay this operation.
func (d *Device) slow(op Op, off, n int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.rules {
		r := &d.rules[i]
		if (r.Delay != 0 || r.stalls()) && r.Op&op != 0 && (r.Len == 0 || off < r.Off+r.Len && r.Off < off+n) {
			return true
		}
	}
	return false
}

// stalls reports whether the rule holds operations up now.
func (r *Rule) stalls() bool {
	if r.Hold == nil {
		return false
	}
	select {
	case <-r.Hold:
		return false
	default:
		return true
	}
}

// wait delays an operation as the rules want and returns how it fails.
func (d *Device) wait(v verdict) error {
	if v.delay > 0 {
		d.sleep(v.delay)
	}
	for _, h := range v.holds {
		d.held.Add(1)
		<-h
		d.held.Add(-1)
	}
	return v.err
}
