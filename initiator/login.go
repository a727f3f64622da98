package initiator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"softiser/initiator/blockio"
	"softiser/initiator/internal/wrongport"
	"softiser/internal/iscsi"
)

// login runs the login machine of internal/iscsi on a connection. The machine
// and everything else here run on the datamover's receive goroutine, so that
// the switch to full feature phase falls between two PDUs; the dialling
// goroutine waits on done.
type login struct {
	machine *iscsi.LoginInitiator
	params  iscsi.Params       // the outcome
	win     iscsi.SenderWindow // the outcome
	statSN  uint32
	tsih    uint16
	user    string // CHAP user that was proved
	limits  iscsi.Limits

	transport string // the datamover in words
	over      bool   // full feature phase; of the receive goroutine
	heard     bool   // something has been answered; of the receive goroutine

	once sync.Once
	done chan struct{} // closed when err is final
	err  error
}

// finish records the first outcome.
func (l *login) finish(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.done)
	})
}

// fail ends a login that is still running. It is called on the receive goroutine.
func (l *login) fail(err error) {
	if errors.Is(err, io.EOF) && !l.heard {
		err = fmt.Errorf("%w: the other end closed it without an answer; does it speak iSCSI there, and to this address?", err)
	}
	l.finish(blockio.NoConnection(fmt.Errorf("connection lost during login: %w", err)))
}

// notify takes one PDU of the login.
func (l *login) notify(c *conn, p *iscsi.PDU) {
	defer p.Release()
	l.heard = true
	var req iscsi.PDU
	over, err := l.machine.Next(p, &req)
	switch {
	case err != nil:
		l.finish(err)
	case !over:
		if err := c.dm.SendControl(&req); err != nil {
			l.finish(err)
		}
	default:
		r := l.machine.Result()
		l.params = r.Params
		l.win = iscsi.SenderWindow{CmdSN: r.CmdSN, ExpCmdSN: r.ExpCmdSN, MaxCmdSN: r.MaxCmdSN}
		l.statSN, l.tsih, l.user = r.StatSN, r.TSIH, r.AuthUser
		c.dm.NoticeKeyValues(&l.params)
		if err := c.dm.Enable(); err != nil {
			l.finish(err)
			return
		}
		l.limits, l.transport = c.dm.Limits(), c.dm.Describe()
		c.enter()
		l.finish(nil)
	}
}

// enter begins the full feature phase.
func (c *conn) enter() {
	c.expStatSN = c.login.statSN
	c.takeLimits(c.login.limits)
	c.login.over = true
	c.setState(connEntered)
}

// connect dials the target and logs in, following redirections. The connection
// is not the session's yet.
func (s *Session) connect(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.LoginTimeout,
		wrongport.Silent("no login", s.cfg.LoginTimeout))
	defer cancel()
	addr := s.cfg.Address
	for hops := 0; ; hops++ {
		c, err := open(ctx, &s.transport, addr, iscsi.NormalSession, s)
		var le *iscsi.LoginError
		if err == nil {
			s.mu.Lock()
			s.portal = addr
			s.mu.Unlock()
			return c, nil
		}
		if !errors.As(err, &le) || !le.Remote || le.Status.Class() != 1 {
			return nil, fmt.Errorf("initiator: %s: %w", s.cfg.URL(), err)
		}
		// RFC 7143 §11.13.5: the portal says where the target is. A permanent
		// move is followed like a temporary one: what is configured is the user's.
		p, perr := iscsi.ParseTargetAddress(le.Redirect)
		if perr != nil || hops == 7 {
			return nil, fmt.Errorf("initiator: %s: cannot follow the redirection to %q (hop %d): %w", s.cfg.URL(), le.Redirect, hops+1, errors.Join(err, perr))
		}
		addr = onLink(p.Address, addr)
	}
}

// open makes a connection and logs in on it, for a session or, with s nil, for
// discovery. When no CHAP algorithms were chosen and the target refuses the
// list of all, it tries again with MD5 alone: there are targets that end the
// login at a number they do not know, and tgt means SHA-1 by 7.
func open(ctx context.Context, tr *transport, addr string, typ iscsi.SessionType, s *Session) (*conn, error) {
	c, err := tr.login(ctx, addr, typ, s)
	var le *iscsi.LoginError
	a := &tr.cfg.Auth
	if tr.onlyMD5 || a.None || a.Secret == "" || len(a.Algorithms) > 0 || !errors.As(err, &le) || !le.Remote ||
		le.Status != iscsi.LoginAuthFailure && le.Status != iscsi.LoginInitiatorFailure {
		return c, err
	}
	tr.onlyMD5 = true
	if c, err = tr.login(ctx, addr, typ, s); err != nil {
		tr.onlyMD5 = false
	}
	return c, err
}

// login makes one connection and one attempt to log in.
func (tr *transport) login(ctx context.Context, addr string, typ iscsi.SessionType, s *Session) (*conn, error) {
	dm, err := tr.dial(ctx, addr)
	if err != nil {
		return nil, blockio.NoConnection(dialError(ctx, addr, err))
	}
	lc := loginConfig(tr.cfg, typ)
	lc.Profile = dm.KeyProfile()
	if tr.onlyMD5 && lc.Auth != nil {
		lc.Auth.Algorithms = []iscsi.CHAPAlgorithm{iscsi.CHAPMD5}
	}
	l := &login{machine: iscsi.NewLoginInitiator(lc), done: make(chan struct{})}
	c := &conn{dm: dm, login: l, gone: make(chan struct{}), s: s}
	if s == nil {
		c.text = &textExchange{answers: make(chan textAnswer, 4)}
	}
	dm.Start(c)
	var req iscsi.PDU
	l.machine.Start(&req)
	if err := dm.SendControl(&req); err != nil {
		l.finish(err)
	}
	dm.Push()
	select {
	case <-l.done:
	case <-ctx.Done():
		l.finish(context.Cause(ctx))
	}
	if l.err == nil && typ == iscsi.NormalSession && !l.params.RDMAExtensions && tr.wantsRDMA() {
		l.err = errors.New("the target answered RDMAExtensions=No: it serves this connection as plain iSCSI only; use iscsi://, or allow the fall-back to TCP")
	}
	if l.err != nil {
		dm.Terminate(l.err)
		<-c.gone
		return nil, l.err
	}
	return c, nil
}

// dialError adds the address to the error of a dial, and the cause of a deadline.
func dialError(ctx context.Context, addr string, err error) error {
	if c := context.Cause(ctx); c != nil && errors.Is(err, context.DeadlineExceeded) {
		err = c
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return err // the address is part of its text already
	}
	return fmt.Errorf("%s: %w", addr, err)
}

// loginConfig translates the configuration.
func loginConfig(cfg *Config, typ iscsi.SessionType) iscsi.LoginInitiatorConfig {
	set := iscsi.DefaultSettings()
	set.HeaderDigest, set.DataDigest = digests(cfg.HeaderDigest), digests(cfg.DataDigest)
	set.InitialR2T, set.ImmediateData = cfg.InitialR2T, !cfg.NoImmediateData
	set.MaxRecvDataSegmentLength = uint32(cfg.MaxRecvDataLength)
	set.InitiatorRecvDataSegmentLength = uint32(cfg.MaxRecvDataLength)
	set.MaxBurstLength, set.FirstBurstLength = uint32(cfg.MaxBurstLength), uint32(cfg.FirstBurstLength)
	set.MaxOutstandingR2T = uint32(cfg.MaxOutstandingR2T)
	set.DefaultTime2Wait, set.DefaultTime2Retain = uint32(cfg.Time2Wait), uint32(cfg.Time2Retain)
	return iscsi.LoginInitiatorConfig{
		InitiatorName: cfg.InitiatorName, InitiatorAlias: cfg.InitiatorAlias,
		TargetName: cfg.TargetName, SessionType: typ, ISID: cfg.ISID, CmdSN: 1,
		Settings: set, Auth: auth(&cfg.Auth),
	}
}

func digests(names []string) (ds []iscsi.Digest) {
	for _, n := range names {
		d := iscsi.DigestNone
		if n == "CRC32C" {
			d = iscsi.DigestCRC32C
		}
		if !slices.Contains(ds, d) {
			ds = append(ds, d)
		}
	}
	return ds
}

// adopt makes c, which has logged in, the connection of the session. It returns false if c has
// been lost already. The caller holds s.mu.
func (s *Session) adopt(c *conn) bool {
	if c.state != connEntered {
		return false
	}
	s.conn, s.last, s.rec.login = c, c.login, time.Now()
	s.win = c.login.win
	s.stats.Logins++
	return true
}
