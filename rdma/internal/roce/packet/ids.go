package packet

import "time"

// IDs judges the identifications that Flow.Check has found for one peer. A damaged
// packet has one by chance, any of 65536 alike; a peer's are of one of two kinds:
//
//   - small: 0, or the places of packets in one UDP_SEGMENT call. Plain sockets send
//     them. Once one has come again seven bits are left open, and a damaged packet
//     passes one time in 2^25.
//   - growing: Linux's generator for one destination, which takes a step for each
//     packet to it, and up to one for each tick of its clock in between. A window of
//     2048 is left open while packets come, eleven bits, so one time in 2^21.
//
// The first packet settles the kind. A peer may change it (its machine was started anew,
// another sends from the same address): two packets in a row that agree with each other
// are believed, and the first of them was lost then, as on the way. The zero value
// knows nothing yet. Over IPv6 there is nothing to judge.
type IDs struct {
	known   bool
	current idSeries
	doubt   bool     // the last packet did not fit current
	another idSeries // that it would begin, if it was not damaged

	// Strange counts packets that were refused.
	Strange uint64
}

// idSeries is where a peer's identifications stand.
type idSeries struct {
	small   bool // all have been below maxSegments
	settled bool // small, and one was not above the one before it: a growing series takes 65536 packets for that
	last    uint16
	at      time.Duration
}

const (
	maxSegments   = 128  // of one UDP_SEGMENT call
	idWindow      = 1024 // steps that may lie between two packets of one peer
	idReordered   = 1024 // steps back that are allowed: rxe has 64 packets of each connection in queues of a device, which overtake each other
	idTicksPerSec = 1000 // the fastest clock that Linux is built with
)

// Accept says whether a peer would send id at the time now (of any clock that only
// goes forward), and notes it.
func (s *IDs) Accept(id uint16, now time.Duration) bool {
	switch {
	case !s.known:
		s.known, s.current = true, newSeries(id, now)
	case s.current.fits(id, now):
		s.current.note(id, now)
	case s.doubt && s.another.fits(id, now):
		s.current = s.another
		s.current.note(id, now)
	default:
		s.doubt, s.another = true, newSeries(id, now)
		s.Strange++
		return false
	}
	s.doubt = false
	return true
}

func newSeries(id uint16, now time.Duration) idSeries {
	return idSeries{small: id < maxSegments, last: id, at: now}
}

// fits says whether id may follow. A growing series that has come round looks small
// until it goes on.
func (s *idSeries) fits(id uint16, now time.Duration) bool {
	if s.small && id < maxSegments {
		return true
	}
	if s.settled {
		return false
	}
	ahead := idWindow + (now-s.at)*idTicksPerSec/time.Second
	if ahead >= 1<<16-idReordered {
		return true // it has been silent for so long that any value may be next
	}
	return id-s.last+idReordered < uint16(ahead)+idReordered
}

func (s *idSeries) note(id uint16, now time.Duration) {
	s.small = s.small && id < maxSegments
	s.settled = s.small && (s.settled || id <= s.last)
	if s.small || id-s.last < 1<<15 {
		s.last = id
	}
	s.at = now
}
