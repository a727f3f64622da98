package iwarp

import (
	"encoding/binary"
	"time"

	"softiser/rdma/internal/wire"
)

// emptyWrite is a set of zero-length RDMA Writes that the transmitter owes. Every
// receiver ignores them, whatever STag and offset they name (RFC 5040 §5.1), which
// makes them good for three purposes.
type emptyWrite uint8

const (
	emptyRTR      emptyWrite = 1 << iota // ready-to-receive message (RFC 6581 §9)
	emptyNudge                           // wakes a peer up, see armNudgeLocked
	emptyAnnounce                        // see ext.go
)

// emptyWrites builds what is due.
func (t *transmitter) emptyWrites(due emptyWrite) {
	if due&(emptyRTR|emptyNudge) != 0 {
		t.emptyWrite(1, 0)
	}
	if due&emptyAnnounce != 0 {
		t.emptyWrite(announceSTag, announceTO)
	}
}

func (t *transmitter) emptyWrite(stag uint32, to uint64) {
	start := len(t.round.hdr)
	t.round.hdr = binary.BigEndian.AppendUint16(t.round.hdr, wire.TaggedLen)
	h := wire.Tagged{Ctrl: wire.Ctrl(wire.Write, true), STag: stag, TO: to}
	t.round.hdr = h.Append(t.round.hdr)
	t.payload(start, 0, nil)
	t.stats.FPDUs++
}

// Linux siw, as responder, sends its Reply before it installs the receive upcall
// of the socket. An FPDU that arrives in between stays unnoticed until the next
// segment arrives, perhaps for ever. A user-space initiator is fast enough to meet
// that gap, so when nothing comes back for a while after its first FPDU, it sends
// an empty Write, which makes siw look. Peers that answer never see one.
const (
	nudgeAfter = 30 * time.Millisecond
	nudgeMax   = 6 // tries, each after twice the time of the one before
)

// armNudgeLocked is called when the initiator has sent its first bytes.
func (s *opening) armNudgeLocked() {
	qp := s.qp
	if s.nudger != nil || s.heard {
		return
	}
	tries := 0
	wait := nudgeAfter
	s.nudger = time.AfterFunc(wait, func() {
		qp.Mu.Lock()
		if s.heard || !s.openLocked() {
			qp.Mu.Unlock()
			return
		}
		qp.tx.empty |= emptyNudge
		if tries++; tries < nudgeMax {
			wait *= 2
			s.nudger.Reset(wait)
		}
		qp.Mu.Unlock()
		qp.tx.push()
	})
}

// heardLocked is called when the first FPDU has arrived, and at the end.
func (s *opening) heardLocked() {
	s.heard = true
	if s.nudger != nil {
		s.nudger.Stop()
	}
	if s.speaker != nil {
		s.speaker.Stop()
	}
}
