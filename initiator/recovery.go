package initiator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"softiser/initiator/blockio"
	"softiser/initiator/internal/pause"
	"softiser/initiator/internal/silence"
	"softiser/internal/iscsi"
)

// Recovery is session reinstatement (RFC 7143 §6.3.5), the recovery of error
// recovery level 0: log in again with the same names and ISID and TSIH 0. The
// target ends the old session and all its tasks before it answers; only then
// is a command sent again, so that no earlier copy of a WRITE can overtake a
// later one. The session never logs out in order to heal.
//
//	loss      tasks: idempotent → resend list, in CmdSN order
//	                 others     → ErrOutcomeUnknown
//	attempts  after 0.1 s, then at intervals that double up to 5 s, with jitter;
//	          but at most 0.8 s apart while the host refuses connections, and 0.2 s
//	          in the first seconds, when attempts are cheap; the first interval
//	          grows if connections are lost soon after their login
//	look      the LUNs are still the same (VPD page 83h), or the session fails
//	replay    resend list, then what was submitted meanwhile
//
// ReplacementTimeout runs from the loss until a command is answered again, so that a
// target that accepts the login and then drops the connection cannot hold I/O for
// ever. When it is over the session fails or, with KeepTrying, fails its commands and
// keeps trying to log in.

// recovery logs in again while there is no connection. The session's mutex guards it.
type recovery struct {
	s       *Session
	lost    time.Time     // when the session stopped making progress; zero while it does
	minWait time.Duration // the target's Time2Wait: no login before it is over
	login   time.Time     // of the last login
	backoff time.Duration // before the first attempt after the next loss
	order   []uint16      // scratch of retire: slots of the commands that are sent again
	late    []*request    // see holdBack; one entry for each part that is held back
}

// Back-off between attempts to log in.
const (
	firstRetry = 100 * time.Millisecond
	maxRetry   = 5 * time.Second
	// maxRefused is the longest wait while the target's host refuses connections, or has no
	// address: the target is being started, and its users wait for it.
	maxRefused = 800 * time.Millisecond
	// startGrace is how long after a loss "target not found" does not end the attempts: a
	// server that has just been started may listen before it has its targets (tgt does).
	startGrace = 20 * time.Second
)

// ended handles the end of connection c with err: commands are retired, and the login loop is
// started, unless c is not the session's (any more).
func (rec *recovery) ended(c *conn, err error) {
	s := rec.s
	s.mu.Lock()
	if c.state == connLeaving && !errors.Is(err, errDraining) { // the target was the first to close
		err = fmt.Errorf("%w (%w)", errDraining, err)
	}
	c.dead = err
	c.setState(connDead)
	if s.conn != c {
		s.unlock()
		return
	}
	s.conn = nil
	s.stats.Losses++
	s.caches.resets++
	s.units.told++
	s.addStats(c)
	now := time.Now()
	if c.proved || rec.lost.IsZero() {
		rec.lost = now
	}
	rec.retire(c, fmt.Errorf("%w: %w", ErrSessionLost, err))
	switch s.state {
	case StateActive:
		s.event(Event{Kind: EventLost, Err: err})
		if s.cfg.FailNow && !s.cfg.KeepTrying {
			rec.give(err)
			break
		}
		s.setState(StateRecovering)
		if s.cfg.FailNow {
			rec.down(err)
		}
		// The new login reinstates the session, and must not come before DefaultTime2Wait is
		// over (RFC 7143 §13.15). LIO needs these two seconds: an earlier login races with the
		// end of the old session, and may hang the portal group. A Logout Response has a
		// Time2Wait of its own (§11.15.3), which then counts instead.
		wait := time.Duration(s.last.params.DefaultTime2Wait) * time.Second
		if c.waitTold {
			wait = c.wait
		}
		rec.minWait = max(rec.minWait, wait)
		s.wg.Add(1)
		go rec.run()
	case StateClosing:
		s.failAll(ErrClosed)
	}
	s.unlock()
}

// retire ends every PDU and command that was outstanding on the lost connection c, except the
// commands that are sent again on the next one. lost is the error for those without a better
// one. The caller holds s.mu.
func (rec *recovery) retire(c *conn, lost error) {
	s := rec.s
	rec.order = rec.order[:0]
	for i := range s.tasks.slots {
		switch t := &s.tasks.slots[i]; {
		case t.state == taskFree:
		case t.kind == kindCommand:
			rec.retireCommand(c, t, lost)
		default:
			if t.kind == kindTMF {
				s.tm.over(t)
			}
			s.endTask(t, lost)
		}
	}
	rec.queueAgain()
	rec.endWaiting(lost)
}

// retireCommand ends a command, or adds it to those that are sent again.
func (rec *recovery) retireCommand(c *conn, t *task, lost error) {
	s := rec.s
	sent := t.state == taskSent || t.state == taskAborting
	if sent {
		c.dm.ReleaseTask(&t.bufs)
	}
	failed := t.state == taskAborting && t.abortErr == ErrTimeout || t.state == taskSent && t.req.cancel != nil
	if err := rec.verdict(t, sent, lost); err != nil {
		if !failed || !rec.holdBack(t, err) {
			s.endTask(t, err)
		}
		return
	}
	if t.replays == 0 {
		t.lost = s.clock.elapsed()
	}
	t.replays++
	rec.order = append(rec.order, t.index)
}

// verdict returns the error with which a command ends; nil: it is sent again. sent says that the
// target may have received it.
func (rec *recovery) verdict(t *task, sent bool, lost error) error {
	s := rec.s
	switch {
	case t.state == taskAborting && t.abortErr == ErrTimeout:
		return blockio.ErrTimeoutUnknown
	case t.state == taskAborting:
		s.unknown(t.req)
		return t.abortErr
	case t.req.cancel != nil:
		if sent {
			s.unknown(t.req)
		}
		return t.req.cancel
	case t.ctl:
		return lost
	case s.units.of(t.req.lun) == nil:
		return ErrClosed // the LUN is detached: recovery will not check it, so nothing may be sent again
	case sent && !t.req.idempotent():
		s.stats.OutcomeUnknown++
		return ErrOutcomeUnknown
	}
	since := time.Duration(s.clock.elapsed() - t.lost)
	if t.replays > 0 && s.cfg.ReplacementTimeout > 0 && since >= s.cfg.ReplacementTimeout {
		// The command itself may be what brings the target down.
		return fmt.Errorf("%w: the connection was lost %d times in %v while %v was outstanding",
			ErrSessionLost, t.replays+1, since.Round(time.Second), t.opcode())
	}
	return nil
}

// queueAgain has the commands that are sent again wait in the order of their CmdSN.
func (rec *recovery) queueAgain() {
	s := rec.s
	slices.SortFunc(rec.order, func(a, b uint16) int {
		return int(int32(s.tasks.slots[a].cmdSN - s.tasks.slots[b].cmdSN))
	})
	s.wait.forget()
	s.wait.delayed, s.tm.outstanding = 0, 0
	for _, i := range rec.order {
		s.wait.pushResend(&s.tasks.slots[i])
	}
}

// endWaiting ends requests that have not been sent: those to LUNs that are detached, and commands
// of our own (looks at LUNs), which the code that needs them sends again.
func (rec *recovery) endWaiting(lost error) {
	s := rec.s
	for r := s.wait.queue.First(); r != nil; {
		next := r.node.Next()
		if s.units.of(r.lun) == nil {
			s.wait.queue.remove(r)
			s.finish(r, ErrClosed)
		}
		r = next
	}
	for r := s.wait.ctlQueue.First(); r != nil; r = s.wait.ctlQueue.First() {
		s.wait.ctlQueue.remove(r)
		s.finish(r, lost)
	}
}

// holdBack postpones the end of a command that changes blocks, and would now end with err because
// it timed out, or because another part of its request failed, when its connection was lost.
// The target may still carry it out until the next login has ended the old session. A LUN with
// several sessions is the reason: the caller, told of the failure, might write the same blocks
// again over another session, and the old command could overwrite that. It reports false, and
// does nothing, where that cannot happen. See endLate. The caller holds s.mu.
func (rec *recovery) holdBack(t *task, err error) bool {
	r := t.req
	if len(r.lun.paths) < 2 || !rowOf(r.Op).changes {
		return false
	}
	rec.s.tasks.put(t)
	rec.s.stop(r, err)
	rec.late = append(rec.late, r)
	return true
}

// give fails the session for good. The caller holds s.mu.
func (rec *recovery) give(err error) {
	s := rec.s
	s.err = err
	s.setState(StateFailed)
	s.event(Event{Kind: EventFailed, Err: err})
	s.failAll(s.lostError())
}

// down enters StateDown: requests that wait for the target fail, as do new ones until a login
// succeeds. The caller holds s.mu.
func (rec *recovery) down(err error) {
	s := rec.s
	s.err = err
	if s.state == StateDown {
		return
	}
	s.setState(StateDown)
	s.event(Event{Kind: EventDown, Err: err})
	s.failAll(s.lostError())
}

// runs reports whether the session is trying to log in again. The caller holds s.mu.
func (rec *recovery) runs() bool {
	s := rec.s
	return s.state == StateRecovering || s.state == StateDown
}

// run logs in until it works, is refused for good, or takes too long.
func (rec *recovery) run() {
	s := rec.s
	defer s.wg.Done()
	s.mu.Lock()
	lost := rec.lost
	// A target that drops us soon after each login is asked less and less often.
	if time.Since(rec.login) > 2*s.cfg.maxRetry {
		rec.backoff = 0
	}
	rec.backoff = min(max(rec.backoff*2, s.cfg.firstRetry), s.cfg.maxRetry)
	wait, atLeast := rec.backoff, rec.minWait // the target's Time2Wait is not shortened
	rec.minWait = 0
	over := s.state == StateDown // commands fail already
	var said string              // the last failure that was told
	var saidAt time.Time
	s.mu.Unlock()
	for {
		pause := max(jitter(wait), atLeast)
		atLeast = 0
		if t := s.cfg.ReplacementTimeout; t > 0 && !over {
			left := t - time.Since(lost)
			if left > 0 {
				pause = min(pause, left)
			} else if over = rec.fail(fmt.Errorf("no session within the replacement time-out of %v", t)); !over {
				return
			}
		}
		if !rec.sleep(pause) {
			return
		}
		s.transport.pace.Attempt(time.Since(lost))
		err := rec.reinstate()
		if err == nil || s.ctx.Err() != nil {
			return
		}
		if permanent(err) && !(starting(err) && time.Since(lost) < startGrace) {
			if over = rec.fail(err); !over {
				return
			}
			wait = s.cfg.maxRetry
		}
		wait = s.transport.pace.Next(err, min(wait*2, s.cfg.maxRetry))
		switch {
		case errors.Is(err, silence.ErrMute):
			wait = s.cfg.firstRetry
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH):
			wait = min(wait, maxRefused)
		}
		s.mu.Lock()
		s.stats.LoginFailures++
		// Attempts may go on for ever, quickly. The same error is reported again only once
		// in maxRetry, and not at all when commands fail already.
		if said != err.Error() || !over && time.Since(saidAt) >= s.cfg.maxRetry {
			said, saidAt = err.Error(), time.Now()
			s.event(Event{Kind: EventRetry, Err: err, Wait: wait, Down: time.Since(lost)})
		}
		s.unlock()
	}
}

// sleep waits; false means that the session is being closed.
func (rec *recovery) sleep(d time.Duration) bool { return pause.For(rec.s.ctx, d) }

// fail gives up the session because of err, or, with KeepTrying, only its requests (down); it
// does neither if the session is being closed. It returns true if the attempts go on.
func (rec *recovery) fail(err error) (goOn bool) {
	s := rec.s
	s.mu.Lock()
	if goOn = s.cfg.KeepTrying && rec.runs(); goOn {
		rec.down(err)
	} else if s.state == StateRecovering {
		rec.give(err)
	}
	s.unlock()
	return goOn
}

// reinstate makes one attempt: login, check of the LUNs, replay.
func (rec *recovery) reinstate() error {
	s := rec.s
	c, err := rec.connect()
	if err != nil {
		return err
	}
	s.mu.Lock()
	if !rec.runs() || !s.adopt(c) {
		s.unlock()
		c.dm.Terminate(nil)
		<-c.gone
		return errConnGone
	}
	for _, u := range s.units.list {
		s.units.set(u, true, c)
	}
	s.unlock()
	if err := s.units.lookAtAll(c); err != nil {
		c.drop(err)
		return err
	}
	s.mu.Lock()
	if s.conn != c || c.state != connEntered || !rec.runs() {
		s.unlock()
		c.drop(errConnGone)
		return errConnGone
	}
	n := 0
	s.clock.now = s.clock.elapsed()
	for i := s.wait.resend.head; i != none; i = s.tasks.slots[i].next {
		// CommandTimeout starts anew: the time without a connection does not count.
		s.tasks.slots[i].started = s.clock.now
		s.stats.Replayed++
		n++
	}
	c.setState(connFlowing)
	s.err = nil
	s.setState(StateActive)
	for _, u := range s.units.list {
		if s.units.set(u, u.stale, nil); u.stale {
			s.units.look(u) // the LUN has reported a change since recovery looked at it
		}
	}
	s.event(Event{Kind: EventRecovered, Detail: c.dm.Describe(), Down: time.Since(rec.lost), Replayed: n})
	rec.s.endLate(nil)
	s.pump()
	s.unlock()
	c.kick()
	return nil
}

// connect logs in. It gives up an attempt that gets no answer when a second connection to the
// target does get one (see initiator/internal/silence).
func (rec *recovery) connect() (c *conn, err error) {
	s := rec.s
	s.mu.Lock()
	t, plain := s.watch.mute.patience.Of(s.cfg.silence()), s.transport.plain
	s.mu.Unlock()
	err = silence.Attempt(s.ctx, t, func(ctx context.Context) (err error) {
		c, err = s.connect(ctx)
		return err
	}, func(ctx context.Context, dial time.Duration) bool { return s.answers(ctx, s.cfg.Address, plain, dial) }) // where the next one begins
	if errors.Is(err, silence.ErrMute) {
		s.mu.Lock()
		s.watch.mute.patience.GivenUp(t, 0)
		s.mu.Unlock()
	}
	return c, err
}

// drop ends a connection that recovery cannot use, and waits for its end.
func (c *conn) drop(err error) {
	c.dm.Terminate(err)
	<-c.gone
}

// starting reports whether err is the refusal that a target gives which has not finished its start
// (Target Not Found, RFC 7143 §11.13.5).
func starting(err error) bool {
	var le *iscsi.LoginError
	return errors.As(err, &le) && le.Status == iscsi.LoginNotFound
}

// permanent reports whether trying to log in again cannot help: the target
// refused us by name, secret or access list, or it is not the same any more.
func permanent(err error) bool {
	if errors.Is(err, ErrLUNChanged) {
		return true
	}
	var le *iscsi.LoginError
	if !errors.As(err, &le) {
		return false
	}
	switch le.Status {
	case iscsi.LoginTooManyConnections, iscsi.LoginInitiatorFailure:
		return false
	case iscsi.LoginAuthFailure:
		return true // also when it is the target that failed to prove itself
	}
	return le.Remote && le.Status.Class() == 2
}
