package iwarp

import (
	"sync"

	"softiser/internal/sockio"
	"softiser/rdma/internal/verbs"
)

// Rooms. What a receiver reads into, and what a round is built in, is large and needed
// only while bytes are on their way through user space. So it is lent: by a receiver from
// its first read until the socket is empty and everything has gone where it belongs, by a
// transmitter until the socket has taken the round. An idle connection has neither, and
// many busy ones use the same few, which stay in the processor's cache. One that waits for
// the rest of a header, or for room in the socket, keeps its own: a peer that stops there holds
// what every connection would have without lending.

// rxRoom is what the bytes of a receiver come into.
type rxRoom struct {
	buf  []byte
	vec  [rxVec]sockio.Vec
	cuts [maxCuts]rxCut
	wcs  [wcBatch]verbs.WC
}

// completion is the one with number i, emptied.
func (m *rxRoom) completion(i int) *verbs.WC {
	wc := &m.wcs[i]
	*wc = verbs.WC{}
	return wc
}

// txRoom is what a round is built in.
type txRoom struct {
	hdr *hdrBuf // nil: the kernel has not done with the last one
	vec [sockio.MaxVec]sockio.Vec
}

// The rooms that nobody has at the moment.
var (
	rxRooms [2]sync.Pool // of *rxRoom: with rxBuf and with rxDeep bytes
	txRooms sync.Pool    // of *txRoom
	hdrBufs sync.Pool    // of *hdrBuf that have been parted from their room
)

// rooms is where the intake's come from, and how many bytes they have.
func (in *intake) rooms() (p *sync.Pool, size int) {
	if in.deep {
		return &rxRooms[1], rxDeep
	}
	return &rxRooms[0], rxBuf
}

// take sees to it that there is a room.
func (in *intake) take() {
	if in.room != nil {
		return
	}
	p, size := in.rooms()
	m, _ := p.Get().(*rxRoom)
	if m == nil {
		m = &rxRoom{buf: make([]byte, size)}
	}
	in.room, in.buf, in.vec, in.cuts.all = m, m.buf, m.vec[:0], &m.cuts
}

// rest gives the room back, unless part of a header or of a trailer is in it.
func (in *intake) rest() {
	if in.r == in.w {
		in.drop()
	}
}

// drop gives the room back.
func (in *intake) drop() {
	if in.room == nil {
		return
	}
	p, _ := in.rooms()
	p.Put(in.room)
	in.room, in.buf, in.vec, in.cuts.all = nil, nil, nil, nil
	in.r, in.w = 0, 0
}

// goDeep exchanges the room for a deep one, from now on, with what is in it.
func (in *intake) goDeep() {
	p, _ := in.rooms()
	old := in.room
	in.room, in.deep = nil, true
	in.take()
	in.r, in.w = 0, copy(in.buf, old.buf[in.r:in.w])
	p.Put(old)
}

// enter sees to it that there is a room. The caller holds io, as for rest.
func (r *round) enter() {
	if r.room != nil {
		return
	}
	m, _ := txRooms.Get().(*txRoom)
	if m == nil {
		m = new(txRoom)
	}
	if m.hdr == nil {
		m.hdr, _ = hdrBufs.Get().(*hdrBuf)
	}
	if m.hdr == nil {
		m.hdr = new(hdrBuf)
	}
	r.room, r.hdr, r.vec = m, m.hdr.b[:0], m.vec[:0]
}

// rest gives the room back: nothing of the round is left to send. z has what the kernel still needs.
func (r *round) rest(z *zerocopy) {
	m := r.room
	if m == nil {
		return
	}
	if r.byRef {
		z.leave(m.hdr)
		m.hdr, r.byRef = nil, false
	}
	clear(r.vec)
	txRooms.Put(m)
	r.room, r.hdr, r.vec, r.iov = nil, nil, nil, nil
}
