package iscsitcp

import (
	"softiser/internal/iscsi"
	"softiser/internal/pdustream"
)

// foresight is what an initiator knows of the data that is to come: that of the reads, in
// the order in which they were sent. It implements pdustream.Guesser. A task's memory may
// be taken away while it is outstanding: until Settle it is marked as aimed at, and whoever
// takes it waits.
type foresight struct{ c *Conn }

// HeaderLen implements pdustream.Guesser.
func (f foresight) HeaderLen() int { return iscsi.BHSLen }

// Choose implements pdustream.Guesser.
func (f foresight) Choose(g *pdustream.Guess) (more bool) {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if hd, dd := c.digestsLocked(); c.st != iscsi.ConnFull || hd || dd {
		return false
	}
	if !c.params.DataPDUInOrder || !c.params.DataSequenceInOrder {
		return false // data may come out of order: memory behind k.placed may hold some already
	}
	for k := c.tasks.reads.First(); k != nil && !g.Full(); k = k.node.Next() {
		n := k.inLen - min(k.placed, k.inLen)
		switch {
		case n == 0 && g.Apart():
			return false // all data has come, so the next bytes are the response, not data
		case n == 0 || k.fault:
			continue
		case n > c.params.MaxRecvDataSegmentLength || n%4 != 0 || len(k.bufs.In) > 1 || !g.Expect(k, k.placed, k.bufs.In[0][k.placed:]):
			return false
		}
		k.aimed = true
	}
	return true
}

// Settle implements pdustream.Guesser.
func (f foresight) Settle(g *pdustream.Guess) {
	c := f.c
	c.mu.Lock()
	g.Owners(func(k any) { k.(*task).aimed = false })
	c.cond.Broadcast()
	c.mu.Unlock()
}

// Right implements pdustream.Guesser.
func (f foresight) Right(e *pdustream.Guessed, header []byte) bool {
	h := (*iscsi.BHS)(header)
	return h.Opcode() == iscsi.OpDataIn && h.AHSLen() == 0 && h.DataLen() == len(e.Data) && h.ITT() == e.Owner.(*task).itt && h.DataIn().Offset() == e.Offset
}

// Apart implements pdustream.Guesser.
func (f foresight) Apart(header []byte) bool {
	d := (*iscsi.BHS)(header).DataIn()
	return d.Final() && !d.HasStatus()
}

// Answer implements pdustream.Guesser.
func (f foresight) Answer(header []byte) bool {
	h := (*iscsi.BHS)(header)
	return h.Opcode() == iscsi.OpSCSIResponse && h.AHSLen() == 0 && h.DataLen() == 0
}
