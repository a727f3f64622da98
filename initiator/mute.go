package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/initiator/internal/silence"
	"softiser/internal/iscsi"
)

// mute is a session's watch over a target that says nothing though commands are
// outstanding. The session's mutex guards it.
type mute struct {
	conn     *conn         // that is watched
	watch    silence.Watch // of conn
	patience silence.Patience
	probing  bool // a goroutine has a second connection
}

// silence looks whether the target is mute, pings it, and has it probed. heard changes with
// every byte that comes. The caller holds s.mu.
func (w *watch) silence(c *conn, heard uint64) {
	s := w.s
	if w.mute.conn != c {
		w.mute.conn, w.mute.watch = c, silence.Watch{}
	}
	t := w.mute.patience.Of(s.cfg.silence())
	switch w.mute.watch.Look(t, time.Duration(s.clock.now), heard, c.works() && s.tasks.used > 0) {
	case silence.Ping:
		if !c.pinged {
			c.ping()
			c.early = c.pinged
		}
	case silence.Probe:
		if w.mute.probing {
			return
		}
		w.mute.probing = true
		s.wg.Add(1)
		go s.probe(c, t, s.portal, s.transport.plain)
	}
}

// probe tries a second connection, and gives c up when that is answered while c is still
// mute: another has taken the target's place, and does not know of c.
func (s *Session) probe(c *conn, t silence.Times, portal string, plain bool) {
	defer s.wg.Done()
	begun := time.Now()
	heard, still := s.hears(c)
	confirmed := still && silence.Confirm(s.ctx, t, func(ctx context.Context, dial time.Duration) bool {
		return s.answers(ctx, portal, plain, dial)
	}, func() bool {
		now, still := s.hears(c)
		return still && now == heard
	})
	s.mu.Lock()
	defer s.unlock()
	s.watch.mute.probing = false
	if confirmed && s.conn == c && c.works() {
		s.watch.mute.patience.GivenUp(t, begun.Sub(s.rec.login))
		c.doom(fmt.Errorf("the target has been mute for %v, though it takes new connections", (t.Probe + time.Since(begun)).Round(time.Millisecond)))
	}
}

// hears returns what changes with every byte that comes over c; false: c is not the
// session's any more.
func (s *Session) hears(c *conn) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.heard + c.dm.Stats().ReceiveCalls, s.conn == c && c.works()
}

// answers reports whether a portal of the target answers a login to a discovery session: the one that
// serves the session. Where the target was moved from says nothing of that.
// Nothing is proved there and no secret is used: a refusal is an answer. patience bounds the
// time for a connection.
func (s *Session) answers(ctx context.Context, portal string, plain bool, patience time.Duration) bool {
	cfg := s.cfg
	cfg.Auth, cfg.ISID, cfg.FallbackTCP = Auth{None: true}, randomISID(), false
	if plain {
		cfg.Transport = TransportTCP
	}
	tr := &transport{cfg: &cfg, spoken: true, patience: patience}
	c, err := open(ctx, tr, portal, iscsi.DiscoverySession, nil)
	if err == nil {
		c.dm.Terminate(nil)
		<-c.gone
	}
	_ = tr.close()
	le, refused := errors.AsType[*iscsi.LoginError](err)
	return err == nil || refused && le.Remote
}
