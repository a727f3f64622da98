package iscsi

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
	"softiser/target/portal"
)

// loginPhase is the login of one connection: the pure machine of
// internal/iscsi, with this server's policy behind its questions.
type loginPhase struct {
	c       *conn
	machine *iscsi.LoginTarget
	node    *node    // set by admit; nil in discovery sessions
	bound   bool     // set by proved: the access list binds the initiator's name to its user
	joins   *session // set by proved: the session that the connection is for; nil: a new one
	refused bool
	// excluded is set by admit: the access list keeps the initiator out. The initiator is
	// told that there is no such target; the log tells the reason.
	excluded bool
}

// startLogin makes c wait for its first Login Request. The caller starts the
// datamover afterwards.
func (c *conn) startLogin() {
	c.login = &loginPhase{c: c}
	c.login.machine = iscsi.NewLoginTarget(iscsi.LoginTargetConfig{
		Profile: c.dm.KeyProfile(),
		Admit:   c.login.admit,
		Bind:    c.login.bind,
		MaxText: c.srv.cfg.TextData,
	})
	c.timer = afterPositive(c.srv.cfg.Timeouts.Login-time.Since(c.opened), func() { c.onTimer() })
}

// take handles a PDU of the login phase, and answers and releases it.
func (l *loginPhase) take(p *iscsi.PDU) {
	c := l.c
	if l.refused {
		p.Release()
		return
	}
	if c.heard.Load() == 1 {
		if p.BHS.Opcode() != iscsi.OpLoginRequest {
			// Not a login at all: there is nothing to answer.
			p.Release()
			c.close(errUnexpected)
			return
		}
		c.place.Talks()
	}
	var resp iscsi.PDU
	done, err := l.machine.Handle(p, &resp)
	p.Release()
	if done && err == nil {
		if err = l.enterFullFeature(); err != nil {
			c.close(err)
			return
		}
	}
	if sendErr := c.dm.SendControl(&resp); sendErr != nil {
		return // ConnectionTerminateNotify follows
	}
	if err != nil {
		l.refused = true
		l.refuse(err)
		return
	}
	if done {
		l.loggedIn()
	}
}

// loggedIn ends the login phase: the final Login Response has been queued. Only now, when a
// stream that turns into RDMA (RFC 7145 §5.1) has begun to, are the limits known.
func (l *loginPhase) loggedIn() {
	c := l.c
	c.out.mu.Lock()
	c.limits = c.dm.Limits()
	c.quiet.Store(c.limits.QuietUntilFirstCommand)
	c.out.mu.Unlock()
	c.place.Done()
	c.srv.limits.sessions.Info(c.sess.log(), "login", zap.String("transport", c.dm.Describe()),
		zap.String("auth_user", l.machine.Result().AuthUser), zap.Int("window", c.sess.order.seq.win.size), zap.Uint16("cid", c.cid))
	c.login = nil
}

// ended counts and logs a connection that ended before its login was done.
func (l *loginPhase) ended(err error) {
	c := l.c
	if l.refused {
		return
	}
	c.srv.stats.loginsAborted.Add(1)
	id := l.machine.Identity()
	if err == nil {
		err = errors.New("closed by the initiator during login")
	}
	c.srv.limits.aborted.Warn(c.log, "connection ended before login was complete", zap.NamedError("reason", err),
		peerText("initiator", id.InitiatorName), peerText("target", id.TargetName))
}

// admit decides by name, address and certificate whether the initiator may log in to the
// target that it names (iscsi.LoginTargetConfig.Admit). A refusal is an *iscsi.LoginError.
func (l *loginPhase) admit(id *iscsi.LoginIdentity) (*iscsi.LoginGrant, error) {
	c := l.c
	srv := c.srv
	if srv.draining() {
		return nil, iscsi.Refuse(iscsi.LoginUnavailable, "the target is shutting down")
	}
	if id.SessionType == iscsi.DiscoverySession {
		if ok, why := srv.cfg.DiscoveryACL.allow(id.InitiatorName, c.remote.Addr()); !ok {
			return nil, iscsi.Refuse(iscsi.LoginForbidden, "discovery by %s: %s", id.InitiatorName, why)
		}
		if err := c.shown.fits(id.InitiatorName, true, false); err != nil {
			return nil, err
		}
		g := &iscsi.LoginGrant{Settings: srv.cfg.Session.settings(), Auth: srv.cfg.DiscoveryAuth.policy()}
		g.Proved = func(user string) error { return l.proved(id, user) }
		g.Settings.ErrorRecoveryLevel = 0 // there is nothing worth recovering
		return g, nil
	}
	n, acl, removed := srv.lookup(id.TargetName)
	if n == nil && !removed || n != nil && !n.offeredOn(c.portal) {
		return nil, iscsi.Refuse(iscsi.LoginNotFound, "there is no target %s on portal %s", id.TargetName, c.portal.Config().Listen)
	}
	if ok, why := acl.allow(id.InitiatorName, c.remote.Addr()); !ok {
		// The same answer as for a target that does not exist: only initiators that may
		// use a target learn of it.
		l.excluded = true
		return nil, iscsi.Refuse(iscsi.LoginNotFound, "%s may not use %s (it is told that there is no such target): %s", id.InitiatorName, id.TargetName, why)
	}
	mayHave, bound := acl.allowCertificate(id.InitiatorName, c.remote.Addr(), c.shown.names)
	if err := c.shown.fits(id.InitiatorName, mayHave, bound); err != nil {
		return nil, err
	}
	if removed {
		return nil, iscsi.Refuse(iscsi.LoginTargetRemoved, "target %s has been removed", id.TargetName)
	}
	t := n.access.Load()
	if r := t.Redirect; r.Address != "" {
		return nil, iscsi.Redirect(r.Permanent, r.Address)
	}
	l.node = n
	g := &iscsi.LoginGrant{
		Settings:       n.session().settings(),
		PortalGroupTag: c.portal.Config().Group,
		TargetAlias:    t.Alias,
		Auth:           t.Auth.policy(),
		Proved:         func(user string) error { return l.proved(id, user) },
	}
	g.Settings.ErrorRecoveryLevel = min(g.Settings.ErrorRecoveryLevel, c.dm.Limits().RecoveryLevel)
	if id.TSIH != 0 {
		g.Numbers = func() (uint32, uint32) { return l.joins.order.seq.win.show() }
	}
	return g, nil
}

// proved decides, after authentication, whether user ("" without) may log in under the
// initiator name of the login, and join the session that it names by a TSIH
// (iscsi.LoginGrant.Proved).
func (l *loginPhase) proved(id *iscsi.LoginIdentity, user string) error {
	if n := l.node; n != nil {
		var ok bool
		if ok, l.bound = n.access.Load().ACL.allowUser(id.InitiatorName, l.c.remote.Addr(), user); !ok {
			return iscsi.Refuse(iscsi.LoginForbidden, "the access list of %s binds the name %s to other users than %q", n.cfg.Name, id.InitiatorName, user)
		}
	}
	if id.TSIH != 0 {
		return l.admitMember(id, user)
	}
	return nil
}

// admitMember decides whether the connection may join the session that its login names (RFC
// 7143 §6.3.1). Target, access list and authentication have been checked as for a new session.
func (l *loginPhase) admitMember(id *iscsi.LoginIdentity, user string) error {
	c := l.c
	s := c.srv.sessionByTSIH(id.TSIH)
	switch {
	case s == nil || s.key.initiator != iscsi.NormalizeName(id.InitiatorName) || s.key.isid != id.ISID || s.user != user:
		return iscsi.Refuse(iscsi.LoginNoSession, "there is no session with TSIH %#04x for %s; log in with TSIH 0", id.TSIH, id.InitiatorName)
	case id.SessionType == iscsi.DiscoverySession || s.discovery():
		return iscsi.Refuse(iscsi.LoginCannotInclude, "discovery sessions have one connection")
	case s.key.target != iscsi.NormalizeName(id.TargetName):
		return iscsi.Refuse(iscsi.LoginCannotInclude, "session %#04x is with %s, not with %s", id.TSIH, s.key.target, id.TargetName)
	case s.key.group != c.portal.Config().Group:
		// A session has one target portal group (RFC 7143 §4.1.2).
		return iscsi.Refuse(iscsi.LoginCannotInclude, "session %#04x is with portal group %d, this is portal group %d", id.TSIH, s.key.group, c.portal.Config().Group)
	case c.kind != s.kind && (c.kind == portal.TLS || s.kind == portal.TLS):
		return iscsi.Refuse(iscsi.LoginCannotInclude, "session %#04x: its connections are all over TLS, or none", id.TSIH)
	case c.kind != portal.TCP && c.kind != portal.TLS || s.overRDMA():
		return iscsi.Refuse(iscsi.LoginTooManyConnections, "session %#04x: a session over iSER has one connection", id.TSIH)
	}
	l.joins = s
	return nil
}

// bind makes the session, or joins the one that admitMember has found
// (iscsi.LoginTargetConfig.Bind). It waits until an old session of the same initiator port
// has ended (session reinstatement, RFC 7143 §6.3.5).
func (l *loginPhase) bind(r *iscsi.LoginResult) (iscsi.LoginBinding, error) {
	c := l.c
	if s := l.joins; s != nil {
		return s.conns.join(c, r)
	}
	s := l.newSession(r)
	c.cid, c.params = r.CID, s.params // set first, because others find the session once it is registered
	if err := c.srv.register(s, c); err != nil {
		return iscsi.LoginBinding{}, err
	}
	c.sess = s
	return iscsi.LoginBinding{TSIH: s.tsih, ExpCmdSN: s.order.seq.win.ExpCmdSN, MaxCmdSN: s.order.seq.win.MaxCmdSN}, nil
}

// newSession builds the session for a login that has passed.
func (l *loginPhase) newSession(r *iscsi.LoginResult) *session {
	c := l.c
	size := c.srv.cfg.Commands
	if most := c.dm.Limits().MaxCommands; most > 0 {
		size = max(min(size, most-immediateCredits), 1)
	}
	s := &session{
		srv:     c.srv,
		node:    l.node,
		key:     sessionKey{initiator: iscsi.NormalizeName(r.InitiatorName), isid: r.ISID, group: c.portal.Config().Group},
		user:    r.AuthUser,
		bound:   l.bound,
		share:   shareOf(l.node, r.AuthUser, c),
		account: accountOf(r.AuthUser, c),
		known:   l.knownTo(l.node, r.InitiatorName, r.AuthUser),
		params:  r.Params,
		base:    c.log,
		kind:    c.kind,
		erl:     r.Params.ErrorRecoveryLevel,
		born:    time.Now(),
		done:    make(chan struct{}),
	}
	s.make([]*conn{c}, size, r.CmdSN)
	if s.node != nil {
		s.key.target = s.node.cfg.Name
	}
	return s
}

// make makes the parts of a session with a window of size commands.
func (s *session) make(conns []*conn, size int, cmdSN uint32) {
	s.assemble()
	s.order.takesTurns = s.params.MaxConnections > 1 || s.erl == 2
	s.conns.members.conns = conns
	s.manager.lines.Every, s.manager.lines.Burst = time.Second, 16
	s.broken = func(err error) {
		s.log().Error("the session ends", zap.Error(err))
		s.shut(err)
	}
	s.order.seq.init(size, cmdSN, s.srv.cfg.Staging)
	s.cmds.tags = newTagTable(s.order.seq.win.slots)
}

// immediateCredits are receive credits kept for PDUs outside the CmdSN window:
// NOP-Out, task management, Text and Logout.
const immediateCredits = 8

// enterFullFeature prepares everything for the first command, just before the
// final Login Response is queued.
func (l *loginPhase) enterFullFeature() error {
	c := l.c
	res := l.machine.Result()
	c.dm.NoticeKeyValues(&c.params)
	c.text.ttt = iscsi.ReservedTag
	c.quiet.Store(true) // nothing is sent before the limits of the full feature phase are in force
	c.out.statSN.Store(res.StatSN)
	c.beat.ping.heard = c.heard.Load()
	if !c.state.advance(connFull) {
		return errLoginTimeout
	}
	c.entered = c.srv.now()
	if t := c.srv.cfg.Timeouts.beat(); t > 0 {
		c.timer.Reset(t)
	} else {
		c.timer.Stop()
	}
	return c.dm.Enable()
}

// refusalOf returns the kind of refusal, for counters and the log, and the Login Response
// status (RFC 7143 §11.13.5) of an error that has ended a login.
func (l *loginPhase) refusalOf(err error) (refusal, iscsi.LoginStatus) {
	status := iscsi.LoginTargetFailure
	var le *iscsi.LoginError
	if errors.As(err, &le) {
		status = le.Status
	}
	if l.excluded {
		return refusedAccess, status
	}
	switch status {
	case iscsi.LoginAuthFailure:
		return refusedSecret, status
	case iscsi.LoginForbidden:
		return refusedAccess, status
	case iscsi.LoginNotFound, iscsi.LoginTargetRemoved:
		return refusedNoTarget, status
	case iscsi.LoginMovedTemporarily, iscsi.LoginMovedPermanently:
		return refusedRedirected, status
	case iscsi.LoginTooManyConnections, iscsi.LoginCannotInclude, iscsi.LoginNoSession:
		return refusedConnection, status
	case iscsi.LoginOutOfResources:
		return refusedNoRoom, status
	case iscsi.LoginUnavailable:
		return refusedUnavailable, status
	}
	if status.Class() == 3 {
		return refusedInternal, status
	}
	return refusedNegotiation, status
}

// refuse closes a connection whose login has failed, once the answer is out, and
// tells the operator why.
func (l *loginPhase) refuse(err error) {
	c := l.c
	id := l.machine.Identity()
	why, status := l.refusalOf(err)
	c.srv.refusals.note(c.log, why, peerText("reason", err.Error()), zap.String("status", fmt.Sprintf("%04x", uint16(status))),
		peerText("initiator", id.InitiatorName), peerText("target", id.TargetName))
	if c.state.advance(connClosing) {
		c.dm.Terminate(nil)
	}
}
