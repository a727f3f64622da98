package initiator

import (
	"fmt"
	"sync"
	"sync/atomic"

	"softiser/internal/iscsi"
	"softiser/internal/scsi"
)

// A target with a volatile cache acknowledges writes that it may still lose,
// until a flush has succeeded. When it comes back from a power failure, the next
// flush finds nothing to do and would say GOOD. So that nobody takes that for
// "durable", the LUN keeps account of what no flush has covered, and fails the
// next flush when the target says that its cache is gone:
//
//	cache epoch changed (softiser, bytes 36 to 55 of INQUIRY)   lost
//	cache epoch the same, whatever else it reports              kept
//	no epoch, unit attention 29/01, power on occurred           lost
//	no epoch, other unit attentions 29/xx                       kept: targets report them for every new login
//	deferred error, of an earlier command                       lost
//
// A write that must be durable by itself and is followed by SYNCHRONIZE CACHE for
// want of FUA is not at the mercy of this: it is at hand, and after anything that
// may have been a reset it is written again (settle).

// cache is the account of a LUN.
type cache struct {
	written atomic.Uint64 // commands acknowledged that wrote into a volatile cache
	told    atomic.Uint32 // of losses: a flush of somebody has failed because of them

	mu     sync.Mutex // guards the rest; a leaf, taken under Session.mu
	safe   uint64     // of written: durable, or given up as lost
	losses uint32     // times that the cache was lost with something in it
	epoch  [16]byte   // of the target's cache, as it was last told; zero: it does not tell
}

// cached reports whether an acknowledged command of r waits for a flush.
func (r *Request) cached() bool {
	g, op := r.geo, r.Op.row()
	return op.caches && g.info.WriteCache && r.flush != flushNow && (!r.FUA || op.bare(g))
}

// settle gives a request whose commands have all succeeded its next phase;
// false: it has ended, with r.cancel as its error. The caller holds s.mu.
func (s *Session) settle(r *Request) bool {
	if r.flush == flushNone {
		if r.Op == OpFlush {
			r.cancel = r.lun.cache.flushed(r)
		}
		return false
	}
	switch {
	case r.resets != s.resets && (r.Op == OpCompareAndWrite || r.redone == maxAgain):
		r.cancel = fmt.Errorf("%w (the target was reset between the write and its flush)", ErrCacheLost)
		return false
	case r.resets != s.resets:
		// What was acknowledged before the reset may be gone.
		r.redone++
		r.resets, r.flush, r.issued = s.resets, flushAfter, 0
	case r.flush == flushAfter:
		r.flush, r.covers = flushNow, r.lun.cache.written.Load()
	default:
		r.lun.cache.cover(r.covers)
		return false
	}
	if r.setState(s, reqQueued) {
		s.wait.queue.push(r)
	}
	return true
}

// Flusher is one of several users of a LUN who do not know of each other, such as the
// clients of an NBD server. A loss of the target's cache fails one flush of each of
// them, because what one of them was told no other one knows. Requests name it; those
// that do not are all of one user.
type Flusher struct{ told atomic.Uint32 } // of the LUN's losses

// NewFlusher returns a user who begins now. What somebody has been told of before
// does not concern it.
func (l *LUN) NewFlusher() *Flusher {
	f := new(Flusher)
	f.told.Store(l.cache.told.Load())
	return f
}

// teller is where it is kept what the user who flushes by r knows.
func (c *cache) teller(r *Request) *atomic.Uint32 {
	if r.Flusher != nil {
		return &r.Flusher.told
	}
	return &c.told
}

// flushed takes a flush that has succeeded: it says whether that is true. Flushes
// that were under way together all fail, for each has its own caller.
func (c *cache) flushed(r *Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.told != c.losses {
		c.teller(r).Store(c.losses)
		c.told.Store(c.losses)
		return ErrCacheLost
	}
	if r.Len <= 0 { // the whole medium
		c.safe = max(c.safe, r.covers)
	}
	return nil
}

// cover enters what a successful SYNCHRONIZE CACHE has made durable.
func (c *cache) cover(n uint64) {
	c.mu.Lock()
	c.safe = max(c.safe, n)
	c.mu.Unlock()
}

// drop enters that the cache is lost, and reports whether anything was in it.
// Preconditions: c.mu is held.
func (c *cache) drop() bool {
	n := c.written.Load()
	if n == c.safe {
		return false
	}
	c.safe = n
	c.losses++
	return true
}

// poweredOn takes a report of a power on from a target without epochs.
func (c *cache) poweredOn() (lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch == [16]byte{} && c.drop()
}

// failed takes a report that something acknowledged was not kept.
func (c *cache) failed() (lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drop()
}

// look compares the epoch that the target tells now with that of the last look.
func (c *cache) look(epoch [16]byte) (lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.epoch
	c.epoch = epoch
	return old != epoch && old != [16]byte{} && c.drop()
}

// reset takes a unit attention 29/xx of LUN lun. The caller holds s.mu.
func (s *Session) reset(lun uint64, asc scsi.ASC) {
	s.resets++
	if asc != scsi.ASCPowerOn {
		return
	}
	for _, u := range s.units.list {
		if l := u.lun; l.wire == lun && l.cache.poweredOn() {
			s.cacheLost(l, "the target came back without its cache")
		}
	}
}

// cacheLost reports it. The caller holds s.mu.
func (s *Session) cacheLost(l *LUN, why string) {
	s.event(Event{Kind: EventCacheLost, Detail: fmt.Sprintf("LUN %s: %s; the next flush fails", iscsi.FormatLUN(l.wire), why)})
}
