package iscsi

import (
	"sync"

	"softiser/internal/iscsi"
)

// slotLocked finds a slot for the command p of connection c and fills in what does not
// depend on its kind. The caller holds sess.mu.
func (m *commands) slotLocked(c *conn, p *iscsi.PDU) (*task, iscsi.RejectReason) {
	s := m.sess
	cmd := p.BHS.SCSICommand()
	if m.tags.find(cmd.ITT()) != nil {
		return nil, iscsi.RejectTaskInProgress
	}
	immediate := p.BHS.Immediate()
	if s.state != sessionActive || immediate && s.order.seq.win.used >= s.order.seq.win.slots {
		return nil, iscsi.RejectImmediate
	}
	k := c.slots.take(c)
	s.order.seq.win.used++
	k.itt, k.cmdSN, k.ref = cmd.ITT(), cmd.CmdSN(), p.Ref
	k.flags = 0
	if immediate {
		k.flags |= flagImmediate
	} else {
		s.order.seq.win.active++
	}
	if cmd.Read() {
		k.flags |= flagRead
	}
	if cmd.Write() {
		k.flags |= flagWrite
	}
	if p.Batch == 0 || p.Batch != c.batch {
		c.batch, c.clock = p.Batch, s.srv.now()
	}
	k.started = c.clock
	if s.erl == 2 {
		k.in.fail(errTaskAborted) // completes what an aborted task has left parked in this slot
		k.in.parked = false
	}
	for _, x := range [...]*iscsi.Transfer{&k.in.x, &k.out.x} {
		x.ITT, x.LUN, x.Ref = k.itt, cmd.LUN(), &k.ref
	}
	m.tags.insert(k)
	return k, 0
}

// slots are the command slots of a connection. They come in pieces, which are lent: all go
// back when no slot is in use, so that many sessions that are at work in turns use the same few,
// which stay in the processor's cache. Who comes too late for a command (see volume.Request)
// may find that its slot is another session's. At error recovery level 2 it must not be:
// what an aborted task has left parked stays in the slot.
type slots struct {
	pieces []*slotPiece
	free   *task // of those that have been used
	fresh  int   // of those that have not: the first
	used   int   // that have been taken
}

// slotPiece is slots that get their memory together.
type slotPiece [4]task

// slotPieces are those that no connection has at the moment.
var slotPieces = sync.Pool{New: func() any {
	p := new(slotPiece)
	for i := range p {
		k := &p[i]
		k.scsi.Port = k
		k.in.x.User, k.out.x.User = k, k
	}
	return p
}}

// take finds a slot for a command of c, whose slots these are.
func (l *slots) take(c *conn) *task {
	k := l.free
	if k != nil {
		l.free, k.next = k.next, nil
	} else {
		if l.fresh == len(l.pieces)*len(slotPiece{}) {
			l.pieces = append(l.pieces, slotPieces.Get().(*slotPiece))
		}
		k = &l.pieces[l.fresh/len(slotPiece{})][l.fresh%len(slotPiece{})]
		l.fresh++
	}
	l.used++
	if k.via.Load() != c {
		k.via.Store(c)
		k.scsi.Nexus = c.sess.nexus
	}
	return k
}

// put takes a slot back.
func (l *slots) put(k *task) {
	k.next, l.free = l.free, k
	if l.used--; l.used > 0 || k.session().erl == 2 {
		return
	}
	for i, p := range l.pieces {
		slotPieces.Put(p)
		l.pieces[i] = nil
	}
	l.pieces, l.free, l.fresh = l.pieces[:0], nil, 0
}
