package iscsi

import (
	"sync/atomic"

	"softiser/internal/iscsi"
)

// heldMost bounds what one session holds behind a gap in its command numbers,
// bytes; what all hold together takes from Config.Staging.
const heldMost = 4 << 20

// heldCost is what a held Data-Out without data counts for.
const heldCost = 256

// heldPDU is a command ahead of its turn, the connection that it came on, and the
// data that has followed it without being asked for. All are copies: a gap may last,
// and the receive buffers belong to everybody.
type heldPDU struct {
	c    *conn
	p    *iscsi.PDU
	data []*iscsi.PDU // Data-Outs, in the order in which they came
}

// release gives up everything of h, which has not been delivered.
func (h *heldPDU) release() {
	h.p.Release()
	for _, p := range h.data {
		p.Release()
	}
}

// carries reports whether the unsolicited Data-Outs of task itt on c belong to h.
func (h *heldPDU) carries(c *conn, itt uint32) bool {
	return h.p != nil && h.c == c && h.p.BHS.ITT() == itt && h.p.BHS.Opcode() == iscsi.OpSCSICommand && !h.p.BHS.Final()
}

// heldMemory is what a session holds ahead of its turn.
type heldMemory struct{ bytes atomic.Int64 }

// reserve makes room for n bytes, of the session's own and of what all have.
func (m *heldMemory) reserve(s *session, n int) bool {
	if m.bytes.Add(int64(n)) <= heldMost && s.srv.cfg.Staging.Reserve(n) {
		return true
	}
	m.bytes.Add(int64(-n))
	return false
}

func (m *heldMemory) unreserve(s *session, n int) {
	m.bytes.Add(int64(-n))
	s.srv.cfg.Staging.Unreserve(n)
}

// copyPDU takes p out of its receive buffer, which it gives back. Without memory for
// its data it has none, and says so. cost is what it counts for besides.
func (s *session) copyPDU(p *iscsi.PDU, cost int) *iscsi.PDU {
	q := &iscsi.PDU{BHS: p.BHS, Ref: p.Ref, NoRoom: p.NoRoom}
	n := len(p.AHS) + len(p.Data) + cost
	switch {
	case n == 0 || q.NoRoom:
	case !s.heldMem.reserve(s, n):
		q.NoRoom = true
	default:
		b := append(append(make([]byte, 0, n-cost), p.AHS...), p.Data...)
		q.AHS, q.Data = b[:len(p.AHS):len(p.AHS)], b[len(p.AHS):]
		q.Recycle = func(*iscsi.PDU) { s.heldMem.unreserve(s, n) }
	}
	p.Release()
	return q
}

// holdData keeps a Data-Out whose command is ahead of its turn, or is being
// delivered at this moment; false when p is none. When there is no memory for it, the
// command will have none either. The caller holds s.mu.
func (s *session) holdData(c *conn, p *iscsi.PDU) bool {
	h := s.order.owner(c, p.BHS.ITT())
	if h == nil {
		return false
	}
	q := s.copyPDU(p, heldCost)
	if !q.NoRoom || h == &s.order.current {
		h.data = append(h.data, q)
		return true
	}
	h.release()
	h.p, h.data = &iscsi.PDU{BHS: h.p.BHS, Ref: h.p.Ref, NoRoom: true}, nil
	return true
}

// owner finds the held command, or the one under delivery, that unsolicited data of
// task itt on c belongs to. The caller holds sess.mu.
func (o *orderState) owner(c *conn, itt uint32) *heldPDU {
	if o.current.carries(c, itt) {
		return &o.current
	}
	if o.n == 0 {
		return nil
	}
	for i := range o.held {
		if h := &o.held[i]; h.carries(c, itt) {
			return h
		}
	}
	return nil
}

// deliverOne hands the held command h to the device server, and the data that came
// behind it. The caller holds s.mu, delivers, and has taken h out of the table;
// deliverOne unlocks and locks again.
func (s *session) deliverOne(h heldPDU) {
	o := &s.order
	o.current = h
	for p := h.p; ; {
		if p.BHS.Opcode() == iscsi.OpDataOut {
			s.takeDataOut(h.c, p)
		} else {
			s.mu.Unlock()
			s.deliver(h.c, p)
		}
		s.mu.Lock()
		if len(o.current.data) == 0 {
			break
		}
		p, o.current.data = o.current.data[0], o.current.data[1:]
	}
	o.current = heldPDU{}
}
