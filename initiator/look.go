package initiator

import (
	"context"
	"errors"
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// A command carries block numbers, and what is block 7 is the LUN's to say. So
// nothing is sent to a LUN that may have become another one, or have blocks of
// another size, before it has been looked at:
//
//	seen --- unit attention (capacity, parameters, inquiry data, LUNs) ---> stale
//	seen --- new connection ----------------------------------------------> stale
//	stale -- look: INQUIRY, VPD pages, READ CAPACITY, MODE SENSE
//	           | told once more meanwhile                                 --> stale
//	           | the same volume, blocks of the same size                 --> seen; what waited is sent
//	           | another volume, or other blocks                          --> the connection ends; recovery finds the
//	           |                                                              same and gives the session up
//	           | the connection was lost                                  --> stale; recovery looks
//	           \ it cannot be looked at                                   --> stale; what waited ends with an error; a
//	                                                                          command that came since has it looked at again
//
// Commands of other LUNs go on meanwhile, and so do the session's own.

// attach makes l a LUN of the session. told is what units.told was before l was
// looked at for the first time.
func (us *units) attach(l *LUN, told uint32) {
	s := us.s
	s.mu.Lock()
	u := &unit{lun: l}
	us.list = append(us.list, u)
	if us.told != told {
		us.set(u, true, nil)
		us.look(u)
	}
	s.unlock()
}

// detach ends that. What has not been sent is not sent any more: nobody would look at
// the LUN before it.
func (us *units) detach(l *LUN) {
	s := us.s
	s.mu.Lock()
	if u := us.of(l); u != nil {
		u.looks++ // what came during a look does not wait for another one
		us.endWaiting(u, ErrClosed)
		us.remove(l)
	}
	s.unlock()
}

// attention acts on a unit attention of LUN lun. The caller holds s.mu.
func (us *units) attention(lun uint64, sense spc.Sense) {
	us.s.event(Event{Kind: EventUnitAttention, Detail: fmt.Sprintf("LUN %s: %v", iscsi.FormatLUN(lun), sense)})
	switch sense.ASC {
	case spc.ASCALUAStateChanged, spc.ASCALUATransitionFailed, spc.ASCLUNsChanged:
		us.s.event(Event{Kind: EventAccess, Detail: "LUN " + iscsi.FormatLUN(lun)})
	}
	if sense.ASC>>8 == 0x29 {
		us.s.caches.reset(lun, sense.ASC)
	}
	us.changed(lun, sense.ASC)
}

// changed takes a unit attention that may mean another volume, another size or other
// limits. The caller holds s.mu.
func (us *units) changed(wire uint64, asc spc.ASC) {
	switch asc {
	case spc.ASCCapacityChanged, spc.ASCParametersChanged, spc.ASCModeChanged, spc.ASCInquiryChanged, spc.ASCLUNsChanged:
	default:
		return
	}
	us.told++
	for _, u := range us.list {
		if u.lun.wire == wire {
			us.set(u, true, u.by)
			us.look(u)
		}
	}
}

// look has u looked at in the background, if nobody does already. While there is no
// connection that commands are sent on, recovery sees to it. The caller holds s.mu.
func (us *units) look(u *unit) {
	s := us.s
	c := s.conn
	if !u.stale || u.by != nil || c == nil || !c.works() || s.state != StateActive && !(s.state == StateClosing && c.state == connFlowing) {
		return
	}
	us.set(u, true, c)
	u.looks++
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		us.looked(u, c, us.lookUntilSeen(s.ctx, u, c))
	}()
}

// lookUntilSeen looks at u over c until nothing is reported meanwhile: what a look finds
// is put together from several answers, which must be of one state of the LUN.
func (us *units) lookUntilSeen(ctx context.Context, u *unit, c *conn) error {
	s := us.s
	for range maxAgain {
		s.mu.Lock()
		if u.by != c {
			s.mu.Unlock()
			return errConnGone
		}
		us.set(u, false, c)
		s.mu.Unlock()
		if err := u.lun.recheck(ctx, s); err != nil {
			return err
		}
		s.mu.Lock()
		again := u.stale
		s.mu.Unlock()
		if !again {
			return nil
		}
	}
	return fmt.Errorf("it reported a change %d times while it was looked at", maxAgain)
}

// looked takes the outcome of a look over c.
func (us *units) looked(u *unit, c *conn, err error) {
	s := us.s
	s.mu.Lock()
	if u.by != c { // the connection was lost, and recovery has taken over
		s.mu.Unlock()
		return
	}
	us.set(u, u.stale || err != nil, nil)
	switch {
	case err == nil:
		us.restart(u.lun)
		s.pump()
	case errors.Is(err, ErrLUNChanged):
		c.doom(err)
	case lostConnection(err): // recovery looks at the LUN again
	default:
		us.endWaiting(u, fmt.Errorf("initiator: LUN %d said that it had changed, and could not be looked at: %w", u.lun.num, err))
		s.pump()
	}
	s.unlock()
	c.kick()
}

// lookAtAll looks at every LUN over c, which is new, including those that are opened or
// say that they have changed while others are looked at.
func (us *units) lookAtAll(c *conn) error {
	s := us.s
	for looks := 0; ; looks++ {
		s.mu.Lock()
		u := us.firstStale()
		if u != nil {
			us.set(u, true, c)
		}
		tooMany := looks > maxAgain*(1+len(us.list))
		s.mu.Unlock()
		switch {
		case u == nil:
			return nil
		case tooMany:
			return errors.New("the LUNs go on reporting changes")
		}
		if err := us.lookUntilSeen(s.ctx, u, c); err != nil {
			return err
		}
	}
}

// restart starts the time of what waited for a look at l: it was not the target that
// kept it waiting. The caller holds s.mu.
func (us *units) restart(l *LUN) {
	s := us.s
	for i := s.wait.resend.head; i != none; i = s.tasks.slots[i].next {
		if t := &s.tasks.slots[i]; t.req.lun == l {
			t.started = s.clock.now
		}
	}
}

// endWaiting ends the requests of u of which something waits to be sent, but for those
// that came after the last look had begun: a failure of before is not theirs. What is at the
// target is let end. The caller holds s.mu.
func (us *units) endWaiting(u *unit, err error) {
	s := us.s
	waits := func(r *request) bool { return r.lun == u.lun && r.joined != u.looks }
	for i := range s.tasks.slots {
		t := &s.tasks.slots[i]
		if t.kind != kindCommand || t.ctl || t.state != taskResend && t.state != taskDelayed || !waits(t.req) {
			continue
		}
		if t.state == taskResend {
			s.wait.dropResend(t)
		} else {
			s.wait.delayed--
		}
		s.endTask(t, err)
	}
	for r := s.wait.queue.First(); r != nil; {
		next := r.node.Next()
		if waits(r) {
			s.stop(r, err)
			if r.parts == 0 {
				s.finish(r, r.cancel)
			}
		}
		r = next
	}
}
