package iscsi

import (
	"slices"
	"time"

	"softiser/internal/iscsi"
)

// orderState is what delivery in CmdSN order needs besides the window (RFC 7143
// §4.2.2.1). Commands may overtake each other when they travel on several
// connections, and behind one that was lost:
//
//	ExpCmdSN = 5     connection 0: 6, 8      connection 1: 5, 7
//
//	6 arrives: held   5 arrives: delivered, and 6 behind it   8: held   7: delivered, 8
//
// One goroutine delivers at a time. Whatever arrives meanwhile on another
// connection is held, and the one that delivers takes it along: otherwise two
// receive goroutines could pass each other between the window and the device
// server.
type orderState struct {
	held       []heldPDU     // by CmdSN modulo the window; made when first needed
	n          int           // of them that are there
	since      time.Duration // when the first one came, or the last one was delivered
	delivering bool
	current    heldPDU      // with the device server now
	waits      []*orderWait // task management functions that commands are on their way before
}

// orderWait is something that is due when ExpCmdSN has reached a number.
type orderWait struct {
	cmdSN uint32
	run   func()
	late  *time.Timer
}

// due takes the next wait that is over out; nil when there is none.
func (o *orderState) due(exp uint32) *orderWait {
	for i, w := range o.waits {
		if iscsi.SerialLessEq(w.cmdSN, exp) {
			o.waits = slices.Delete(o.waits, i, i+1)
			w.late.Stop()
			return w
		}
	}
	return nil
}

// dropLocked takes the commands out that came on c, or all for nil, and returns
// them.
func (o *orderState) dropLocked(c *conn) []heldPDU {
	var dropped []heldPDU
	for i, h := range o.held {
		if h.p != nil && (c == nil || h.c == c) {
			dropped = append(dropped, h)
			o.held[i] = heldPDU{}
			o.n--
		}
	}
	return dropped
}

// inOrder takes a non-immediate PDU and delivers everything that is now in order.
func (s *session) inOrder(c *conn, p *iscsi.PDU) {
	sn := p.BHS.CmdSN()
	o := &s.order
	s.mu.Lock()
	if !s.win.Accepts(sn) {
		// Outside the window, or a duplicate: ignored silently.
		s.mu.Unlock()
		s.counters.outOfWindow.Add(1)
		p.Release()
		return
	}
	if sn == s.win.ExpCmdSN && s.stalled == 0 && !o.delivering {
		s.win.Advance()
		s.publish()
		more := o.held != nil || s.skip != nil || o.waits != nil || s.many
		o.delivering = s.many
		s.mu.Unlock()
		s.deliver(c, p)
		if more {
			s.mu.Lock()
			s.drain(c)
		}
		return
	}
	if o.held == nil {
		o.held = make([]heldPDU, s.win.size)
	}
	at := &o.held[sn%uint32(len(o.held))]
	_, aborted := s.skip[sn] // it counts as received
	duplicate := at.p != nil || aborted
	if !duplicate {
		*at = heldPDU{c: c, p: s.copyPDU(p, 0)}
		if o.n++; o.n == 1 {
			o.since = s.srv.now()
		}
	}
	s.mu.Unlock()
	if duplicate {
		s.counters.outOfWindow.Add(1)
		p.Release()
	}
}

// deliverHeld delivers the commands whose turn has come, unless somebody does so
// already. here is the connection whose receive goroutine calls, nil for any other
// goroutine: it pushes by itself when it is done.
func (s *session) deliverHeld(here *conn) {
	s.mu.Lock()
	if s.order.delivering {
		s.mu.Unlock()
		return
	}
	s.drain(here)
}

// drain delivers until there is a gap. The caller holds s.mu and is the one that
// delivers; drain unlocks.
func (s *session) drain(here *conn) {
	o := &s.order
	o.delivering = true
	for s.state == sessionActive {
		sn := s.win.ExpCmdSN
		if w := o.due(sn); w != nil {
			s.mu.Unlock()
			w.run()
			s.mu.Lock()
			continue
		}
		if _, ok := s.skip[sn]; ok {
			delete(s.skip, sn)
			s.win.Advance()
			s.openWindow()
			continue
		}
		if o.n == 0 || s.stalled > 0 {
			break
		}
		at := &o.held[sn%uint32(len(o.held))]
		h := *at
		if h.p == nil {
			break
		}
		*at = heldPDU{}
		o.n--
		o.since = s.srv.now()
		s.win.Advance()
		s.publish()
		s.deliverOne(h)
		if h.c != here {
			s.mu.Unlock()
			h.c.dm.Push()
			s.mu.Lock()
		}
	}
	o.delivering = false
	s.mu.Unlock()
}

// mayBe reports whether the command that is numbered sn, and has not been delivered,
// may have the tag itt: it has, or it has not come yet.
func (o *orderState) mayBe(sn, itt uint32) bool {
	if o.held == nil {
		return true
	}
	p := o.held[sn%uint32(len(o.held))].p
	return p == nil || p.BHS.CmdSN() == sn && p.BHS.ITT() == itt
}

// betweenCommands calls run when nobody is delivering a command: at once, or from the
// goroutine that delivers, as soon as it is done with the one that it has.
func (s *session) betweenCommands(run func()) {
	s.mu.Lock()
	o := &s.order
	if !o.delivering || s.state != sessionActive {
		s.mu.Unlock()
		run()
		return
	}
	w := &orderWait{cmdSN: s.win.ExpCmdSN, run: run}
	w.late = time.AfterFunc(ackTime, func() { s.plug(w) })
	o.waits = append(o.waits, w)
	s.mu.Unlock()
}

// afterCommands calls run when every command before the number cmdSN has been
// delivered: an immediate task management function that aborts a task set affects
// those that were sent before it on other connections, or that are being sent again,
// and must wait for them (RFC 7143 §4.2.3.3 b). After ackTime those that are missing
// count as received, and as aborted.
func (s *session) afterCommands(cmdSN uint32, run func()) {
	s.mu.Lock()
	o := &s.order
	ahead := cmdSN - s.win.ExpCmdSN
	if ahead == 0 && !o.delivering || ahead > uint32(s.win.size) || s.state != sessionActive {
		s.mu.Unlock()
		run()
		return
	}
	w := &orderWait{cmdSN: cmdSN, run: run}
	w.late = time.AfterFunc(ackTime, func() { s.plug(w) })
	o.waits = append(o.waits, w)
	s.mu.Unlock()
}

// plug ends a wait for commands that have not come.
func (s *session) plug(w *orderWait) {
	s.mu.Lock()
	o := &s.order
	i := slices.Index(o.waits, w)
	if i < 0 {
		s.mu.Unlock()
		return
	}
	o.waits = slices.Delete(o.waits, i, i+1)
	for sn := s.win.ExpCmdSN; iscsi.SerialLess(sn, w.cmdSN); sn++ {
		if o.held == nil || o.held[sn%uint32(len(o.held))].p == nil {
			s.skipCommand(sn)
		}
	}
	s.mu.Unlock()
	s.deliverHeld(nil)
	w.run()
}
