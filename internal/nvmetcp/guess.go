package nvmetcp

import (
	"softiser/internal/list"
	"softiser/internal/pdustream"
)

// foresight is what a host knows of the data that is to come: that of the reads, in the
// order in which they were submitted. It implements pdustream.Guesser.
type foresight struct{ h *Host }

// HeaderLen implements pdustream.Guesser: C2HData and CapsuleResp are as long.
func (f foresight) HeaderLen() int { return DataLen }

// Choose implements pdustream.Guesser.
func (f foresight) Choose(g *pdustream.Guess) (more bool) {
	h := f.h
	if h.digests != 0 || h.cfg.HPDA != 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for io := h.reads.list.First(); io != nil && !g.Full(); io = io.node.Next() {
		off := io.got
		if io == h.io {
			off += h.rx.layout.Data
		}
		switch {
		case off == io.total && g.Apart():
			return false // all data has come, so the next bytes are the response, not data
		case off == io.total || io.last || io.fault:
			continue
		case len(io.cmd.Data) > 1 || !g.Expect(io, off, io.cmd.Data[0][off:]):
			return false
		}
	}
	return true
}

// Settle implements pdustream.Guesser: nobody takes memory away before the command ends.
func (f foresight) Settle(*pdustream.Guess) {}

// Right implements pdustream.Guesser.
func (f foresight) Right(e *pdustream.Guessed, header []byte) bool {
	d := (*Data)(header)
	h, n := d.CH(), uint32(len(e.Data))
	return h.Type() == TypeC2HData && h.Flags()&^(FlagLast|FlagSuccess) == 0 && h.HLen() == DataLen && h.PDO() == DataLen &&
		h.PLen() == DataLen+n && d.CCCID() == e.Owner.(*hostIO).cmd.SQE.CID() && d.Offset() == e.Offset && d.Length() == n
}

// Apart implements pdustream.Guesser.
func (f foresight) Apart(header []byte) bool { return (*Data)(header).CH().Flags()&FlagSuccess == 0 }

// Answer implements pdustream.Guesser.
func (f foresight) Answer(header []byte) bool { return Type(header[0]) == TypeCapsuleResp }

// readQueue is the commands that await data, in the order in which they were submitted.
// Guarded by conn.mu.
type readQueue struct {
	list list.List[hostIO] // without those that later ones have overtaken: a guess would wait for them
	n    int               // of all of them, overtaken ones as well: with data that is not guessed, and not to be copied
}

// apart reports whether the data of io has receive calls of its own.
func (io *hostIO) apart() bool { return io.total > pdustream.MaxGuess || len(io.cmd.Data) > 1 }

func (q *readQueue) push(io *hostIO) {
	q.list.Push(&io.node, io)
	if io.apart() {
		q.n++
	}
}

func (q *readQueue) remove(io *hostIO) {
	q.list.RemoveThrough(&io.node)
	if io.apart() {
		q.n--
	}
}

// aheadLocked implements role: while data is expected that is not guessed, only the next
// header is read ahead.
func (h *Host) aheadLocked() int {
	if h.reads.n == 0 {
		return pdustream.Everything
	}
	return h.nextHeader()
}
