package iscsi

import (
	"sync/atomic"

	"softiser/blockdev"
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

// heldMemory is what a session holds ahead of its turn. It needs no lock.
type heldMemory struct {
	pool  *blockdev.Pool // of which it is reserved
	bytes atomic.Int64
}

// reserve makes room for n bytes, of the session's own and of what all have.
func (m *heldMemory) reserve(n int) bool {
	if m.bytes.Add(int64(n)) <= heldMost && m.pool.Reserve(n) {
		return true
	}
	m.bytes.Add(int64(-n))
	return false
}

func (m *heldMemory) unreserve(n int) {
	m.bytes.Add(int64(-n))
	m.pool.Unreserve(n)
}

// copyPDU takes p out of its receive buffer, which it gives back. Without memory for
// its data it has none, and says so. cost is what it counts for besides.
func (m *heldMemory) copyPDU(p *iscsi.PDU, cost int) *iscsi.PDU {
	q := &iscsi.PDU{BHS: p.BHS, Ref: p.Ref, NoRoom: p.NoRoom}
	n := len(p.AHS) + len(p.Data) + cost
	switch {
	case n == 0 || q.NoRoom:
	case !m.reserve(n):
		q.NoRoom = true
	default:
		b := append(append(make([]byte, 0, n-cost), p.AHS...), p.Data...)
		q.AHS, q.Data = b[:len(p.AHS):len(p.AHS)], b[len(p.AHS):]
		q.Recycle = func(*iscsi.PDU) { m.unreserve(n) }
	}
	p.Release()
	return q
}
