package iwarp

import (
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// RFC 7306 adds atomics and immediate data to RDMAP, but no way to find out
// whether the peer knows them, and a peer that does not ends the connection. An
// end that may use them (Params.Extensions) therefore announces itself by an
// empty RDMA Write to a certain STag and offset, which others ignore:
//
//	initiator                             responder
//	   | -- announcement ------------------> |  on, when allowed there too
//	   | -- empty Read Request ------------> |
//	   | <-- announcement ------------------ |  only of our own kind
//	   | <-- empty Read Response ----------- |  every peer
//
// When the Response has come, the initiator knows, without any timer: on if the
// announcement came before it, else off. Requests of the extension wait until
// then, or complete with verbs.StatusUnsupported. See docs/adr/0012.
const (
	announceSTag = 0x00007306
	announceTO   = 0x736f667469736572 // "softiser"
)

// extState says whether the operations of RFC 7306 may be used.
type extState uint8

const (
	extOff     extState = iota // not allowed, or the peer does not know them
	extPending                 // being found out
	extOn
)

func isAnnouncement(h *wire.Tagged) bool {
	return h.STag == announceSTag && h.TO == announceTO
}

// extended reports whether the peer may use the extension towards us.
func (s *opening) extended() bool {
	qp := s.qp
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	return s.ext == extOn
}

// extLocked begins to find out, when the connection starts.
func (s *opening) extLocked() {
	qp := s.qp
	switch {
	case !s.initiator:
		s.ext = extPending
		qp.rx.extWait = true
	case len(qp.reads.orq) > 0:
		s.ext = extPending
		qp.tx.empty |= emptyAnnounce
		qp.SQ.Hide(verbs.OpRead)
	}
}

// extHeard is called in the receive goroutine for the announcement, and at a
// responder that waits for one also for other FPDUs.
func (s *opening) extHeard() {
	qp := s.qp
	x := &qp.rx
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	switch {
	case s.ext != extPending:
	case x.announce:
		s.ext = extOn
		if !s.initiator && !qp.tx.finSent {
			qp.tx.empty |= emptyAnnounce
		}
		x.wakeTx = true
	case s.rtr == 0 || x.stats.FPDUs > 1:
		// The peer's empty Write must be its first message, or the one after the ready-to-receive message; this was another.
		s.ext = extOff
		x.wakeTx = true
	default:
		return
	}
	x.extWait = false
}

// sweepLocked completes what has ended at the head of the send queue. When a hidden
// request was the last of them, what it was sent for may be known now.
func (qp *QP) sweepLocked() {
	// An initiator sends a hidden Read last, behind the announcement and a possible Read as
	// ready-to-receive message. When it is answered and no announcement has come, none will.
	if op := qp.SweepLocked(qp.zc.ackedLocked()); op == verbs.OpRead && qp.SQ.Hidden == 0 && qp.start.ext == extPending && qp.start.initiator {
		qp.start.ext = extOff
	}
	qp.SQ.Rest() // a message in progress, or built and not entered, is one of the queue
}

// Extensions reports whether the operations of RFC 7306 can be used.
func (qp *QP) Extensions() bool { return qp.start.extended() }

// extension: an opcode of RFC 7306, which not every peer knows.
func extension(o verbs.Opcode) bool {
	return o == verbs.OpWriteImm || o == verbs.OpImm || o == verbs.OpFetchAdd || o == verbs.OpCmpSwap
}
