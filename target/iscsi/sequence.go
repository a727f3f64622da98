package iscsi

import (
	"math/bits"
	"slices"
	"time"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/target/scsi"
)

// sequence puts the numbered PDUs of a session into the order of their CmdSN (RFC 7143
// §4.2.2.1). Commands may overtake each other when they travel on several connections,
// and behind one that was lost:
//
//	ExpCmdSN = 5     connection 0: 6, 8      connection 1: 5, 7
//
//	6 arrives: held   5 arrives: delivered, and 6 behind it   8: held   7: delivered, 8
//
// One goroutine delivers at a time. What arrives meanwhile on another connection is
// held, and the delivering goroutine delivers it too: otherwise two receive goroutines
// could overtake each other between the window and the device server.
//
// session.mu guards every field but memory; the methods are called with it held.
type sequence struct {
	win        window
	held       []heldPDU           // by CmdSN modulo its length; made when first needed
	n          int                 // entries of held in use
	since      time.Duration       // when the first of them came, or one was last delivered; since Frontend.epoch
	skip       map[uint32]struct{} // CmdSNs that count as received (ABORT TASK of a command that never came)
	bursts     burstsDue           // what the order waits for
	delivering bool                // a goroutine has the right to deliver
	current    heldPDU             // under delivery
	waits      []*orderWait        // task management functions that wait for commands numbered before them
	memory     heldMemory
}

// orderWait is something that is due when ExpCmdSN has reached a number.
type orderWait struct {
	c     *conn // on which it was asked for
	cmdSN uint32
	run   func()
	late  *time.Timer
}

func (q *sequence) init(size int, cmdSN uint32, pool *blockdev.Pool) {
	q.win.init(size, cmdSN)
	q.memory.pool = pool
}

// at is the place of a number of the window.
func (q *sequence) at(sn uint32) *heldPDU { return &q.held[sn%uint32(len(q.held))] }

// turn reports whether the PDU p, which has just come, is next and need not wait for anything.
func (q *sequence) turn(p *iscsi.PDU) bool {
	sn := p.BHS.CmdSN()
	_, skipped := q.skip[sn]
	return sn == q.win.ExpCmdSN && !q.waitsForData(p) && !q.delivering && !skipped
}

// waitsForData reports whether p must not pass a task whose unsolicited data is on its way, and
// which the device server does not know of yet: nothing passes an ORDERED one, and an ORDERED
// one passes none (SAM-5 §8.6).
func (q *sequence) waitsForData(p *iscsi.PDU) bool {
	return q.bursts.stalling > 0 || q.bursts.all > 0 && p.BHS.Opcode() == iscsi.OpSCSICommand && taskAttr(p.BHS.SCSICommand().Attr()) == scsi.AttrOrdered
}

// begin counts the next PDU as received; the caller delivers it. If begin reports that more may
// follow, the caller alone has the right to deliver, and calls drain afterwards.
func (q *sequence) begin(many bool) (more bool) {
	q.advance()
	q.delivering = many || q.held != nil || q.skip != nil || q.waits != nil
	return q.delivering
}

// advance counts the next number as received. Its place in the window stays taken.
func (q *sequence) advance() {
	q.win.Advance()
	q.win.publish()
}

// hold keeps a copy of a PDU ahead of its turn, which came at the time now, and releases p. It
// returns false, and does neither, for a duplicate and for a number that counts as received.
func (q *sequence) hold(c *conn, p *iscsi.PDU, now time.Duration) bool {
	if q.held == nil {
		// A power of two divides 2^32, so that no two numbers of a window that wraps share a place.
		q.held = make([]heldPDU, 1<<bits.Len(uint(q.win.size-1)))
	}
	sn := p.BHS.CmdSN()
	at := q.at(sn)
	if _, skipped := q.skip[sn]; skipped || at.p != nil {
		return false
	}
	*at = heldPDU{c: c, p: q.memory.copyPDU(p, 0)}
	if q.n++; q.n == 1 {
		q.since = now
	}
	return true
}

// take takes a held PDU out.
func (q *sequence) take(at *heldPDU) (h heldPDU) {
	h, *at = *at, heldPDU{}
	q.n--
	return h
}

// next tells the delivering goroutine what to do: call w, or deliver h, which becomes current,
// or, if both are empty, stop. In the last case the right to deliver is given up.
func (q *sequence) next(now time.Duration) (w *orderWait, h heldPDU) {
	q.delivering = true
	for {
		sn := q.win.ExpCmdSN
		if w = q.due(sn); w != nil {
			return w, h
		}
		if _, ok := q.skip[sn]; ok {
			delete(q.skip, sn)
			q.advance()
			q.win.update() // a skipped command took no place in the window
			continue
		}
		if q.n == 0 || q.at(sn).p == nil || q.waitsForData(q.at(sn).p) {
			q.delivering = false
			return nil, h
		}
		q.current = q.take(q.at(sn))
		q.since = now
		q.advance()
		return nil, q.current
	}
}

// nextData returns the next Data-Out that was held with the command under delivery; nil ends
// that delivery.
func (q *sequence) nextData() (p *iscsi.PDU) {
	if len(q.current.data) == 0 {
		q.current = heldPDU{}
		return nil
	}
	p, q.current.data = q.current.data[0], q.current.data[1:]
	return p
}

// owner finds the held command, or the one under delivery, that unsolicited data of
// task itt on c belongs to.
func (q *sequence) owner(c *conn, itt uint32) *heldPDU {
	if q.current.carries(c, itt) {
		return &q.current
	}
	if q.n == 0 {
		return nil
	}
	for i := range q.held {
		if h := &q.held[i]; h.carries(c, itt) {
			return h
		}
	}
	return nil
}

// mayBe reports whether the command that is numbered sn, and has not been delivered,
// may be the one with the tag itt for the unit lun: it is, or it has not arrived yet.
func (q *sequence) mayBe(sn, itt uint32, lun uint64) bool {
	if q.held == nil {
		return true
	}
	p := q.at(sn).p
	return p == nil || p.BHS.CmdSN() == sn && p.BHS.ITT() == itt && sameLUN(p.BHS.LUN(), lun)
}

// skipOver makes a CmdSN within the window count as received.
func (q *sequence) skipOver(sn uint32) {
	if q.held != nil {
		if at := q.at(sn); at.p != nil {
			h := q.take(at)
			h.release()
		}
	}
	if q.skip == nil {
		q.skip = make(map[uint32]struct{})
	}
	q.skip[sn] = struct{}{}
}

// skipHeld makes the held PDUs before the number sn that match count as received, and returns how
// many there were.
func (q *sequence) skipHeld(sn uint32, match func(*iscsi.PDU) bool) (n int) {
	for i := range q.held {
		if p := q.held[i].p; p != nil && iscsi.SerialLess(p.BHS.CmdSN(), sn) && match(p) {
			q.skipOver(p.BHS.CmdSN())
			n++
		}
	}
	return n
}

// skipMissing makes what has not come before the number sn count as received.
func (q *sequence) skipMissing(sn uint32) {
	for n := q.win.ExpCmdSN; iscsi.SerialLess(n, sn); n++ {
		if q.held == nil || q.at(n).p == nil {
			q.skipOver(n)
		}
	}
}

// drop removes the held commands that came on c, or all if c is nil, and returns them.
func (q *sequence) drop(c *conn) (dropped []heldPDU) {
	for i := range q.held {
		if h := &q.held[i]; h.p != nil && (c == nil || h.c == c) {
			dropped = append(dropped, q.take(h))
		}
	}
	return dropped
}

// close ends the order with the session: nothing is delivered and nothing waits any more.
// It returns what was held.
func (q *sequence) close() []heldPDU {
	for _, w := range q.waits {
		w.late.Stop()
	}
	q.waits = nil
	return q.drop(nil)
}

// due removes and returns a wait for the number exp or an earlier one; nil if there is none.
func (q *sequence) due(exp uint32) *orderWait {
	for i, w := range q.waits {
		if iscsi.SerialLessEq(w.cmdSN, exp) {
			q.waits = slices.Delete(q.waits, i, i+1)
			w.late.Stop()
			return w
		}
	}
	return nil
}

// forget removes a wait that has timed out; false if it has ended already.
func (q *sequence) forget(w *orderWait) bool {
	i := slices.Index(q.waits, w)
	if i >= 0 {
		q.waits = slices.Delete(q.waits, i, i+1)
	}
	return i >= 0
}

// dismiss removes the waits of c, or all if c is nil, and returns how many there were.
func (q *sequence) dismiss(c *conn) (n int) {
	q.waits = slices.DeleteFunc(q.waits, func(w *orderWait) bool {
		if c != nil && w.c != c {
			return false
		}
		w.late.Stop()
		n++
		return true
	})
	return n
}

// holdData keeps a copy of a Data-Out whose command is held or is being delivered, and releases
// p; false if there is no such command. Without memory for the Data-Out, a held command gives
// up its own data too, and is marked NoRoom.
func (q *sequence) holdData(c *conn, p *iscsi.PDU) bool {
	h := q.owner(c, p.BHS.ITT())
	if h == nil {
		return false
	}
	d := q.memory.copyPDU(p, heldCost)
	if !d.NoRoom || h == &q.current {
		h.data = append(h.data, d)
		return true
	}
	h.release()
	h.p, h.data = &iscsi.PDU{BHS: h.p.BHS, Ref: h.p.Ref, NoRoom: true}, nil
	return true
}
