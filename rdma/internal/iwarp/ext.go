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

// extRx reports whether the peer may use the extension towards us.
func (qp *QP) extRx() bool {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	return qp.ext == extOn
}

// startExtLocked begins to find out, when the connection starts.
func (qp *QP) startExtLocked() {
	switch {
	case !qp.initiator:
		qp.ext = extPending
		qp.rx.extWait = true
	case len(qp.orq) > 0:
		qp.ext = extPending
		qp.empty |= emptyAnnounce
		qp.SQ.Hide(verbs.OpRead)
	}
}

// extHeard is called in the receive goroutine for the announcement, and at a
// responder that waits for one also for other FPDUs.
func (qp *QP) extHeard() {
	x := &qp.rx
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	switch {
	case qp.ext != extPending:
	case x.announce:
		qp.ext = extOn
		if !qp.initiator {
			qp.empty |= emptyAnnounce
		}
		x.kick = true
	case qp.rtr == 0 || x.stats.FPDUs > 1:
		// It comes first, or right behind the ready-to-receive message.
		qp.ext = extOff
		x.kick = true
	default:
		return
	}
	x.extWait = false
}

// sweepLocked completes what has ended at the head of the send queue. When a hidden
// request was the last of them, what it was sent for may be known now.
func (qp *QP) sweepLocked() {
	// The barrier is the last hidden request, behind a possible Read as
	// ready-to-receive message.
	if op := qp.SweepLocked(qp.ackedLocked()); op == verbs.OpRead && qp.SQ.Hidden == 0 && qp.ext == extPending && qp.initiator {
		qp.ext = extOff
	}
}

// Extensions reports whether the operations of RFC 7306 can be used.
func (qp *QP) Extensions() bool { return qp.extRx() }

// extension: an opcode of RFC 7306, which not every peer knows.
func extension(o verbs.Opcode) bool {
	return o == verbs.OpWriteImm || o == verbs.OpImm || o == verbs.OpFetchAdd || o == verbs.OpCmpSwap
}
