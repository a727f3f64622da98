package iwarp

import (
	"time"

	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/verbs"
)

// opening is what happens once, when a connection begins: who may speak first, what
// else is spoken, and how a peer that has missed the beginning is woken up. It is
// guarded by QP.Mu, but for initiator and rtr, which do not change.
type opening struct {
	qp        *QP
	initiator bool        // of the MPA start-up
	rtr       mpa.RTR     // kind agreed on, 0: none
	ext       extState    // use of RFC 7306
	heard     bool        // an FPDU has arrived
	nudger    *time.Timer // see armNudgeLocked
	speaker   *time.Timer // of a responder that may speak first
}

// beginLocked queues what is sent before everything else, and settles who may speak first.
func (s *opening) beginLocked(p *Params) {
	qp := s.qp
	qp.tx.allowed = s.initiator
	if s.rtr != 0 || p.Extensions {
		qp.SQ.Size(qp.MaxSend + hiddenMax) // nothing can be queued yet
	}
	if s.initiator {
		s.rtrLocked()
	} else if p.SpeakFirst > 0 {
		s.speaker = time.AfterFunc(p.SpeakFirst, s.speakFirst)
	}
	if p.Extensions {
		s.extLocked()
	}
}

// rtrLocked queues the ready-to-receive message in front of everything else.
func (s *opening) rtrLocked() {
	qp := s.qp
	switch s.rtr {
	case mpa.RTRWrite:
		qp.tx.empty |= emptyRTR
	case mpa.RTRRead:
		qp.SQ.Hide(verbs.OpRead)
	case mpa.RTRSend:
		qp.SQ.Hide(verbs.OpSend)
	}
}

// speakFirst opens the transmitter of a responder that has heard nothing yet.
func (s *opening) speakFirst() {
	qp := s.qp
	qp.Mu.Lock()
	if s.openLocked() {
		qp.tx.allowed = true
	}
	qp.Mu.Unlock()
	qp.tx.push()
}

// openLocked reports whether something may still be sent: the connection is not about to fail, and
// if it is being closed what is queued has not all been sent.
func (s *opening) openLocked() bool {
	st := s.qp.StateLocked()
	return (st == verbs.StateRTS || st == verbs.StateClosing) && !s.qp.Dying.Load() && !s.qp.tx.finSent
}

// hiddenMax is how many entries of its own the engine puts on a send queue: a
// ready-to-receive message, and the Read of ext.go.
const hiddenMax = 2
