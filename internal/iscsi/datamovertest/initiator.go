package datamovertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// Initiator issues commands.
type Initiator struct {
	upper
	login_  *iscsi.LoginInitiator
	Params  iscsi.Params
	full    bool
	logged  chan error
	mu      sync.Mutex // guards win and slots
	win     iscsi.SenderWindow
	expStat atomic.Uint32
	free    chan *Command
	slots   []*Command
	Events  chan *iscsi.PDU
}

// Command is one SCSI command of the initiator; it is reused.
type Command struct {
	i    *Initiator
	itt  uint32
	pdu  iscsi.PDU
	bufs iscsi.TaskBuffers
	done chan struct{}
	Resp iscsi.BHS
	busy bool // under Initiator.mu
}

const queueDepth = 48

func newInitiator(tb testing.TB, dm iscsi.Datamover, s iscsi.Settings) *Initiator {
	i := &Initiator{logged: make(chan error, 1), free: make(chan *Command, queueDepth), Events: make(chan *iscsi.PDU, 64)}
	i.upper = upper{tb: tb, name: "initiator", dm: dm, end: &ending{ch: make(chan struct{})}}
	i.checkStack.Store(true)
	for n := range queueDepth {
		c := &Command{i: i, itt: uint32(n), done: make(chan struct{}, 1)}
		i.slots = append(i.slots, c)
		i.free <- c
	}
	i.login_ = iscsi.NewLoginInitiator(iscsi.LoginInitiatorConfig{
		InitiatorName: "iqn.2026-11.softiser:test", TargetName: "iqn.2026-11.softiser:disk",
		ISID: iscsi.ISID{0x80, 0, 0, 0, 0, 1}, CmdSN: 1, ITT: 0, Settings: s, Profile: dm.KeyProfile(),
	})
	return i
}

func (i *Initiator) login() {
	i.tb.Helper()
	var req iscsi.PDU
	i.login_.Start(&req)
	if err := i.dm.SendControl(&req); err != nil {
		i.tb.Fatalf("initiator: first Login Request: %v", err)
	}
	i.dm.Push()
	select {
	case err := <-i.logged:
		if err != nil {
			i.tb.Fatalf("initiator: login: %v", err)
		}
	case <-i.end.ch:
		i.tb.Fatalf("initiator: connection ended during login: %v", i.end.err)
	case <-time.After(deadline):
		i.tb.Fatal("initiator: login does not end")
	}
}

// Sequence implements iscsi.Upper; initiators are not asked.
func (i *Initiator) Sequence() iscsi.Sequence { return iscsi.Sequence{} }

// DataCompletionNotify implements iscsi.Upper; initiators have no transfers.
func (i *Initiator) DataCompletionNotify(*iscsi.Transfer) {
	i.tb.Error("initiator: DataCompletionNotify")
}

// ControlNotify implements iscsi.Upper.
func (i *Initiator) ControlNotify(p *iscsi.PDU) {
	i.upcall()
	for p != nil {
		next := p.Unlink()
		i.take(p)
		p = next
	}
}

// take takes one PDU: of the login, a SCSI Response, or what a test asks for.
func (i *Initiator) take(p *iscsi.PDU) {
	if !i.full {
		var req iscsi.PDU
		done, err := i.login_.Next(p, &req)
		p.Release()
		switch {
		case err != nil:
			i.logged <- err
		case done:
			i.full = true
			r := i.login_.Result()
			i.Params = r.Params
			i.expStat.Store(r.StatSN)
			i.win = iscsi.SenderWindow{CmdSN: r.CmdSN, ExpCmdSN: r.ExpCmdSN, MaxCmdSN: r.MaxCmdSN}
			i.dm.NoticeKeyValues(&r.Params)
			i.logged <- i.dm.Enable()
		default:
			if err := i.dm.SendControl(&req); err != nil {
				i.logged <- err
			}
		}
		return
	}
	if p.BHS.Opcode().Info().StatSN {
		i.expStat.Store(p.BHS.StatSN() + 1)
	}
	if p.BHS.Opcode() != iscsi.OpSCSIResponse {
		i.Events <- p
		return
	}
	i.mu.Lock()
	i.win.Update(p.BHS.Sequence())
	itt := p.BHS.ITT()
	if itt >= uint32(len(i.slots)) || !i.slots[itt].busy {
		i.mu.Unlock()
		p.Release() // of a released command
		return
	}
	c := i.slots[itt]
	c.busy = false
	i.mu.Unlock()
	c.Resp = p.BHS
	p.Release()
	c.done <- struct{}{}
}

// Submit sends a command: op with n bytes of memory at offset off.
func (i *Initiator) Submit(op byte, off uint32, segs [][]byte, mode, parts byte) *Command {
	c := <-i.free
	i.mu.Lock()
	defer i.mu.Unlock()
	n := uint32(0)
	for _, s := range segs {
		n += uint32(len(s))
	}
	c.pdu = iscsi.PDU{Bufs: &c.bufs}
	c.bufs = iscsi.TaskBuffers{}
	b := c.pdu.BHS.NewSCSICommand()
	b.SetAttr(1)
	b.SetITT(c.itt)
	b.SetEDTL(n)
	b.SetCmdSN(i.win.Next())
	b.SetExpStatSN(i.expStat.Load())
	b.SetFinal(true)
	cdb := b.CDB()
	cdb[0], cdb[1], cdb[6] = op, mode, parts
	binary.BigEndian.PutUint32(cdb[2:], off)
	if op == opWrite {
		b.SetWrite(true)
		c.bufs.Out = segs
		c.bufs.Immediate, c.bufs.Unsolicited = i.Params.UnsolicitedLimit(n)
		c.bufs.Immediate = min(c.bufs.Immediate, uint32(i.dm.Limits().MaxControlData))
		if i.Params.InitialR2T {
			c.bufs.Unsolicited = c.bufs.Immediate
		}
		b.SetFinal(c.bufs.Unsolicited == c.bufs.Immediate)
	} else {
		b.SetRead(true)
		c.bufs.In = segs
	}
	c.busy = true
	if err := i.dm.SendControl(&c.pdu); err != nil {
		c.busy = false
		c.Resp.NewSCSIResponse().SetStatus(0xff)
		c.done <- struct{}{}
	}
	return c
}

var errTimeout = errors.New("no SCSI Response")

// Wait waits for the response and gives the command back.
func (c *Command) Wait() error {
	t := time.NewTimer(deadline)
	defer t.Stop()
	select {
	case <-c.done:
	case <-c.i.end.ch:
		// The response may have come before the end, and both be ready here.
		select {
		case <-c.done:
		default:
			return fmt.Errorf("connection ended: %w", c.i.end.err)
		}
	case <-t.C:
		return errTimeout
	}
	st := c.Resp.SCSIResponse().Status()
	c.i.free <- c
	if st != 0 {
		return fmt.Errorf("status %#x", st)
	}
	return nil
}

// Do runs one command.
func (i *Initiator) Do(op byte, off uint32, segs [][]byte, mode, parts byte) error {
	c := i.Submit(op, off, segs, mode, parts)
	i.dm.Push()
	return c.Wait()
}
