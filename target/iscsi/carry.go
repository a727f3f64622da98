package iscsi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"softiser/internal/handover"
	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/iser"
	"softiser/target/portal"
	"softiser/target/scsi"
)

// Carried is what goes to the process that takes the place of this one.
type Carried struct {
	Targets  []CarriedTarget  `json:"targets,omitempty"`
	Sessions []CarriedSession `json:"sessions,omitempty"`
}

// CarriedTarget is what initiators and the administrator have changed of a target's units.
type CarriedTarget struct {
	Name  string              `json:"name"`
	Units []scsi.CarriedState `json:"units"`
}

// CarriedSession is a session that stands still.
type CarriedSession struct {
	Initiator string    `json:"initiator"`
	ISID      [6]byte   `json:"isid"`
	Target    string    `json:"target"`
	Group     uint16    `json:"portal_group"`
	TSIH      uint16    `json:"tsih"`
	User      string    `json:"user,omitempty"` // see session
	Bound     bool      `json:"bound,omitempty"`
	Known     bool      `json:"known,omitempty"`
	Born      time.Time `json:"born"`

	ExpCmdSN uint32 `json:"exp_cmdsn"`
	MaxCmdSN uint32 `json:"max_cmdsn"`
	Told     uint32 `json:"told"` // the MaxCmdSN that the initiator knows

	Units []scsi.CarriedUnit  `json:"units,omitempty"`
	Conns []CarriedConnection `json:"connections"` // in the order in which they joined
}

// CarriedConnection is a connection of it.
type CarriedConnection struct {
	FD   int `json:"-"`    // the caller's of Carry, and Adopt's
	File int `json:"file"` // index of FD on its way
	standing
}

// standing is what a connection is that stands still. All connections of a session have the
// same parameters, but for digests and lengths of data segments.
type standing struct {
	CID    uint16    `json:"cid"`
	Portal string    `json:"portal"` // portal.Config.Listen
	Opened time.Time `json:"opened"`
	StatSN uint32    `json:"statsn"`
	Ping   uint32    `json:"ping"` // pingState.tag

	Params iscsi.Params     `json:"params"`
	Stream iscsitcp.Carried `json:"stream"`         // of one over TCP
	RDMA   *iser.Carried    `json:"rdma,omitempty"` // of one over iSER, nil for others
}

// kind is what the connection has begun as.
func (k *standing) kind() portal.Transport {
	if k.RDMA != nil && !k.RDMA.Stream {
		return portal.RDMA
	}
	return portal.TCP
}

// OverRDMA reports whether it is a session of iSER.
func (k *CarriedSession) OverRDMA() bool { return len(k.Conns) > 0 && k.Conns[0].RDMA != nil }

// Handover is how the sessions of a front end go from one process to the next.
type Handover struct{ srv *Frontend }

// Handover returns the part of the front end that hands sessions over, and takes them.
func (s *Frontend) Handover() Handover { return Handover{s} }

// Carry returns the sessions that stand still, with descriptors that are the caller's, and a
// line for each of the others and for each self-test in the background. opensAnew tells by name which volumes do not go over: sessions
// that have one do not, either. Preconditions: Rest.
func (h Handover) Carry(opensAnew func(volume string) bool) (k Carried, left []string, err error) {
	defer func() {
		if err != nil {
			k.Discard()
			k = Carried{}
		}
	}()
	for _, n := range h.srv.nodeList() {
		units, err := n.device.Carry()
		if err != nil {
			return k, nil, err
		}
		if len(units) > 0 {
			k.Targets = append(k.Targets, CarriedTarget{n.cfg.Name, units})
		}
		for _, lun := range n.device.Testing() {
			left = append(left, fmt.Sprintf("self-test of LUN %d of %s: it ends, and its result says so", lun, n.cfg.Name))
		}
	}
	for _, x := range h.srv.sessionList(nil) {
		why := x.staysFor(opensAnew)
		if why == nil {
			c, err := x.carry()
			if err != nil {
				return k, nil, err
			}
			k.Sessions = append(k.Sessions, c)
			continue
		}
		left = append(left, fmt.Sprintf("session %d of %s: %v; its initiator logs in again%s", x.tsih, x.key.initiator, why, x.losses()))
	}
	return k, left, nil
}

// losses says what ends with a session that is not carried, and does not come back with the next login.
func (s *session) losses() string {
	if s.nexus == nil {
		return ""
	}
	var luns []string
	for _, u := range s.nexus.Carry() {
		if u.Reserves {
			luns = append(luns, strconv.Itoa(int(u.LUN)))
		}
	}
	if len(luns) == 0 {
		return ""
	}
	return "; its reservation (RESERVE) of LUN " + strings.Join(luns, ", ") + " ends"
}

// Discard closes the descriptors.
func (k *Carried) Discard() {
	for i := range k.Sessions {
		k.Sessions[i].discard()
	}
}

func (k *CarriedSession) discard() {
	for i := range k.Conns {
		if c := &k.Conns[i]; c.FD >= 0 {
			syscall.Close(c.FD)
			c.FD = -1
		}
	}
}

// staysFor says why the session is not carried; nil: it is.
func (s *session) staysFor(opensAnew func(volume string) bool) error {
	switch r := s.still.Load(); {
	case r == nil: // the session is newer than the moment at which all came to rest
		return errStaysBusy
	case r.why != nil:
		return r.why
	case s.ending():
		return errStaysEnding
	}
	for _, e := range s.node.list() {
		if opensAnew(e.Name) {
			return fmt.Errorf("volume %s of its target is opened anew", e.Name)
		}
	}
	return nil
}

// carry returns what the session is. Preconditions: it stands still.
func (s *session) carry() (k CarriedSession, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.order.seq.win
	k = CarriedSession{
		Initiator: s.key.initiator, ISID: s.key.isid, Target: s.key.target, Group: s.key.group, TSIH: s.tsih,
		User: s.user, Bound: s.bound, Known: s.known, Born: s.born,
		ExpCmdSN: w.ExpCmdSN, MaxCmdSN: w.MaxCmdSN, Told: w.told.Load(), Units: s.nexus.Carry(),
	}
	for _, c := range s.conns.members.conns {
		q := CarriedConnection{standing: standing{CID: c.cid, Portal: c.portal.Config().Listen, Opened: c.opened, Params: c.params}}
		c.out.mu.Lock()
		q.StatSN, q.Ping = c.out.statSN.Load(), c.beat.ping.tag
		c.out.mu.Unlock()
		if err = q.take(c.parkable()); err != nil {
			k.discard()
			return k, fmt.Errorf("session %d: %w", s.tsih, err)
		}
		k.Conns = append(k.Conns, q)
	}
	return k, nil
}

// take adds what the datamover knows.
func (k *CarriedConnection) take(p iser.Parkable) (err error) {
	switch dm := p.(type) {
	case *iscsitcp.Conn:
		k.Stream, k.FD, err = dm.Carry()
	case *iser.Parking:
		k.RDMA = new(iser.Carried)
		*k.RDMA, k.FD, err = dm.Carry()
	default:
		k.FD, err = -1, errStaysConn
	}
	return err
}

// Check says what is wrong with what another process has handed over, files descriptors of
// all kinds, or why this one cannot go on with it. Nothing is touched.
func (h Handover) Check(k *Carried, files int) error {
	for i := range k.Sessions {
		x := &k.Sessions[i]
		if err := x.check(files); err != nil {
			return fmt.Errorf("session %d of %s: %w", x.TSIH, iscsi.Printable(x.Initiator), err)
		}
		for j := range x.Conns {
			c := &x.Conns[j]
			if portal.Find(h.srv.cfg.Portals, c.Portal) == nil {
				return fmt.Errorf("session %d: there is no portal %s", x.TSIH, iscsi.Printable(c.Portal))
			}
			if err := h.checkRDMA(c); err != nil {
				return fmt.Errorf("session %d: connection %d: %w", x.TSIH, c.CID, err)
			}
		}
	}
	return nil
}

// checkRDMA says why this process cannot go on with a connection over iSER.
func (h Handover) checkRDMA(k *CarriedConnection) error {
	switch {
	case k.RDMA == nil:
		return nil
	case h.srv.wires.RDMA == nil:
		return errors.New("it is over iSER, which the configuration has not")
	}
	return h.srv.wires.RDMA.CheckCarried(k.RDMA, &k.Params)
}

// check says what is wrong with a session, wherever it is to go on.
func (k *CarriedSession) check(files int) error {
	if err := errors.Join(iscsi.CheckInitiatorName(k.Initiator), iscsi.CheckName(k.Target), scsi.CheckCarried(k.Units)); err != nil {
		return err
	}
	switch {
	case k.TSIH == 0:
		return errors.New("its TSIH is 0")
	case k.MaxCmdSN+1-k.ExpCmdSN > maxWindow:
		return fmt.Errorf("a window from %d to %d; %d commands are the limit", k.ExpCmdSN, k.MaxCmdSN, maxWindow)
	case len(k.Conns) == 0 || len(k.Conns) > maxConnections:
		return fmt.Errorf("%d connections; want 1 to %d", len(k.Conns), maxConnections)
	}
	for i := range k.Conns {
		c := &k.Conns[i]
		if c.File < 0 || c.File >= files {
			return fmt.Errorf("connection %d: no descriptor has come with it", c.CID)
		}
		if err := errors.Join(checkParams(&c.Params, c.RDMA != nil), c.Stream.Check()); err != nil {
			return fmt.Errorf("connection %d: %w", c.CID, err)
		}
		if c.kind() != k.Conns[0].kind() || (c.RDMA != nil) != k.OverRDMA() {
			return fmt.Errorf("connection %d is of another kind than the first", c.CID)
		}
	}
	return nil
}

// checkParams says what cannot have been negotiated by a session that is carried.
func checkParams(p *iscsi.Params, rdma bool) error {
	const maxLen = 1<<24 - 1
	for _, l := range []struct {
		name     string
		v        uint32
		min, max uint32
	}{
		{"MaxRecvDataSegmentLength", p.MaxRecvDataSegmentLength, 512, maxLen}, {"MaxXmitDataSegmentLength", p.MaxXmitDataSegmentLength, 512, maxLen},
		{"MaxBurstLength", p.MaxBurstLength, 512, maxLen}, {"FirstBurstLength", p.FirstBurstLength, 512, p.MaxBurstLength},
		{"MaxOutstandingR2T", p.MaxOutstandingR2T, 1, 1<<16 - 1}, {"MaxConnections", p.MaxConnections, 1, 1<<16 - 1},
		{"ErrorRecoveryLevel", p.ErrorRecoveryLevel, 0, 0},
		{"HeaderDigest", uint32(p.HeaderDigest), 0, uint32(iscsi.DigestCRC32C)}, {"DataDigest", uint32(p.DataDigest), 0, uint32(iscsi.DigestCRC32C)},
	} {
		if l.v < l.min || l.v > l.max {
			return fmt.Errorf("%s is %d; want %d to %d", l.name, l.v, l.min, l.max)
		}
	}
	if p.SessionType != iscsi.NormalSession {
		return errors.New("it is a discovery session")
	}
	if p.RDMAExtensions != rdma {
		return errors.New("what was negotiated is not what carries it")
	}
	return nil
}

// Adopt goes on with what another process has handed over, which Check has accepted and
// whose descriptors belong to it. Sessions that it cannot go on with end; the error says why.
// None begins before all are there, because what one has reserved keeps others off.
// Preconditions: the targets and their volumes are there.
func (h Handover) Adopt(k *Carried) error {
	var errs []error
	for _, t := range k.Targets {
		if n, _, _ := h.srv.lookup(t.Name); n != nil {
			errs = append(errs, n.device.Restore(t.Units))
		}
	}
	made := make([]*session, len(k.Sessions))
	errs = append(errs, handover.Each(len(made), func(i int) (err error) {
		k := &k.Sessions[i]
		if made[i], err = h.adopt(k); err != nil {
			k.discard()
			err = fmt.Errorf("session %d of %s ends: %w", k.TSIH, k.Initiator, err)
		}
		return err
	}))
	errs = append(errs, handover.Each(len(made), func(i int) error {
		if made[i] != nil {
			made[i].goOn()
		}
		return nil
	}))
	return errors.Join(errs...)
}

// adopt makes a session of one that another process had, which has not begun.
func (h Handover) adopt(k *CarriedSession) (_ *session, err error) {
	s := h.srv
	n, _, _ := s.lookup(k.Target)
	if n == nil {
		return nil, fmt.Errorf("there is no target %s", k.Target)
	}
	var conns []*conn
	defer func() {
		if err != nil {
			for _, c := range conns {
				c.timer.Stop()
				c.dm.Terminate(err) // no datamover has been started yet
			}
		}
	}()
	for i := range k.Conns {
		c, err := h.adoptConn(&k.Conns[i])
		if err != nil {
			return nil, err
		}
		conns = append(conns, c)
	}
	x := &session{
		srv: s, node: n, key: sessionKey{initiator: k.Initiator, isid: k.ISID, target: n.cfg.Name, group: k.Group}, tsih: k.TSIH,
		user: k.User, bound: k.Bound, known: k.Known, share: shareOf(n, k.User, conns[0]), account: accountOf(k.User, conns[0]),
		params: conns[0].params, base: conns[0].log, kind: k.Conns[0].kind(), born: k.Born, done: make(chan struct{}),
	}
	x.make(conns, max(s.cfg.Commands, int(k.MaxCmdSN+1-k.ExpCmdSN)), k.ExpCmdSN)
	x.order.seq.win.told.Store(k.Told)
	for _, c := range conns {
		c.sess = x
	}
	if err := h.enter(x, k.Units); err != nil {
		return nil, err
	}
	return x, nil
}

// goOn begins a session that adopt has made.
func (s *session) goOn() {
	for _, c := range s.conns.list() {
		c.dm.Start(c)
	}
	s.mu.Lock()
	hidden := s.order.seq.win.hidden()
	s.mu.Unlock()
	if hidden {
		s.announceWindow()
	}
}

// adoptConn makes a connection, which has not been started.
func (h Handover) adoptConn(k *CarriedConnection) (*conn, error) {
	s := h.srv
	n, err := portal.TakeOver(s.cfg.Portals, k.Portal, &k.FD, k.Opened)
	if err != nil {
		return nil, err
	}
	n.Hello = portal.Hello{Protocol: portal.ISCSI, Transport: k.kind()}
	c := newConn(s, n)
	if c.raw, err = n.Net.SyscallConn(); err == nil {
		c.dm, err = h.restore(n, &k.standing)
	}
	if err != nil {
		n.Net.Close()
		return nil, err
	}
	c.cid, c.params, c.limits = k.CID, k.Params, c.dm.Limits()
	c.quiet.Store(c.limits.QuietUntilFirstCommand)
	c.text.ttt = iscsi.ReservedTag
	c.out.statSN.Store(k.StatSN)
	c.beat.ping.tag = k.Ping
	c.entered = s.now()
	c.state.advance(connFull)
	beat := s.cfg.Timeouts.beat()
	if beat == 0 {
		beat = -1
	}
	c.timer = afterPositive(beat, func() { c.onTimer() })
	return c, nil
}

// restore makes the datamover of a connection, which it belongs to unless there is an error.
func (h Handover) restore(n *portal.Conn, k *standing) (iscsi.Datamover, error) {
	s := h.srv
	if k.RDMA == nil {
		return iscsitcp.Restore(n.Net, tcpConfig(s, n.Portal, s.wires.Tally(portal.TCP)), &k.Params, &k.Stream)
	}
	return s.wires.RDMA.Restore(n.Net, s.iserConfig(n.Portal), &k.Params, k.RDMA)
}

// enter gives a session the place in the tables that it had.
func (h Handover) enter(x *session, units []scsi.CarriedUnit) error {
	s := h.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining():
		return errShutdown
	case x.node.gone:
		return errRemoved
	case s.sessions.clashes(x):
		return errors.New("there is such a session")
	}
	if err := x.openNexus(); err != nil {
		return err
	}
	x.nexus.Restore(units)
	s.sessions.add(x)
	for _, c := range x.conns.members.conns {
		s.conns[c] = struct{}{}
	}
	x.log().Debug("session taken over", zap.Int("connections", len(x.conns.members.conns)))
	return nil
}
