package iscsi

import (
	"slices"
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
	if s.state != sessionActive || c.abandoned || immediate && s.order.seq.win.used >= s.order.seq.win.slots {
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
	lun := cmd.LUN()
	in, out := &k.in.x, &k.out.x
	in.ITT, in.LUN, in.Ref = k.itt, lun, &k.ref
	out.ITT, out.LUN, out.Ref = k.itt, lun, &k.ref
	m.tags.insert(k)
	return k, 0
}

// slots are the command slots of a connection. They come in pieces borrowed from slotPieces,
// and all pieces go back when no slot is in use: many sessions that work in turns thus share
// a few pieces, which stay in the processor's cache. So a late call for a command that has
// ended (see volume.Request) may find its slot free, or in use by another session: before it
// looks into the slot it asks the connection that the command came on (hasLocked). At error
// recovery level 2 pieces are kept, because an aborted task may leave parked data in its slot.
type slots struct {
	pieces []*slotPiece
	free   *task // slots that were used before and are free again, by task.next
	fresh  int   // index of the first slot that has not been used yet
	used   int   // slots in use
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

// has reports whether k is one of them.
func (p *slotPiece) has(k *task) bool {
	for i := range p {
		if k == &p[i] {
			return true
		}
	}
	return false
}

// forget drops the references of used slots to connections and nexuses.
func (p *slotPiece) forget() {
	for i := range p {
		k := &p[i]
		if k.via.Load() == nil {
			return // it has not been used, nor those behind it
		}
		k.via.Store(nil)
		k.scsi.Nexus, k.next = nil, nil
	}
}

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

// hasLocked reports whether k is a slot of c, so that sess.mu guards it, which the caller
// holds. At error recovery level 2 a slot may change its connection, never its session.
func (c *conn) hasLocked(k *task) bool {
	return c.sess.erl == 2 || slices.ContainsFunc(c.slots.pieces, func(p *slotPiece) bool { return p.has(k) })
}

// put takes a slot back.
func (l *slots) put(k *task) {
	k.next, l.free = l.free, k
	if l.used--; l.used > 0 || k.session().erl == 2 {
		return
	}
	for i, p := range l.pieces {
		p.forget()
		slotPieces.Put(p)
		l.pieces[i] = nil
	}
	l.pieces, l.free, l.fresh = l.pieces[:0], nil, 0
}
