package initiator

import "fmt"

// Submission, on the caller's goroutine:
//
//	prepare   check the request, find its limits        no lock
//	enqueue   behind the others                          s.mu
//	pump      while window and slots last:               s.mu
//	            carve   next command of the first request
//	            send    to the datamover, which only queues
//	kick      transmit                                   no lock
//
// Inside a Done callback kick does nothing: the datamover transmits by itself
// after the batch of answers that it is delivering, so that all commands that
// follow from one batch leave in one system call.

// submit starts r on this session. r has been prepared.
func (s *Session) submit(r *request) {
	s.mu.Lock()
	c := s.enqueue(r)
	s.unlock()
	if c != nil {
		c.kick()
	}
}

// enqueue queues r and sends what can be sent. It returns the connection to
// kick. The caller holds s.mu.
func (s *Session) enqueue(r *request) *conn {
	r.sess = s
	switch s.state {
	case StateClosing:
		if !r.ctl { // the session's own commands go on: outstanding requests may wait for them
			s.finish(r, ErrClosed)
			return nil
		}
	case StateClosed:
		s.finish(r, ErrClosed)
		return nil
	case StateFailed:
		s.finish(r, s.lostError())
		return nil
	case StateDown:
		if !r.ctl { // recovery looks at the LUNs
			s.finish(r, s.lostError())
			return nil
		}
	}
	if !r.ctl && r.lun.closed.Load() {
		s.finish(r, ErrClosed)
		return nil
	}
	if r.ctl && s.conn == nil {
		// Only recovery could send it later, and recovery may be waiting for this very command.
		s.finish(r, fmt.Errorf("%w: %w", ErrSessionLost, errConnGone))
		return nil
	}
	if u := s.units.holds(r.lun); u != nil && u.by != nil {
		r.joined = u.looks
	}
	r.setState(s, reqQueued)
	r.resets = s.caches.resets
	if r.ctl {
		s.wait.ctlQueue.push(r)
	} else {
		s.wait.queue.push(r)
	}
	s.pump()
	return s.conn
}

// pump sends as many commands as window and slots permit: the session's own
// first, then those to be repeated, then new ones. The caller holds s.mu.
func (s *Session) pump() {
	c := s.conn
	if c == nil || !c.works() || s.resting {
		return
	}
	if s.drainInto(c, &s.wait.ctlResend, &s.wait.ctlQueue, true); c.state == connFlowing {
		s.drainInto(c, &s.wait.resend, &s.wait.queue, false)
	}
}

// drainInto sends from one pair of lists: commands to be repeated, then new ones. It passes
// over those of LUNs that are held (see units).
func (s *Session) drainInto(c *conn, again *taskList, q *reqQueue, ctl bool) {
	for s.win.CanSend() {
		var t *task
		r := q.First()
		if ctl || s.units.held == 0 {
			t = s.wait.popResend(again)
		} else {
			t, r = s.units.nextToSend()
		}
		if t != nil {
			s.tasks.renew(t)
			s.send(c, t)
		} else if r == nil || !s.start(c, q, r) {
			return
		}
	}
}

// start sends the next command of r, which is in q; false means that no slot is
// free. The caller holds s.mu.
func (s *Session) start(c *conn, q *reqQueue, r *request) bool {
	t := s.tasks.get(r.ctl, kindCommand)
	if t == nil {
		return false
	}
	r.carve(t, c)
	r.parts++
	if r.issued == r.total {
		q.remove(r)
		r.setState(s, reqRunning)
	}
	r.Sent = true
	t.started = s.clock.now
	s.clock.used()
	s.send(c, t)
	return true
}

// send queues a command at the datamover. The caller holds s.mu.
func (s *Session) send(c *conn, t *task) {
	p := &s.pdu
	cmd := p.BHS.NewSCSICommand()
	cmd.SetAttr(1) // SIMPLE
	cmd.SetLUN(t.lun)
	cmd.SetITT(t.itt())
	t.cmdSN = s.win.Next()
	cmd.SetCmdSN(t.cmdSN)
	cmd.SetExpStatSN(c.expStatSN)
	cmd.SetCDB(t.cdb[:t.cdbLen])
	t.bufs.Immediate, t.bufs.Unsolicited, t.bufs.InLen = 0, 0, 0
	switch {
	case t.outLen > 0:
		cmd.SetWrite(true)
		cmd.SetEDTL(t.outLen)
		t.bufs.Immediate, t.bufs.Unsolicited = c.unsolicited(t.outLen, uint32(len(t.ahs)))
		cmd.SetFinal(t.bufs.Unsolicited == t.bufs.Immediate)
	case t.inLen > 0:
		cmd.SetRead(true)
		cmd.SetEDTL(t.inLen)
	}
	p.AHS, p.Data, p.Bufs = t.ahs, nil, nil
	if t.outLen|t.inLen != 0 {
		p.Bufs = &t.bufs
	}
	t.setState(taskSent)
	s.stats.Commands++
	c.queue(p)
}

// kick transmits what is queued on the session's connection, if there is one.
func (s *Session) kick() {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		c.kick()
	}
}
