package iscsi

import (
	"time"

	"softiser/internal/iscsi"
)

// delivery hands the numbered PDUs of a session to the code for their opcode, each when
// the sequence lets it through, from one goroutine at a time; and runs what is to happen
// between them.
type delivery struct {
	sess       *session
	takesTurns bool     // several connections are possible: one goroutine delivers for all
	seq        sequence // guarded by sess.mu
}

// arrived takes a non-immediate PDU and delivers everything that is now in order.
func (d *delivery) arrived(c *conn, p *iscsi.PDU) {
	s := d.sess
	sn := p.BHS.CmdSN()
	q := &d.seq
	s.mu.Lock()
	if q.win.Accepts(sn) {
		if q.turn(p) {
			more := q.begin(d.takesTurns)
			s.mu.Unlock()
			d.deliver(c, p)
			if more {
				d.drain(c)
			}
			return
		}
		if s.state != sessionActive { // session.end has emptied the queue: nobody would release it
			s.mu.Unlock()
			p.Release()
			return
		}
		if c.abandoned { // skipped, as were the PDUs that were held when the connection was abandoned
			q.skipOver(sn)
			s.mu.Unlock()
			p.Release()
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

// deliverHeld delivers the commands whose turn has come, unless another goroutine is doing so.
// here is the connection whose receive goroutine calls, nil for any other goroutine: the
// datamover of here pushes by itself after the batch, so drain pushes only the others.
func (d *delivery) deliverHeld(here *conn) {
	d.sess.mu.Lock()
	others := d.seq.delivering
	d.seq.delivering = true
	d.sess.mu.Unlock()
	if !others {
		d.drain(here)
	}
}

// drain delivers until there is a gap in the numbers. The caller has set seq.delivering, and
// with it the right to deliver; drain gives it up when it returns.
func (d *delivery) drain(here *conn) {
	s := d.sess
	for {
		s.mu.Lock()
		if s.state != sessionActive {
			d.seq.delivering = false
			s.mu.Unlock()
			return
		}
		w, h := d.seq.next(s.srv.now())
		s.mu.Unlock()
		switch {
		case w != nil:
			w.run()
		case h.p != nil:
			d.deliverOne(h.c, h.p)
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
func (d *delivery) deliverOne(c *conn, p *iscsi.PDU) {
	s := d.sess
	d.deliver(c, p)
	for {
		s.mu.Lock()
		p = d.seq.nextData()
		s.mu.Unlock()
		if p == nil {
			return
		}
		services[p.BHS.Opcode()].takeHeld(s, c, p)
	}
}

// betweenCommands calls run when no command is being delivered: at once, or from the delivering
// goroutine as soon as it is done with the current command. c is the connection of the request.
func (d *delivery) betweenCommands(c *conn, run func()) {
	s := d.sess
	s.mu.Lock()
	wait := d.seq.delivering && s.state == sessionActive
	if wait {
		d.waitLocked(c, d.seq.win.ExpCmdSN, run)
	}
	s.mu.Unlock()
	if !wait {
		run()
	}
}

// afterCommands calls run when every command before the number cmdSN has been
// delivered: an immediate task management function that aborts a task set affects
// the commands that were sent before it on other connections, or that are being sent
// again, and must wait for them (RFC 7143 §4.2.3.3 b). After ackTime commands that are
// still missing count as received and aborted.
func (d *delivery) afterCommands(c *conn, cmdSN uint32, run func()) {
	s := d.sess
	s.mu.Lock()
	q := &d.seq
	ahead := cmdSN - q.win.ExpCmdSN
	wait := (ahead > 0 || q.delivering) && ahead <= uint32(q.win.size) && s.state == sessionActive
	if wait {
		d.waitLocked(c, cmdSN, run)
	}
	s.mu.Unlock()
	if !wait {
		run()
	}
}

// waitLocked has run called when ExpCmdSN has reached cmdSN, or after ackTime. The caller
// holds sess.mu.
func (d *delivery) waitLocked(c *conn, cmdSN uint32, run func()) {
	w := &orderWait{c: c, cmdSN: cmdSN, run: run}
	w.late = time.AfterFunc(ackTime, func() { d.giveUp(w) })
	d.seq.waits = append(d.seq.waits, w)
}

// giveUp ends a wait for commands that have not come within ackTime.
func (d *delivery) giveUp(w *orderWait) {
	d.sess.mu.Lock()
	late := d.seq.forget(w)
	if late {
		d.seq.skipMissing(w.cmdSN)
	}
	d.sess.mu.Unlock()
	if late {
		d.deliverHeld(nil)
		w.run()
	}
}

// deliver hands a PDU whose turn it is to the code for its opcode.
func (d *delivery) deliver(c *conn, p *iscsi.PDU) {
	s := d.sess
	v := &services[p.BHS.Opcode()]
	if !v.place && !p.BHS.Immediate() {
		// The PDU has used up a CmdSN without taking a place in the window.
		s.mu.Lock()
		s.openWindowLocked()
		s.mu.Unlock()
	}
	switch {
	case p.NoRoom && !v.place: // a command answers for itself
		c.out.reject(p, iscsi.RejectNoResources)
	case s.discovery() && !v.discovery:
		c.out.reject(p, iscsi.RejectProtocol)
	default:
		v.take(s, c, p)
	}
}
