package initiator

import (
	"errors"
	"fmt"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// maxTick is how often keep looks at the clock; a session that nobody uses
// costs one wake-up in this time.
const maxTick = time.Second

// watch is a session's clock. The session's mutex guards clock, busy and mute; the rest does not change.
type watch struct {
	s     *Session
	begun time.Time
	wake  chan struct{} // makes keep look at the clock again; one slot
	clock int64         // nanoseconds since begun, as of the last tick
	busy  bool          // commands were outstanding at the last tick: the next one is near
	mute  mute          // whether the target says anything
}

// used takes note of a command. The caller holds s.mu.
func (w *watch) used() {
	if !w.busy {
		w.busy = true
		w.nudge()
	}
}

// elapsed returns now on the session's clock.
func (w *watch) elapsed() int64 { return int64(time.Since(w.begun)) }

// nudge makes keep look at the clock again.
func (w *watch) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// keep sees to pings, time-outs, and commands to be sent again after a while. It ends
// with s.ctx.
func (w *watch) keep() {
	s := w.s
	defer s.wg.Done()
	tick := s.cfg.tickLength()
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		case <-w.wake:
		}
		timer.Reset(w.tick(tick))
	}
}

// tickLength is short enough for the shortest time-out to be seen in time.
func (c *Config) tickLength() time.Duration {
	d := maxTick
	for _, t := range []time.Duration{c.NopInterval, c.NopTimeout, c.CommandTimeout, c.AbortTimeout, c.ResetTimeout} {
		if t > 0 {
			d = min(d, t/4)
		}
	}
	return max(d, time.Millisecond)
}

// tick looks at everything that waits and returns when to look again.
func (w *watch) tick(next time.Duration) time.Duration {
	s := w.s
	s.mu.Lock()
	w.clock = w.elapsed()
	c := s.conn
	if c != nil && c.state != connDead && !s.resting {
		w.connection(c)
		if s.wait.delayed > 0 {
			next = min(next, w.delayed())
		}
		w.overdue(c)
		s.pump()
		if w.busy = s.tasks.used > 0; w.busy && s.cfg.SilenceProbe > 0 {
			next = min(next, s.cfg.SilencePing/2)
		}
	}
	s.unlock()
	if c != nil {
		c.kick()
	}
	return next
}

// connection pings when nothing was heard for NopInterval, and ends a connection
// that leaves a ping unanswered for NopTimeout. Anything that arrives proves
// that the target is there.
func (w *watch) connection(c *conn) {
	s := w.s
	// Data goes past this code, so calls that received something count as signs of life, too.
	heard := c.heard + c.dm.Stats().ReceiveCalls
	w.silence(c, heard)
	if heard != c.seen {
		c.seen, c.quiet = heard, w.clock
		return
	}
	if s.cfg.NopInterval < 0 {
		return
	}
	idle := time.Duration(w.clock - c.quiet)
	switch {
	case (!c.pinged || c.early) && idle >= s.cfg.NopInterval:
		if !c.pinged {
			c.ping()
		}
		c.early = false
		c.quiet = w.clock // the time-out of the ping begins now
	case c.pinged && !c.early && s.cfg.NopTimeout > 0 && idle >= s.cfg.NopTimeout:
		c.doom(fmt.Errorf("the target did not answer a ping within %v", s.cfg.NopTimeout))
	}
}

// ping sends a NOP-Out that wants an answer (RFC 7143 §11.18).
func (c *conn) ping() {
	s := c.s
	t := s.tasks.get(true, kindPing)
	if t == nil {
		return // control PDUs are outstanding: their deadlines watch the target
	}
	c.pinged = true
	p := &s.pdu
	q := p.BHS.NewNopOut()
	q.SetImmediate(true)
	q.SetITT(t.itt())
	q.SetTTT(iscsi.ReservedTag)
	q.SetCmdSN(s.win.CmdSN)
	q.SetExpStatSN(c.expStatSN)
	p.AHS, p.Data, p.Bufs = nil, nil, nil
	t.deadline = 0 // pings have a time-out of their own, see watch.connection
	c.queue(p)
}

// nopIn takes the answer to a ping, or answers the target's.
func (c *conn) nopIn(p *iscsi.PDU) {
	s := c.s
	b := &p.BHS
	if itt := b.ITT(); itt != iscsi.ReservedTag {
		c.ackStatus(b)
		t := s.tasks.find(itt)
		if t == nil || t.kind != kindPing {
			c.violation("a NOP-In for the unknown task tag %#08x", itt)
			return
		}
		c.pinged, c.early, c.proved = false, false, true
		s.stats.Pings++
		s.tasks.put(t)
		return
	}
	ttt := b.TTT()
	if ttt == iscsi.ReservedTag {
		return // only news of StatSN and the command window (RFC 7143 §11.19)
	}
	lun := b.LUN()
	q := s.pdu.BHS.NewNopOut()
	q.SetImmediate(true)
	q.SetLUN(lun)
	q.SetITT(iscsi.ReservedTag)
	q.SetTTT(ttt)
	q.SetCmdSN(s.win.CmdSN)
	q.SetExpStatSN(c.expStatSN)
	s.pdu.AHS, s.pdu.Data, s.pdu.Bufs = nil, nil, nil
	c.queue(&s.pdu)
}

// delayed moves commands that are due to the list to be sent again, and
// returns the time until the next one is.
func (w *watch) delayed() time.Duration {
	s := w.s
	next := time.Hour
	for i := range s.tasks.slots {
		t := &s.tasks.slots[i]
		if t.state != taskDelayed {
			continue
		}
		if wait := time.Duration(t.due - w.clock); wait > 0 {
			next = min(next, wait)
			continue
		}
		s.wait.delayed--
		s.wait.pushResend(t)
	}
	return next
}

// overdue aborts commands that have taken too long and escalates task
// management that was not answered.
func (w *watch) overdue(c *conn) {
	s := w.s
	for i := range s.tasks.slots {
		t := &s.tasks.slots[i]
		switch {
		case t.state == taskFree:
		case t.kind == kindTMF && w.clock >= t.deadline:
			ref, f, answer := s.tasks.find(t.refITT), t.function, t.answer
			// The slot stays taken: its answer may still come. It no longer counts
			// among those outstanding.
			t.deadline, t.asked = 1<<63-1, false
			s.tm.outstanding--
			why := errors.New("no answer in time")
			if answer != nil {
				c.doom(fmt.Errorf("%v: %w", f, why))
			}
			s.tm.escalate(c, f, ref, why)
			s.tm.nextAbort(c)
		case t.kind == kindCommand && t.state == taskSent && s.cfg.CommandTimeout > 0 && time.Duration(w.clock-t.started) >= s.cfg.CommandTimeout+s.cfg.tickLength():
			s.tm.abort(c, t, ErrTimeout)
		}
	}
}

// async acts on an Asynchronous Message (RFC 7143 §11.9).
func (c *conn) async(p *iscsi.PDU) {
	s := c.s
	a := p.BHS.Async()
	_, wait, sec := a.Params()
	s.event(Event{Kind: EventAsync, Detail: asyncDetail(a)})
	switch a.Event() {
	case iscsi.AsyncSCSI:
		if sense, _, ok := iscsi.ParseSense(p.Data); ok {
			if se, err := spc.ParseSense(sense); err == nil {
				s.units.attention(a.LUN(), se)
			}
		}
	case iscsi.AsyncLogout, iscsi.AsyncNegotiation:
		// The target wants to end this connection, or to negotiate anew. Either way
		// we log out when the outstanding commands have ended, and log in again.
		c.leave(time.Duration(sec) * time.Second)
	case iscsi.AsyncConnectionDrop, iscsi.AsyncSessionDrop:
		// Not before Time2Wait. Time2Retain is for tasks that are reassigned, at error
		// recovery level 2; here the login replaces the session, and they are sent again.
		s.rec.minWait = time.Duration(wait) * time.Second
		c.doom(errors.New(asyncDetail(a)))
	case iscsi.AsyncTasksTerminated:
		s.tm.lunReset(c, a.LUN())
	}
}

// asyncDetail describes an Asynchronous Message for people.
func asyncDetail(a iscsi.Async) string {
	_, wait, sec := a.Params()
	switch a.Event() {
	case iscsi.AsyncLogout, iscsi.AsyncNegotiation:
		return fmt.Sprintf("%v within %d s", a.Event(), sec)
	case iscsi.AsyncConnectionDrop, iscsi.AsyncSessionDrop:
		return fmt.Sprintf("%v (Time2Wait %d s, Time2Retain %d s)", a.Event(), wait, sec)
	case iscsi.AsyncTasksTerminated:
		return fmt.Sprintf("%v on LUN %s", a.Event(), iscsi.FormatLUN(a.LUN()))
	}
	return a.Event().String()
}

// leave drains the connection within limit, logs out as the target asked, and
// lets recovery log in again.
func (c *conn) leave(limit time.Duration) {
	if c.state != connFlowing {
		return
	}
	c.setState(connLeaving)
	s := c.s
	s.wg.Add(1)
	s.out.run(func() { go c.relogin(limit) })
}
