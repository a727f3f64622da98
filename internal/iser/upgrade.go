package iser

import (
	"context"
	"errors"
	"net"
	"sync"

	"softiser/internal/fsm"
	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
)

// Upgraded is a connection with RFC 7145's own start-up (§5.1): the login runs
// over the TCP stream; if it ends with RDMAExtensions=Yes, the same connection
// goes on with MPA, the initiator of the login being the MPA initiator, and then
// as iSER. If not, it stays plain iSCSI. It implements iscsi.Datamover.
//
//	phaseStream ──Enable, RDMAExtensions=Yes──▶ phaseSwitch ──MPA──▶ phaseRDMA
//	     │                                           │
//	     └── Enable, No: stays                       └── failure ──▶ phaseDead
//
// The halves have states of their own (iscsi.ConnState), and end by themselves.
//
// In phaseSwitch control PDUs wait; there is no data to move yet.
type Upgraded struct {
	d    *Device
	role iscsi.Role
	cfg  ConnConfig
	tcp  *iscsitcp.Conn

	mu      sync.Mutex // guards what follows
	phase   phase
	up      iscsi.Upper
	conn    *Conn // in phaseRDMA
	params  iscsi.Params
	waiting []*iscsi.PDU
	cancel  context.CancelFunc
	reason  error // of a Terminate during phaseSwitch
	ended   bool  // Terminate was called
	grace   bool
}

type phase uint8

const (
	phaseStream phase = iota
	phaseSwitch
	phaseRDMA
	phaseDead
)

var phaseNames = [...]string{"stream", "switching", "RDMA", "dead"}

// String names the phase.
func (p phase) String() string { return phaseNames[p] }

// nextPhases is the drawing as a table.
var nextPhases = fsm.Of([][]phase{
	phaseStream: {phaseSwitch},
	phaseSwitch: {phaseRDMA, phaseDead},
	phaseRDMA:   {},
	phaseDead:   {},
})

// setPhase is the only writer of u.phase. The caller holds u.mu.
func (u *Upgraded) setPhase(to phase) {
	if !nextPhases.Has(u.phase, to) {
		u.tcp.Terminate(fsm.Illegal("iser", "a connection", u.phase, to))
		return
	}
	u.phase = to
}

// Upgrade makes a datamover over an open TCP connection, which it takes over.
func (d *Device) Upgrade(nc net.Conn, role iscsi.Role, stream iscsitcp.Config, cfg ConnConfig) (*Upgraded, error) {
	stream.Upgradable = true
	tcp, err := iscsitcp.New(nc, role, stream)
	if err != nil {
		return nil, err
	}
	cfg.rfc = true
	return &Upgraded{d: d, role: role, cfg: cfg, tcp: tcp}, nil
}

// Start implements iscsi.Datamover.
func (u *Upgraded) Start(up iscsi.Upper) {
	u.mu.Lock()
	u.up = up
	u.mu.Unlock()
	u.tcp.Start(up)
}

// current returns the datamover that serves now; nil while the stream changes
// its form, and after that has failed.
func (u *Upgraded) current() iscsi.Datamover {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch u.phase {
	case phaseStream:
		return u.tcp
	case phaseRDMA:
		return u.conn
	}
	return nil
}

// Stream returns the connection over TCP as long as it has not turned into RDMA, else nil.
func (u *Upgraded) Stream() *iscsitcp.Conn {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.phase != phaseStream {
		return nil
	}
	return u.tcp
}

// RDMA returns the connection over RDMA once the stream has turned into it, else nil.
func (u *Upgraded) RDMA() *Conn {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.conn
}

// Limits implements iscsi.Datamover.
func (u *Upgraded) Limits() iscsi.Limits {
	if dm := u.current(); dm != nil {
		return dm.Limits()
	}
	return iscsi.Limits{MaxControlData: linuxControlData, QuietUntilFirstCommand: true}
}

// KeyProfile implements iscsi.Datamover.
func (u *Upgraded) KeyProfile() iscsi.KeyProfile {
	p := withLengths(u.tcp.KeyProfile(), u.role)
	p.RequireHello = u.cfg.RequireHello && u.role == iscsi.RoleInitiator
	return p
}

// NoticeKeyValues implements iscsi.Datamover.
func (u *Upgraded) NoticeKeyValues(p *iscsi.Params) {
	u.mu.Lock()
	u.params = *p
	u.mu.Unlock()
	u.tcp.NoticeKeyValues(p)
}

// Enable implements iscsi.Datamover. The initiator's stream changes at once, the
// target's behind the final Login Response.
func (u *Upgraded) Enable() error {
	if err := u.tcp.Enable(); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.params.RDMAExtensions && u.role == iscsi.RoleInitiator {
		u.beginLocked()
	}
	return nil
}

// beginLocked starts the switch.
func (u *Upgraded) beginLocked() {
	ctx, cancel := context.WithCancel(context.Background())
	u.setPhase(phaseSwitch)
	u.cancel = cancel
	go u.turn(ctx)
}

// turn detaches the stream and starts RDMA on it.
func (u *Upgraded) turn(ctx context.Context) {
	defer u.cancel()
	nc, err := u.tcp.Detach()
	if err != nil { // the stream has ended, and has told the upper layer
		u.mu.Lock()
		u.setPhase(phaseDead)
		u.waiting = nil
		u.mu.Unlock()
		return
	}
	var c *Conn
	if u.role == iscsi.RoleInitiator {
		c, err = u.d.Client(ctx, nc, u.cfg)
	} else {
		c, err = u.d.Serve(ctx, nc, u.cfg)
	}
	u.mu.Lock()
	if err != nil || u.ended {
		u.setPhase(phaseDead)
		u.waiting = nil
		end := err
		switch {
		case u.reason != nil:
			end = u.reason
		case u.grace:
			end = nil
		}
		up := u.up
		u.mu.Unlock()
		if err == nil { // the connection came up although it was given up
			c.Terminate(end)
			<-c.Ended()
		}
		up.ConnectionTerminateNotify(end)
		return
	}
	c.NoticeKeyValues(&u.params)
	err = c.Enable()
	u.conn = c
	u.setPhase(phaseRDMA)
	for _, p := range u.waiting {
		if err == nil {
			err = c.SendControl(p)
		}
	}
	u.waiting = nil
	up := u.up
	u.mu.Unlock()
	c.Start(up)
	if err != nil {
		c.Terminate(err)
	}
	c.Push()
}

var errSwitching = errors.New("iser: the stream is changing to RDMA")

// SendControl implements iscsi.Datamover.
func (u *Upgraded) SendControl(p *iscsi.PDU) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch u.phase {
	case phaseRDMA:
		return u.conn.SendControl(p)
	case phaseDead:
		return net.ErrClosed
	case phaseSwitch:
		if len(u.waiting) == 64 || u.ended {
			return errSwitching
		}
		q := &iscsi.PDU{BHS: p.BHS, Ref: p.Ref, Bufs: p.Bufs}
		q.AHS = append(q.AHS, p.AHS...)
		q.Data = append(q.Data, p.Data...)
		u.waiting = append(u.waiting, q)
		return nil
	}
	if err := u.tcp.SendControl(p); err != nil {
		return err
	}
	r := p.BHS.LoginResponse()
	if u.role == iscsi.RoleTarget && u.params.RDMAExtensions && r.Opcode() == iscsi.OpLoginResponse &&
		r.Transit() && r.NSG() == iscsi.StageFullFeature && r.Status() == iscsi.LoginSuccess {
		u.beginLocked()
	}
	return nil
}

// PutData implements iscsi.Datamover.
func (u *Upgraded) PutData(x *iscsi.Transfer) error {
	if dm := u.current(); dm != nil {
		return dm.PutData(x)
	}
	return errSwitching
}

// GetData implements iscsi.Datamover.
func (u *Upgraded) GetData(x *iscsi.Transfer) error {
	if dm := u.current(); dm != nil {
		return dm.GetData(x)
	}
	return errSwitching
}

// AbortTransfer implements iscsi.Datamover.
func (u *Upgraded) AbortTransfer(x *iscsi.Transfer) {
	if dm := u.current(); dm != nil {
		dm.AbortTransfer(x)
	}
}

// ReleaseTask implements iscsi.Datamover.
func (u *Upgraded) ReleaseTask(b *iscsi.TaskBuffers) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch u.phase {
	case phaseStream:
		u.tcp.ReleaseTask(b)
	case phaseRDMA:
		u.conn.ReleaseTask(b)
	case phaseSwitch: // nothing of it has been sent
		for i, p := range u.waiting {
			if p.Bufs == b {
				u.waiting = append(u.waiting[:i], u.waiting[i+1:]...)
				return
			}
		}
	}
}

// Push implements iscsi.Datamover. During the switch the stream's part of it, the
// final Login Response, still goes out.
func (u *Upgraded) Push() {
	u.mu.Lock()
	dm := iscsi.Datamover(u.tcp)
	if u.conn != nil {
		dm = u.conn
	}
	u.mu.Unlock()
	dm.Push()
}

// Terminate implements iscsi.Datamover.
func (u *Upgraded) Terminate(reason error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch u.phase {
	case phaseStream:
		u.tcp.Terminate(reason)
	case phaseRDMA:
		u.conn.Terminate(reason)
	case phaseSwitch:
		if !u.ended {
			u.ended, u.reason, u.grace = true, reason, reason == nil
			u.cancel()
		}
		// The stream may not have been detached yet: its last PDU waits for a peer that
		// does not read. Then its end is that of the connection.
		u.tcp.Terminate(reason)
	}
}

// Stats implements iscsi.Datamover: both halves of the connection's life.
func (u *Upgraded) Stats() iscsi.DatamoverStats {
	s := u.tcp.Stats()
	if dm, ok := u.current().(*Conn); ok {
		t := dm.Stats()
		s.Add(&t)
	}
	return s
}

// Backlog implements iscsi.Datamover: that of the half that serves. What waits for
// the switch is not much, and waits for no socket.
func (u *Upgraded) Backlog() iscsi.Backlog {
	if dm := u.current(); dm != nil {
		return dm.Backlog()
	}
	return iscsi.Backlog{}
}

// Recovery implements iscsi.Datamover. The level is 0, because the stream may end.
func (u *Upgraded) Recovery() iscsi.Recovery { return nil }

// Describe implements iscsi.Datamover.
func (u *Upgraded) Describe() string {
	if dm := u.current(); dm != nil {
		return dm.Describe()
	}
	return "iSCSI over TCP, changing to iSER"
}
