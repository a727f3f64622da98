package iser

import (
	"errors"
	"fmt"
	"net"

	"softiser/internal/handover"
	"softiser/internal/iscsi"
	"softiser/rdma"
)

// A connection goes from one process to the next while it is parked: its queue pair has
// stopped reading between two messages, it has said what was queued, and is silent.
//
//	Park ──▶ reads on until may says so ──▶ Still: nothing is queued ──▶ Carry ─▶ Restore
//	             ▲                            │ nothing is posted any more
//	             └────────── Unpark ──────────┘
//
// Nothing of the shared receive buffers goes along: the peer's messages find those of
// the next process. No STag does, either: the target's own, of Reads, are closed with the
// answers, and those that the initiator has advertised belong to commands that have ended.
// Each process draws its own at random.

// Parking is a connection as seen by whoever has it stand still, and carries it.
type Parking Conn

// Parking returns the part of the connection that is about going to another process.
func (c *Conn) Parking() *Parking { return (*Parking)(c) }

// parking is the wish that a connection is parked. Guarded by Conn.mu.
type parking struct {
	changed func() // there is reason to ask Still again
	mute    bool   // nothing is posted any more
}

// silent reports whether nothing may be sent.
func (p *parking) silent() bool { return p != nil && p.mute }

func (p *parking) tell() {
	if p != nil {
		p.changed()
	}
}

// Park makes the receive goroutine stop in front of the next message for which may, which it
// calls without locks held, reports true; Nudge makes it ask again though nothing comes.
// changed is called, with locks held, when Still may have become true. Only a connection over
// iWARP in the full feature phase can be parked; for others Park reports false. An
// initiator's may holds it while a command is outstanding.
func (c *Parking) Park(may func() bool, changed func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != iscsi.ConnFull || c.hello.state == helloWait || c.park != nil || !c.qp.Park(may, changed, nil) {
		return false
	}
	c.park = &parking{changed: changed}
	return true
}

// Nudge makes the receive goroutine ask whether it may stop.
func (c *Parking) Nudge() { c.qp.Nudge() }

// Still reports whether the connection stands and has sent what was queued. From then on
// it is silent: what is queued waits for Unpark.
func (c *Parking) Still() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.park == nil || c.st != iscsi.ConnFull || !c.pump.Resting() || !c.over.idle() || !c.qp.Still() {
		return false
	}
	c.park.mute = true
	return true
}

// Unpark makes the connection go on.
func (c *Parking) Unpark() {
	c.mu.Lock()
	parked := c.park != nil
	c.park = nil
	c.mu.Unlock()
	if parked {
		c.qp.Unpark()
		(*Conn)(c).Push()
	}
}

// Carried is what a parked connection knows, beside what has been negotiated.
type Carried struct {
	QP         rdma.Carried `json:"queue_pair"`
	Invalidate bool         `json:"remote_invalidation,omitempty"` // was agreed on
	Stream     bool         `json:"stream_login,omitempty"`        // it follows RFC 7145 to the letter
	Hello      bool         `json:"hello,omitempty"`               // the exchange is over
	Quiet      bool         `json:"quiet,omitempty"`               // nothing has come since the login
}

// Carry returns what goes to another process, and a descriptor of the connection, which is
// the caller's. Preconditions: Still.
func (c *Parking) Carry() (k Carried, fd int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.park.silent() || c.st != iscsi.ConnFull {
		return k, -1, errors.New("iser: the connection is not parked")
	}
	k = Carried{Invalidate: c.inv, Stream: c.cfg.rfc, Hello: c.hello.state == helloDone, Quiet: c.quiet}
	var nc net.Conn
	if k.QP, nc, err = c.qp.Carry(); err != nil {
		return k, -1, fmt.Errorf("iser: %w", err)
	}
	if fd, err = handover.DupTCP(nc); err != nil {
		return k, -1, fmt.Errorf("iser: %w", err)
	}
	return k, fd, nil
}

// Check says what is wrong with what has come from another process, for a connection in that
// role that has negotiated p.
func (k *Carried) Check(role iscsi.Role, p *iscsi.Params) error {
	switch {
	case k.QP.Initiator != (role == iscsi.RoleInitiator):
		return errors.New("iser: that is the other end of a connection")
	case role == iscsi.RoleTarget && k.QP.ORD == 0, role == iscsi.RoleInitiator && k.QP.IRD == 0:
		return errors.New("iser: the target could not read what is written")
	case p.MaxRecvDataSegmentLength > RecvDataLen:
		return fmt.Errorf("iser: the peer may send data segments of %d bytes, and receive buffers here take %d", p.MaxRecvDataSegmentLength, RecvDataLen)
	case p.ISERHelloRequired && !k.Hello:
		return errors.New("iser: the Hello exchange is not over")
	}
	if err := k.QP.Check(); err != nil {
		return fmt.Errorf("iser: %w", err)
	}
	return nil
}

// CheckCarried says what is wrong with what has come from another process, for a connection
// of a target that has negotiated p, or why this device cannot go on with it.
func (d *Device) CheckCarried(k *Carried, p *iscsi.Params) error {
	return d.checkCarried(k, iscsi.RoleTarget, p)
}

func (d *Device) checkCarried(k *Carried, role iscsi.Role, p *iscsi.Params) error {
	if err := k.Check(role, p); err != nil {
		return err
	}
	if err := d.RDMA().CheckCarried(&k.QP); err != nil {
		return fmt.Errorf("iser: %w", err)
	}
	return nil
}

// Restore makes a connection of a target of one that another process has carried, in the
// full feature phase with p. nc belongs to it from now on, unless there is an error. What has
// arrived before Start waits.
func (d *Device) Restore(nc net.Conn, cfg ConnConfig, p *iscsi.Params, k *Carried) (*Conn, error) {
	return d.restore(nc, iscsi.RoleTarget, cfg, p, k)
}

// RestoreInitiator is Restore for the connection of an initiator.
func (d *Device) RestoreInitiator(nc net.Conn, cfg ConnConfig, p *iscsi.Params, k *Carried) (*Conn, error) {
	return d.restore(nc, iscsi.RoleInitiator, cfg, p, k)
}

// restore is Restore for one role. Enable is told of no Hello exchange, which would begin
// another one: it is over.
func (d *Device) restore(nc net.Conn, role iscsi.Role, cfg ConnConfig, p *iscsi.Params, k *Carried) (*Conn, error) {
	if err := d.checkCarried(k, role, p); err != nil {
		return nil, err
	}
	cfg.rfc = k.Stream
	c, err := d.newConn(role, cfg)
	if err != nil {
		return nil, err
	}
	over := *p
	over.ISERHelloRequired = false
	c.NoticeKeyValues(&over)
	if err = c.Enable(); err == nil {
		err = c.qp.Adopt(nc, &k.QP, &cfg.RDMA)
	}
	if err != nil {
		c.discard()
		return nil, fmt.Errorf("iser: %w", err)
	}
	c.NoticeKeyValues(p)
	c.connected(c.qp.Info(), k.Invalidate)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quiet = k.Quiet; k.Hello {
		if err := c.hello.set(helloDone); err != nil {
			c.failLocked(err)
		}
	}
	return c, nil
}
