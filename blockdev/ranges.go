package blockdev

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Ranges records which byte ranges of a device are lent out directly, so that
// memory which one command reads or fills by reference is not changed by
// another one (a CRC over it would break, and with it a connection).
//
//	                 open: read      write      shared      exclusive
//	TryRead             lent         refused    lent        refused
//	TryWrite            refused      refused    refused     refused
//	Shared              beside it    beside it  beside it   waits for those before it
//	Exclusive           waits        waits      waits for those before it
//
// Instead of a refused lease, pool memory is lent (the transfer is staged). Copies into
// the device (staged commits, WriteAt, discards) claim their range with Exclusive: from
// then on no new lease of it is direct, and the copy waits for the older leases, but
// never longer than its patience, because leases are held by peers. Copies out of the
// device (staged reads, ReadAt) claim it with Shared, so that no reader sees a block
// that is partly overwritten. Copies depend on storage alone, not on a peer, and wait
// for each other without a bound.
//
// The table is sharded by address, so that connections that work on different
// parts do not meet, and nothing is allocated once the shards have grown. The
// zero value is ready.
type Ranges struct {
	shards [numShards]shard
	ticket atomic.Uint64

	// waiting is how many goroutines are inside Exclusive; Remove looks at it
	// first so that the usual release costs no second lock.
	waiting atomic.Int32
	// wakeMu guards wake. It is taken with no shard locked.
	wakeMu sync.Mutex
	wake   chan struct{} // closed by the next Remove; nil when nobody waits
}

const (
	granuleShift = 20 // one shard holds every 64th MiB
	numShards    = 64 // the bits of a mask
)

type shard struct {
	mu    sync.Mutex // guards spans; several shards are locked in ascending order
	spans []span
	_     [32]byte // keeps neighbours off one cache line
}

// span is one lent range. A range that touches several shards is in each.
type span struct {
	off, end int64
	tag      uint64 // tagRead, tagWrite, or the ticket of a copy
}

// Tickets are drawn in ascending order, those of Shared with the lowest bit set.
const (
	tagRead uint64 = iota
	tagWrite
	tagTickets // tickets are counted from here

	tagShared = 1
)

// isCopy and isShared tell what kind of range it is.
func (s *span) isCopy() bool   { return s.tag >= tagTickets }
func (s *span) isShared() bool { return s.isCopy() && s.tag&tagShared != 0 }

// TryRead lends [off, off+n) for reading; n > 0.
func (r *Ranges) TryRead(off, n int64) bool { return r.try(span{off, off + n, tagRead}) }

// TryWrite lends [off, off+n) to be filled; n > 0.
func (r *Ranges) TryWrite(off, n int64) bool { return r.try(span{off, off + n, tagWrite}) }

// EndRead and EndWrite take back what TryRead and TryWrite lent.
func (r *Ranges) EndRead(off, n int64) { r.remove(span{off, off + n, tagRead}) }

// EndWrite: see EndRead.
func (r *Ranges) EndWrite(off, n int64) { r.remove(span{off, off + n, tagWrite}) }

// Exclusive claims [off, off+n), in bytes, and waits until every older overlapping range
// has been given back: for copies without a bound, for leases at most for patience. The
// claim holds in either case; quiet reports whether every lease was given back. The
// caller ends it with EndExclusive.
func (r *Ranges) Exclusive(off, n int64, patience time.Duration) (ticket uint64, quiet bool) {
	s := span{off: off, end: off + n}
	mask, busy := r.claim(&s, 0)
	if busy == rangeFree {
		return s.tag, true
	}
	return s.tag, r.await(mask, s, patience)
}

// EndExclusive gives back the claim that Exclusive returned.
func (r *Ranges) EndExclusive(off, n int64, ticket uint64) {
	r.remove(span{off, off + n, ticket})
}

// Shared claims [off, off+n) for a copy out of the device and waits until every
// older overlapping Exclusive has ended; later ones wait for it. Leases are left
// alone, but for writing nothing in the range is lent directly any more. End it
// with EndShared.
func (r *Ranges) Shared(off, n int64) (ticket uint64) {
	s := span{off: off, end: off + n}
	if mask, busy := r.claim(&s, tagShared); busy != rangeFree {
		r.await(mask, s, 0)
	}
	return s.tag
}

// TryShared is Shared that does not wait, and reports whether it has claimed the range.
func (r *Ranges) TryShared(off, n int64) (ticket uint64, ok bool) {
	s := span{off: off, end: off + n}
	if _, busy := r.claim(&s, tagShared); busy != rangeFree {
		r.remove(s)
		return 0, false
	}
	return s.tag, true
}

// EndShared gives back the claim that Shared returned.
func (r *Ranges) EndShared(off, n int64, ticket uint64) {
	r.remove(span{off, off + n, ticket})
}

// claim draws a ticket for s and enters it. busy tells what s has to wait for.
func (r *Ranges) claim(s *span, kind uint64) (mask uint64, busy rangeUse) {
	mask = maskOf(*s)
	r.lock(mask)
	// The ticket is drawn under the locks, so that two overlapping claims
	// agree on who came first.
	s.tag = tagTickets + r.ticket.Add(1)<<1 | kind
	r.insertLocked(mask, *s)
	busy = r.useLocked(mask, s)
	r.unlock(mask)
	return mask, busy
}

// Open counts the ranges that are out.
func (r *Ranges) Open() int { return r.count(0) }

// OpenBeyond counts the ranges that are out and reach beyond end.
func (r *Ranges) OpenBeyond(end int64) int { return r.count(end) }

func (r *Ranges) count(beyond int64) int {
	n := 0
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		for _, s := range sh.spans {
			// Count a range in the shard of its first byte only.
			if s.end > beyond && int(s.off>>granuleShift)&(numShards-1) == i {
				n++
			}
		}
		sh.mu.Unlock()
	}
	return n
}

func (r *Ranges) try(s span) bool {
	if s.off>>granuleShift == (s.end-1)>>granuleShift {
		sh := &r.shards[(s.off>>granuleShift)&(numShards-1)]
		sh.mu.Lock()
		ok := !sh.conflicts(s)
		if ok {
			sh.spans = append(sh.spans, s)
		}
		sh.mu.Unlock()
		return ok
	}
	mask := maskOf(s)
	r.lock(mask)
	defer r.unlock(mask)
	for m := mask; m != 0; m &= m - 1 {
		if r.shards[bits.TrailingZeros64(m)].conflicts(s) {
			return false
		}
	}
	r.insertLocked(mask, s)
	return true
}

// conflicts reports whether a lease of s must not be direct. sh.mu is held.
func (sh *shard) conflicts(s span) bool {
	for i := range sh.spans {
		o := &sh.spans[i]
		beside := s.tag == tagRead && (o.tag == tagRead || o.isShared())
		if s.off < o.end && o.off < s.end && !beside {
			return true
		}
	}
	return false
}

func (r *Ranges) insertLocked(mask uint64, s span) {
	for m := mask; m != 0; m &= m - 1 {
		sh := &r.shards[bits.TrailingZeros64(m)]
		sh.spans = append(sh.spans, s)
	}
}

// rangeUse is what a copy has to wait for.
type rangeUse uint8

const (
	rangeFree   rangeUse = iota
	rangeLent            // leases only
	rangeCopied          // another copy
)

// useLocked is what older than the claim s overlaps it and concerns it. Leases
// count as older: once a claim is in the table, none can come after it that does.
func (r *Ranges) useLocked(mask uint64, s *span) rangeUse {
	use := rangeFree
	for m := mask; m != 0; m &= m - 1 {
		spans := r.shards[bits.TrailingZeros64(m)].spans
		for i := range spans {
			o := &spans[i]
			switch {
			case s.off >= o.end || o.off >= s.end || o.tag >= s.tag:
			case s.isShared() && (!o.isCopy() || o.isShared()):
			case o.isCopy():
				return rangeCopied
			default:
				use = rangeLent
			}
		}
	}
	return use
}

// await waits until what s has to wait for is over, and reports whether it is: for
// leases only until patience has run out.
func (r *Ranges) await(mask uint64, s span, patience time.Duration) (quiet bool) {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	over := timer.C
	for {
		// Take the channel before checking the range: a release between the check
		// and the wait then closes this channel.
		r.wakeMu.Lock()
		if r.wake == nil {
			r.wake = make(chan struct{})
		}
		wake := r.wake
		r.wakeMu.Unlock()

		r.lock(mask)
		use := r.useLocked(mask, &s)
		r.unlock(mask)
		if use == rangeFree || use == rangeLent && over == nil {
			return use == rangeFree
		}
		select {
		case <-wake:
		case <-over:
			over = nil
		}
	}
}

// remove takes one span equal to s out of the table. Equal leases are
// interchangeable, so a lease need not remember which entry is its own.
func (r *Ranges) remove(s span) {
	if s.off>>granuleShift == (s.end-1)>>granuleShift {
		sh := &r.shards[(s.off>>granuleShift)&(numShards-1)]
		sh.mu.Lock()
		sh.drop(s)
		sh.mu.Unlock()
	} else {
		mask := maskOf(s)
		r.lock(mask)
		for m := mask; m != 0; m &= m - 1 {
			r.shards[bits.TrailingZeros64(m)].drop(s)
		}
		r.unlock(mask)
	}
	if r.waiting.Load() == 0 {
		return
	}
	r.wakeMu.Lock()
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
	r.wakeMu.Unlock()
}

func (sh *shard) drop(s span) {
	for i := range sh.spans {
		if sh.spans[i] == s {
			last := len(sh.spans) - 1
			sh.spans[i] = sh.spans[last]
			sh.spans = sh.spans[:last]
			return
		}
	}
	panic("blockdev: a range was given back that is not lent")
}

// maskOf returns the shards that s touches, one bit each.
func maskOf(s span) uint64 {
	first, last := uint64(s.off)>>granuleShift, uint64(s.end-1)>>granuleShift
	if last-first >= numShards-1 {
		return ^uint64(0)
	}
	return bits.RotateLeft64(1<<(last-first+1)-1, int(first&(numShards-1)))
}

func (r *Ranges) lock(mask uint64) {
	for ; mask != 0; mask &= mask - 1 {
		r.shards[bits.TrailingZeros64(mask)].mu.Lock()
	}
}

func (r *Ranges) unlock(mask uint64) {
	for ; mask != 0; mask &= mask - 1 {
		r.shards[bits.TrailingZeros64(mask)].mu.Unlock()
	}
}
