package initiator

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// A target with a volatile cache acknowledges writes that it may still lose,
// until a flush has succeeded. When it comes back from a power failure, the next
// flush finds nothing to do and would say GOOD. So that nobody takes that for
// "durable", the LUN keeps account (blockio.Cache) of what no flush has covered, and fails
// the next flush when the target says that its cache is gone:
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

// cached reports whether an acknowledged command of r waits for a flush.
func (r *request) cached() bool {
	g, op := r.geo, rowOf(r.Op)
	return op.caches && g.info.WriteCache && r.flush != flushNow && (!r.FUA || op.bare(g))
}

// caches is what a session knows of the target's caches: their LUNs' accounts are
// blockio.Cache. The session's mutex guards it.
type caches struct {
	s      *Session
	resets uint32 // connections lost, and resets that the target reported
}

// settle gives a request whose commands have all succeeded its next phase;
// false: it has ended, with r.cancel as its error. The caller holds s.mu.
func (cs *caches) settle(r *request) bool {
	if r.flush == flushNone {
		if r.Op == OpFlush {
			r.cancel = r.sync.End(r.Len <= 0)
		}
		return false
	}
	switch {
	case r.resets != cs.resets && (r.Op == OpCompareAndWrite || r.redone == maxAgain):
		r.cancel = fmt.Errorf("%w (the target was reset between the write and its flush)", ErrCacheLost)
		return false
	case r.resets != cs.resets:
		// What was acknowledged before the reset may be gone.
		r.redone++
		r.resets, r.flush, r.issued = cs.resets, flushAfter, 0
	case r.flush == flushAfter:
		r.flush, r.sync = flushNow, r.lun.epoch.Load().Begin(nil)
	default:
		r.sync.Cover()
		return false
	}
	if r.setState(cs.s, reqQueued) {
		cs.s.wait.queue.push(r)
	}
	return true
}

// reset takes a unit attention 29/xx of LUN lun. The caller holds s.mu.
func (cs *caches) reset(lun uint64, asc spc.ASC) {
	cs.resets++
	if asc != spc.ASCPowerOn {
		return
	}
	for _, u := range cs.s.units.list {
		if l := u.lun; l.wire == lun && l.poweredOn() {
			cs.lost(l, "the target came back without its cache")
		}
	}
}

// lost reports that a cache is. The caller holds s.mu.
func (cs *caches) lost(l *LUN, why string) {
	cs.s.event(Event{Kind: EventCacheLost, Detail: fmt.Sprintf("LUN %s: %s; the next flush fails", iscsi.FormatLUN(l.wire), why)})
}

// poweredOn takes a report of a power on, which tells something where the target has no
// epochs.
func (l *LUN) poweredOn() (lost bool) {
	e := l.epoch.Load()
	return !e.Tells() && e.Lost()
}

// tells takes the epoch that a look at the LUN has found.
func (l *LUN) tells(epoch [16]byte) (lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, lost := l.epoch.Load().Look(epoch)
	l.epoch.Store(e)
	return lost
}

// NewFlusher returns a user of the LUN who begins now. What somebody has been told of
// before does not concern it.
func (l *LUN) NewFlusher() *Flusher { return l.cache.NewFlusher() }
