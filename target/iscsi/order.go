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
		if q.turn(sn) {
			more := q.begin(d.takesTurns)
			s.mu.Unlock()
			d.deliver(c, p)
			if more {
				d.drain(c)
			}
			return
		}
		if s.state != sessionActive { // nobody lets go of what would be held (see session.end)
			s.mu.Unlock()
			p.Release()
			return
		}
		if c.abandoned { // as with those that were held when it was
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

// deliverHeld delivers the commands whose turn has come, unless somebody does so
// already. here is the connection whose receive goroutine calls, nil for any other
// goroutine: it pushes by itself when it is done.
func (d *delivery) deliverHeld(here *conn) {
	d.sess.mu.Lock()
	others := d.seq.delivering
	d.seq.delivering = true
	d.sess.mu.Unlock()
	if !others {
		d.drain(here)
	}
}

// drain delivers until there is a gap. The caller is the one that delivers; nobody does
// from then on.
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
		services[p.BHS.Opcode()].behind(s, c, p)
	}
}

// betweenCommands calls run when nobody is delivering a command: at once, or from the
// goroutine that delivers, as soon as it is done with the one that it has; c is where that was asked for.
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
// those that were sent before it on other connections, or that are being sent again,
// and must wait for them (RFC 7143 §4.2.3.3 b). After ackTime those that are missing
// count as received, and as aborted.
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

// waitLocked makes run due at a number, or after ackTime. The caller holds sess.mu.
func (d *delivery) waitLocked(c *conn, cmdSN uint32, run func()) {
	w := &orderWait{c: c, cmdSN: cmdSN, run: run}
	w.late = time.AfterFunc(ackTime, func() { d.plug(w) })
	d.seq.waits = append(d.seq.waits, w)
}

// plug ends a wait for commands that have not come.
func (d *delivery) plug(w *orderWait) {
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
		// It used up a CmdSN without taking a place in the window.
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
