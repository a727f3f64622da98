package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

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
		s.tm.lunReset(c, a.LUN(), s.win.CmdSN)
	}
}

// errDraining ends a connection whose target wants to be rid of it.
var errDraining = errors.New("the target asked for a logout, as one does that is shutting down or gives up this portal: try again when it is back, or over another portal")

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

// relogin lets the commands on c end, logs out because the target asked for
// it, and ends the connection; recovery does the rest.
func (c *conn) relogin(limit time.Duration) {
	s, out := c.s, logout{c}
	defer s.wg.Done()
	ctx, cancel := context.WithTimeout(s.ctx, max(limit, time.Second))
	defer cancel()
	if err := out.drain(ctx); errors.Is(err, errConnGone) {
		return
	}
	// Whether it is answered or not, the connection ends.
	_ = out.send(ctx)
	c.dm.Terminate(errDraining)
}
