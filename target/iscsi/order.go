package iscsi

import (
	"time"

	"softiser/internal/iscsi"
)

// This file is about who delivers what the sequence of a session lets through, and when.

// inOrder takes a non-immediate PDU and delivers everything that is now in order.
func (s *session) inOrder(c *conn, p *iscsi.PDU) {
	sn := p.BHS.CmdSN()
	q := &s.seq
	s.mu.Lock()
	if q.win.Accepts(sn) {
		if q.turn(sn) {
			more := q.begin(s.many)
			s.mu.Unlock()
			s.deliver(c, p)
			if more {
				s.drain(c)
			}
			return
		}
		if q.hold(c, p, s.srv.now()) {
			s.mu.Unlock()
			return
		}
	}
	s.mu.Unlock()
	// Outside the window, or a duplicate: ignored silently.
	s.counters.outOfWindow.Add(1)
	p.Release()
}

// deliverHeld delivers the commands whose turn has come, unless somebody does so
// already. here is the connection whose receive goroutine calls, nil for any other
// goroutine: it pushes by itself when it is done.
func (s *session) deliverHeld(here *conn) {
	s.mu.Lock()
	others := s.seq.delivering
	s.seq.delivering = true
	s.mu.Unlock()
	if !others {
		s.drain(here)
	}
}

// drain delivers until there is a gap. The caller is the one that delivers; nobody does
// from then on.
func (s *session) drain(here *conn) {
	for {
		s.mu.Lock()
		if s.state != sessionActive {
			s.seq.delivering = false
			s.mu.Unlock()
			return
		}
		w, h := s.seq.next(s.srv.now())
		s.mu.Unlock()
		switch {
		case w != nil:
			w.run()
		case h.p != nil:
			s.deliverOne(h.c, h.p)
			if h.c != here {
				h.c.dm.Push()
			}
		default:
			return
		}
	}
}

// deliverOne hands the command p, which has been held, to the device server, and the data
// that came behind it.
func (s *session) deliverOne(c *conn, p *iscsi.PDU) {
	s.deliver(c, p)
	for {
		s.mu.Lock()
		p = s.seq.nextData()
		s.mu.Unlock()
		if p == nil {
			return
		}
		services[p.BHS.Opcode()].behind(s, c, p)
	}
}

// betweenCommands calls run when nobody is delivering a command: at once, or from the
// goroutine that delivers, as soon as it is done with the one that it has.
func (s *session) betweenCommands(run func()) {
	s.mu.Lock()
	wait := s.seq.delivering && s.state == sessionActive
	if wait {
		s.waitLocked(s.seq.win.ExpCmdSN, run)
	}
	s.mu.Unlock()
	if !wait {
		run()
	}
}

// afterCommands calls run when every command before the number cmdSN has been
// delivered: an immediate task management function that aborts a task set affects
// those that were sent before it on other connections, or that are being sent again,
// and must wait for them (RFC 7143 §4.2.3.3 b). After ackTime those that are missing
// count as received, and as aborted.
func (s *session) afterCommands(cmdSN uint32, run func()) {
	s.mu.Lock()
	q := &s.seq
	ahead := cmdSN - q.win.ExpCmdSN
	wait := (ahead > 0 || q.delivering) && ahead <= uint32(q.win.size) && s.state == sessionActive
	if wait {
		s.waitLocked(cmdSN, run)
	}
	s.mu.Unlock()
	if !wait {
		run()
	}
}

// waitLocked makes run due at a number, or after ackTime. The caller holds s.mu.
func (s *session) waitLocked(cmdSN uint32, run func()) {
	w := &orderWait{cmdSN: cmdSN, run: run}
	w.late = time.AfterFunc(ackTime, func() { s.plug(w) })
	s.seq.waits = append(s.seq.waits, w)
}

// plug ends a wait for commands that have not come.
func (s *session) plug(w *orderWait) {
	s.mu.Lock()
	late := s.seq.forget(w)
	if late {
		s.seq.skipMissing(w.cmdSN)
	}
	s.mu.Unlock()
	if late {
		s.deliverHeld(nil)
		w.run()
	}
}

// deliver hands a PDU whose turn it is to the code for its opcode.
func (s *session) deliver(c *conn, p *iscsi.PDU) {
	v := &services[p.BHS.Opcode()]
	if !v.place && !p.BHS.Immediate() {
		// It took a number but no place in the window.
		s.mu.Lock()
		s.openWindowLocked()
		s.mu.Unlock()
	}
	switch {
	case p.NoRoom && !v.place: // a command answers for itself
		c.reject(p, iscsi.RejectNoResources)
	case s.discovery() && !v.discovery:
		c.reject(p, iscsi.RejectProtocol)
	default:
		v.take(s, c, p)
	}
}
