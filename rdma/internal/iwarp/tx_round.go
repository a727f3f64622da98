package iwarp

import (
	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
)

const (
	roundBytes = 512 << 10 // payload after which a round is closed
	roundRead  = 192 << 10 // and where it has been read for the CRC or for the cache: four FPDUs, still there when the kernel copies them
	hdrRing    = 16 << 10  // headers, trailers and small payloads of one round
)

// round is the FPDUs of one vectored call, or of several where the socket does not take all at once:
//
//	hdr   header | trailer header small payload trailer header | trailer …
//	vec   ──────   ───────────────────────────────────────────   ───────
//	             ▲                                             ▲
//	             payload by reference                          and more
//
// What touches in hdr is one piece of vec. It belongs to whoever holds transmitter.io.
type round struct {
	room   *txRoom      // lent for a round, hdr and vec included; see rooms.go
	byRef  bool         // part of it has gone by reference: the kernel may need hdr beyond the round
	hdr    []byte       // capacity hdrRing, never reallocated
	vec    []sockio.Vec // capacity sockio.MaxVec
	iov    []sockio.Vec // what is left to send of vec
	mayRef bool         // its Sends and Writes may go by reference
	soon   bool         // all of it is resident: sending it cannot wait for a disk
	open   bool         // the last piece of vec ends at the end of hdr
	bytes  int          // built
	off    uint64       // stream offset behind what has been built, in this round and before
	limit  int          // of bytes: roundBytes or roundRead

	refs   []txRef // memory of Read Responses in it
	gone   int     // of refs: those that have been sent
	sent   int     // of bytes: what the socket has taken
	at     txMark
	poison bool // one of refs[gone:] has been revoked
}

// txRef is memory that the round reads. The peer may have it all, and answer, while
// what follows in the round still waits for room; the memory may be taken back then.
type txRef struct {
	r   *mem.Region
	end int // bytes of the round when it has been sent
}

// txMark is a point between two FPDUs of a round.
type txMark struct {
	hdr, vec, bytes int
	lastLen         uint64
	open            bool
	off             uint64
}

// begin makes the round an empty one in a room of its own.
func (r *round) begin(limit int) {
	r.hdr, r.vec, r.open, r.bytes = r.hdr[:0], r.vec[:0], false, 0
	r.soon = true
	r.refs, r.gone, r.sent = r.refs[:0], 0, 0
	r.limit = limit
}

// full reports whether the round is to be sent before another segment is built.
func (r *round) full() bool {
	return r.bytes >= r.limit || len(r.hdr)+hdrRoom > cap(r.hdr) || len(r.vec)+3 > cap(r.vec)
}

// piece adds hdr[start:] to the round, to the piece before it if they touch.
func (r *round) piece(start int) {
	n := len(r.hdr) - start
	r.bytes += n
	r.off += uint64(n)
	if r.open {
		r.vec[len(r.vec)-1].Len += uint64(n)
		return
	}
	r.put(r.hdr[start:])
	r.open = true
}

// put appends p to the pieces of the call.
func (r *round) put(p []byte) {
	r.vec = r.vec[:len(r.vec)+1]
	sockio.Set(&r.vec[len(r.vec)-1], p)
}

func (r *round) mark() {
	m := &r.at
	m.hdr, m.vec, m.bytes, m.open, m.off = len(r.hdr), len(r.vec), r.bytes, r.open, r.off
	if m.vec > 0 {
		m.lastLen = r.vec[m.vec-1].Len
	}
}

// undo drops the FPDU that was begun after mark.
func (r *round) undo() {
	m := &r.at
	r.hdr, r.vec, r.bytes, r.open, r.off = r.hdr[:m.hdr], r.vec[:m.vec], m.bytes, m.open, m.off
	if m.vec > 0 {
		r.vec[m.vec-1].Len = m.lastLen
	}
}

// taken enters that the socket has taken n bytes of the round.
func (r *round) taken(n int) {
	r.iov = sockio.Skip(r.iov, n)
	r.passed(n)
}

// passed enters that n more bytes of the round need no memory any more.
func (r *round) passed(n int) {
	r.sent += n
	for r.gone < len(r.refs) && r.refs[r.gone].end <= r.sent {
		r.gone++
	}
}

// revoke is called when m has been revoked. It reports whether what is left of the round, or
// was of an earlier one, reads such memory: then nothing more of it may be sent.
func (r *round) revoke(m *mem.Region) bool {
	for i := range r.refs[r.gone:] {
		if r.refs[r.gone+i].r == m {
			r.poison = true
		}
	}
	return r.poison
}
