package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/internal/iscsi"
)

// logout is the orderly end of a connection, and with it of the session at the target.
type logout struct{ *conn }

// run drains the session, sends Logout and closes the connection. What the
// target does not answer is not waited for longer than LogoutTimeout.
func (l logout) run() error {
	c, s := l.conn, l.s
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.LogoutTimeout)
	defer cancel()
	if err := l.drain(ctx); err == nil {
		err = l.send(ctx)
		if err != nil && !errors.Is(err, errConnGone) && !errors.Is(err, ErrSessionLost) {
			c.dm.Terminate(nil)
			<-c.gone
			return fmt.Errorf("initiator: %s: logout: %w", s.cfg.URL(), err)
		}
	}
	c.dm.Terminate(nil)
	<-c.gone
	return nil
}

// drain waits until nothing is outstanding on the connection; while that flows, until nothing
// waits to be sent either.
func (l logout) drain(ctx context.Context) error {
	c, s := l.conn, l.s
	s.mu.Lock()
	if s.out.rest == nil {
		s.out.rest = make(chan struct{})
	}
	rest := s.out.rest
	s.unlock() // closes rest if nothing is outstanding
	select {
	case <-rest:
		return nil
	case <-c.gone:
		return errConnGone
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send ends the session at the target and waits for its answer.
func (l logout) send(ctx context.Context) error {
	c, s := l.conn, l.s
	done := make(chan error, 1)
	s.mu.Lock()
	t := s.tasks.control(kindLogout)
	if t == nil || c.state == connDead {
		if t != nil {
			s.tasks.put(t)
		}
		s.mu.Unlock()
		return errConnGone
	}
	s.pdu.BHS.NewLogoutRequest(iscsi.LogoutSession).SetITT(t.itt())
	t.deadline = s.clock.elapsed() + int64(s.cfg.LogoutTimeout)
	t.answer = func(p *iscsi.PDU, err error) {
		if err == nil {
			x := p.BHS.LogoutResponse()
			// Time2Retain is for tasks that are reassigned, at error recovery level 2.
			s.mu.Lock()
			c.waitTold, c.wait = true, time.Duration(x.Time2Wait())*time.Second
			s.mu.Unlock()
			if x.Response() != iscsi.LogoutClosed {
				err = fmt.Errorf("the target answered with response %d", x.Response())
			}
		}
		done <- err
	}
	c.queueImmediate()
	s.unlock()
	c.kick()
	select {
	case err := <-done:
		if err == nil {
			c.awaitClose()
		}
		return err
	case <-c.gone:
		return errConnGone
	case <-ctx.Done():
		return fmt.Errorf("no answer within %v", s.cfg.LogoutTimeout.Round(time.Millisecond))
	}
}

// closeGrace is how long the target may take to close the connection after its
// Logout Response.
const closeGrace = 200 * time.Millisecond

// awaitClose lets the target be the first to close after a logout. LIO over siw
// has not yet seen the completion of its Logout Response when a fast initiator
// reads it; a FIN at that moment fails the Send and makes iscsit_release_cmd
// warn in the kernel's log.
func (c *conn) awaitClose() {
	t := time.NewTimer(closeGrace)
	defer t.Stop()
	select {
	case <-c.gone:
	case <-t.C:
	}
}
