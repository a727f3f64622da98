package initiator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
)

// A session over plain TCP goes to another process while it is at rest: no command is
// outstanding, none is sent, and its connection has stopped in front of a PDU. Then it is a
// few numbers and a socket. The other process goes on with it by Config.Carried, and looks at
// the LUN over it as over any session.
//
//	active ──Rest──▶ nothing is sent, what is outstanding ends ──▶ parked ──▶ Carry, or Resume: active

// CarriedSession is a session that another process has brought to rest.
type CarriedSession struct {
	FD   int `json:"-"`    // the caller's of Carry; who opens a volume with it takes it
	File int `json:"file"` // index of FD on its way

	Target    string           `json:"target"`
	Initiator string           `json:"initiator"`
	ISID      [6]byte          `json:"isid"`
	TSIH      uint16           `json:"tsih"`
	User      string           `json:"user,omitempty"`
	Portal    string           `json:"portal"`
	CmdSN     uint32           `json:"cmdsn"` // of the next command
	ExpCmdSN  uint32           `json:"exp_cmdsn"`
	MaxCmdSN  uint32           `json:"max_cmdsn"`
	StatSN    uint32           `json:"exp_statsn"`
	Params    iscsi.Params     `json:"params"`
	Stream    iscsitcp.Carried `json:"stream"`
}

// Close gives the descriptor back, if nobody has taken it.
func (k *CarriedSession) Close() {
	if k.FD >= 0 {
		syscall.Close(k.FD)
		k.FD = -1
	}
}

// errNoRest is why a session cannot go to another process.
var errNoRest = errors.New("initiator: the session is in no state to be carried")

// restLook is how often Rest looks.
const restLook = 200 * time.Microsecond

// Rest brings the LUN's session to rest until Resume. With an error, which is also how it ends
// for sessions that cannot be carried, it goes on. The caller has begun nothing that has not
// ended.
func (l *LUN) Rest(ctx context.Context) error {
	if len(l.paths) != 1 {
		return fmt.Errorf("%w: there are %d", errNoRest, len(l.paths))
	}
	return l.paths[0].restUntil(ctx)
}

// Resume lets the session go on as if nothing had happened.
func (l *LUN) Resume() { l.paths[0].resume() }

// Carry returns the session, with a descriptor that is the caller's. Preconditions: Rest.
func (l *LUN) Carry() (*CarriedSession, error) { return l.paths[0].carry() }

// restUntil is Rest.
func (s *Session) restUntil(ctx context.Context) error {
	s.mu.Lock()
	c, dm := s.conn, (*iscsitcp.Conn)(nil)
	if c != nil && s.cfg.Transport == TransportTCP && s.cfg.TLS == nil {
		dm, _ = c.dm.(*iscsitcp.Conn)
	}
	if dm == nil || s.state != StateActive || c.state != connFlowing || s.resting {
		s.mu.Unlock()
		return errNoRest
	}
	s.resting = true
	s.mu.Unlock()
	ok := dm.Park(s.idle, func() {})
	for ok && !(s.idle() && dm.Still()) {
		s.mu.Lock()
		ok = s.conn == c && c.state == connFlowing && ctx.Err() == nil
		s.mu.Unlock()
		dm.Nudge()
		time.Sleep(restLook)
	}
	if !ok {
		s.resume()
		return errNoRest
	}
	return nil
}

// idle reports whether nothing is outstanding or waits to be sent.
func (s *Session) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.tasks.slots {
		if s.tasks.slots[i].state != taskFree {
			return false
		}
	}
	return s.units.stale == 0 && s.wait.queue.Empty() && s.wait.ctlQueue.Empty()
}

// resume is Resume.
func (s *Session) resume() {
	s.mu.Lock()
	s.resting = false
	c := s.conn
	if c != nil {
		if dm, ok := c.dm.(*iscsitcp.Conn); ok {
			dm.Unpark()
		}
		s.watch.clock = s.watch.elapsed()
		c.quiet = s.watch.clock // nobody was listening
	}
	s.pump()
	s.unlock()
	if c != nil {
		c.kick()
	}
}

// carry is Carry.
func (s *Session) carry() (*CarriedSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conn
	if !s.resting || c == nil || c.state != connFlowing {
		return nil, errNoRest
	}
	k := &CarriedSession{
		Target: s.cfg.TargetName, Initiator: s.cfg.InitiatorName, ISID: s.cfg.ISID, TSIH: s.last.tsih, User: s.last.user, Portal: s.portal,
		CmdSN: s.win.CmdSN, ExpCmdSN: s.win.ExpCmdSN, MaxCmdSN: s.win.MaxCmdSN, StatSN: c.expStatSN, Params: s.last.params,
	}
	var err error
	k.Stream, k.FD, err = c.dm.(*iscsitcp.Conn).Carry()
	return k, err
}

// Check says what is wrong with a session that has come from another process with files
// descriptors of all kinds. Nothing is touched.
func (k *CarriedSession) Check(files int) error {
	if err := errors.Join(iscsi.CheckName(k.Target), iscsi.CheckName(k.Initiator), k.Stream.Check()); err != nil {
		return err
	}
	const maxLen = 1<<24 - 1
	p := &k.Params
	for _, l := range []struct {
		name     string
		v        uint32
		min, max uint32
	}{
		{"MaxRecvDataSegmentLength", p.MaxRecvDataSegmentLength, 512, maxLen}, {"MaxXmitDataSegmentLength", p.MaxXmitDataSegmentLength, 512, maxLen},
		{"MaxBurstLength", p.MaxBurstLength, 512, maxLen}, {"FirstBurstLength", p.FirstBurstLength, 512, maxLen},
		{"MaxOutstandingR2T", p.MaxOutstandingR2T, 1, 1<<16 - 1}, {"ErrorRecoveryLevel", p.ErrorRecoveryLevel, 0, 0},
		{"HeaderDigest", uint32(p.HeaderDigest), 0, uint32(iscsi.DigestCRC32C)}, {"DataDigest", uint32(p.DataDigest), 0, uint32(iscsi.DigestCRC32C)},
		{"window", k.MaxCmdSN + 1 - k.ExpCmdSN, 0, 1<<16 - 1}, {"outstanding commands", k.CmdSN - k.ExpCmdSN, 0, 1<<16 - 1},
	} {
		if l.v < l.min || l.v > l.max {
			return fmt.Errorf("initiator: a session with %s %d; want %d to %d", l.name, l.v, l.min, l.max)
		}
	}
	switch {
	case p.RDMAExtensions || p.SessionType != iscsi.NormalSession:
		return errors.New("initiator: it is no session over plain TCP")
	case len(k.Stream.Tags) > 0:
		return errors.New("initiator: a session with target transfer tags")
	case k.File < 0 || k.File >= files:
		return errors.New("initiator: no descriptor has come with the session")
	}
	return nil
}

// takeUp makes a connection of Config.Carried, which Check has accepted.
func (s *Session) takeUp(k *CarriedSession) (*conn, error) {
	if s.cfg.Transport != TransportTCP || s.cfg.TLS != nil || k.Target != s.cfg.TargetName || k.Initiator != s.cfg.InitiatorName || k.ISID != s.cfg.ISID {
		k.Close()
		return nil, errNoRest
	}
	f := os.NewFile(uintptr(k.FD), "handed over")
	k.FD = -1
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	dm, err := iscsitcp.RestoreInitiator(nc, iscsitcp.Config{Socket: s.transport.socket()}, &k.Params, &k.Stream)
	if err != nil {
		nc.Close()
		return nil, err
	}
	l := &login{
		params: k.Params, win: iscsi.SenderWindow{CmdSN: k.CmdSN, ExpCmdSN: k.ExpCmdSN, MaxCmdSN: k.MaxCmdSN},
		statSN: k.StatSN, tsih: k.TSIH, user: k.User, limits: dm.Limits(), transport: dm.Describe(), done: make(chan struct{}),
	}
	l.finish(nil)
	c := &conn{dm: dm, login: l, gone: make(chan struct{}), s: s}
	c.enter()
	s.mu.Lock()
	s.portal = k.Portal
	s.mu.Unlock()
	return c, nil
}
