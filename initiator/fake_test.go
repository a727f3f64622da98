package initiator

import (
	"context"
	"errors"
	"sync"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/spc"

	"slices"
)

// fakeTarget is a target in memory that the tests drive: it answers login,
// commands and task management, and can be told to refuse, delay, lie, drop
// connections and die. Data moves straight between its memory and the
// initiator's buffers, as over RDMA.
type fakeTarget struct {
	onLogout func(*fakeDM) // after a Logout Response
	t        testing.TB

	mu    sync.Mutex
	disk  []byte
	bs    int
	conns []*fakeDM
	tsih  uint16
	// refuse, when set, is asked at each dial and each login.
	dialErr  func(n int) error
	loginErr func(id *iscsi.LoginIdentity) error
	settings iscsi.Settings
	naa      byte // changes the identity of the LUN
	residual byte // flag of residual counts
	window   int
	logins   int
	dials    int
	log      []string // opcodes of commands carried out, in order
	active   int      // commands received, not answered

	// hook sees each SCSI command first; true means that it has dealt with it.
	// It runs on the connection's target goroutine without locks.
	hook func(c *fakeDM, p *iscsi.PDU) bool
	// tmf, when set, answers task management.
	tmf       func(c *fakeDM, p *iscsi.PDU) bool
	attention bool    // a unit attention for each new connection, as real targets have
	asc       spc.ASC // which one
	epoch     [16]byte
	wait      uint16 // Time2Wait of Logout Responses, seconds
	noUnmap   bool
	noFUA     bool
	deaf      bool                          // leaves pings unanswered
	onPing    func(c *fakeDM, p *iscsi.PDU) // instead of an answer
	pongs     []iscsi.BHS                   // answers to the target's pings
	onText    func(c *fakeDM, p *iscsi.PDU) // instead of an answer
}

func newFakeTarget(t testing.TB, size int) *fakeTarget {
	s := iscsi.DefaultSettings()
	return &fakeTarget{t: t, disk: make([]byte, size), bs: 512, settings: s, naa: 1, residual: iscsi.ResidualUnderflow, window: 64, attention: true, asc: spc.ASCPowerOnReset}
}

// config returns a configuration that dials the fake.
func (f *fakeTarget) config() Config {
	return Config{
		Address: "192.0.2.1:3260", TargetName: "iqn.2026-11.softiser:fake", InitiatorName: "iqn.2026-11.softiser:test",
		dial: f.dial,
	}
}

func (f *fakeTarget) dial(ctx context.Context, cfg *Config, addr string) (iscsi.Datamover, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials++
	if f.dialErr != nil {
		if err := f.dialErr(f.dials); err != nil {
			return nil, err
		}
	}
	d := &fakeDM{f: f, addr: addr}
	d.cond.L = &d.mu
	d.login = iscsi.NewLoginTarget(iscsi.LoginTargetConfig{
		Admit: func(id *iscsi.LoginIdentity) (*iscsi.LoginGrant, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.loginErr != nil {
				if err := f.loginErr(id); err != nil {
					return nil, err
				}
			}
			return &iscsi.LoginGrant{Settings: f.settings, PortalGroupTag: 1, TargetAlias: "fake"}, nil
		},
		Bind: func(r *iscsi.LoginResult) (iscsi.LoginBinding, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.logins++
			f.tsih++
			// Session reinstatement: older connections of this ISID end first.
			for _, c := range f.conns {
				if c != d && c.isid == r.ISID {
					c.cut(errors.New("reinstated"))
				}
			}
			d.isid = r.ISID
			d.win = iscsi.NewCommandWindow(r.CmdSN, f.window)
			return iscsi.LoginBinding{TSIH: f.tsih, ExpCmdSN: d.win.ExpCmdSN, MaxCmdSN: d.win.MaxCmdSN}, nil
		},
	})
	f.conns = append(f.conns, d)
	return d, nil
}

// last returns the youngest connection.
func (f *fakeTarget) last() *fakeDM {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conns[len(f.conns)-1]
}

func (f *fakeTarget) logged() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.log...)
}

// fakeDM is one connection of the fake: datamover for the initiator, and the
// target's end of it. Two goroutines: work carries out what the initiator has
// pushed, deliver hands answers up.
type fakeDM struct {
	f     *fakeTarget
	addr  string
	up    iscsi.Upper
	login *iscsi.LoginTarget
	isid  iscsi.ISID

	mu       sync.Mutex
	cond     sync.Cond
	queued   []*iscsi.PDU // SendControl, not pushed
	inbox    []*iscsi.PDU // pushed
	outbox   []*iscsi.PDU // answers
	ended    bool
	endErr   error
	bufs     map[uint32]*iscsi.TaskBuffers // by ITT: lent to the target
	pushes   int
	calls    uint64
	params   *iscsi.Params
	mute     bool // answers nothing
	released int  // calls of ReleaseTask
	told     bool // the unit attention was delivered

	logouts []iscsi.LogoutReason

	full   bool // target's end is in full feature phase
	win    iscsi.CommandWindow
	statSN uint32
}

func (d *fakeDM) Start(u iscsi.Upper) {
	d.up = u
	d.bufs = map[uint32]*iscsi.TaskBuffers{}
	go d.work()
	go d.deliver()
}
func (d *fakeDM) Limits() iscsi.Limits            { return iscsi.Limits{MaxControlData: 8192, CountsIn: true} }
func (d *fakeDM) Recovery() iscsi.Recovery        { return nil }
func (d *fakeDM) KeyProfile() iscsi.KeyProfile    { return iscsi.KeyProfile{} }
func (d *fakeDM) NoticeKeyValues(p *iscsi.Params) { d.params = p }
func (d *fakeDM) Enable() error                   { return nil }
func (d *fakeDM) PutData(*iscsi.Transfer) error   { panic("initiator put data") }
func (d *fakeDM) GetData(*iscsi.Transfer) error   { panic("initiator got data") }
func (d *fakeDM) AbortTransfer(*iscsi.Transfer)   {}
func (d *fakeDM) Describe() string                { return "fake" }
func (d *fakeDM) Backlog() iscsi.Backlog          { return iscsi.Backlog{} }

func (d *fakeDM) Stats() (s iscsi.DatamoverStats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.ReceiveCalls = d.calls
	return s
}

func (d *fakeDM) SendControl(p *iscsi.PDU) error {
	q := &iscsi.PDU{BHS: p.BHS, AHS: append([]byte(nil), p.AHS...), Data: append([]byte(nil), p.Data...), Bufs: p.Bufs}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return errors.New("fake: connection has ended")
	}
	if p.Bufs != nil {
		d.bufs[p.BHS.ITT()] = p.Bufs
	}
	d.queued = append(d.queued, q)
	return nil
}

func (d *fakeDM) ReleaseTask(b *iscsi.TaskBuffers) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.released++
	for itt, x := range d.bufs {
		if x == b {
			delete(d.bufs, itt)
		}
	}
}

func (d *fakeDM) Push() {
	d.mu.Lock()
	if len(d.queued) > 0 {
		d.pushes++
		d.inbox = append(d.inbox, d.queued...)
		d.queued = d.queued[:0:0]
		d.cond.Broadcast()
	}
	d.mu.Unlock()
}

func (d *fakeDM) Terminate(err error) { d.cut(err) }

// cut ends the connection.
func (d *fakeDM) cut(err error) {
	d.mu.Lock()
	if !d.ended {
		d.ended, d.endErr = true, err
		clear(d.bufs)
		d.cond.Broadcast()
	}
	d.mu.Unlock()
}

// deliver is the receive goroutine.
func (d *fakeDM) deliver() {
	for {
		d.mu.Lock()
		for len(d.outbox) == 0 && !d.ended {
			d.cond.Wait()
		}
		if d.ended {
			err := d.endErr
			d.mu.Unlock()
			d.up.ConnectionTerminateNotify(err)
			return
		}
		batch := d.outbox
		d.outbox = nil
		d.calls++
		d.mu.Unlock()
		for _, p := range batch {
			if op := p.BHS.Opcode(); op == iscsi.OpSCSIResponse {
				d.mu.Lock()
				delete(d.bufs, p.BHS.ITT())
				d.mu.Unlock()
			}
			d.up.ControlNotify(p)
		}
		d.Push()
	}
}

// work is the target.
func (d *fakeDM) work() {
	for {
		d.mu.Lock()
		for len(d.inbox) == 0 && !d.ended {
			d.cond.Wait()
		}
		if d.ended {
			d.mu.Unlock()
			return
		}
		p := d.inbox[0]
		d.inbox = d.inbox[1:]
		d.mu.Unlock()
		d.handle(p)
	}
}

func (d *fakeDM) handle(p *iscsi.PDU) {
	f := d.f
	if d.mute {
		return
	}
	if !d.full {
		var resp iscsi.PDU
		done, err := d.login.Handle(p, &resp)
		resp.Data = append([]byte(nil), resp.Data...)
		d.raw(&resp)
		if done {
			d.full = true
			d.statSN = d.login.Result().StatSN
		}
		_ = err // the answer says it
		return
	}
	b := &p.BHS
	switch b.Opcode() {
	case iscsi.OpSCSICommand:
		d.mu.Lock()
		if !d.win.Accepts(b.CmdSN()) {
			f.t.Errorf("CmdSN %d is outside the window %d..%d", b.CmdSN(), d.win.ExpCmdSN, d.win.MaxCmdSN)
		}
		d.win.Advance()
		d.mu.Unlock()
		f.mu.Lock()
		f.active++
		hook := f.hook
		f.mu.Unlock()
		if op := spc.Opcode(b.SCSICommand().CDB()[0]); f.attention && !d.told && op != spc.OpInquiry && op != spc.OpReportLUNs {
			d.told = true
			d.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: f.asc})
			return
		}
		if hook != nil && hook(d, p) {
			return
		}
		d.execute(p)
	case iscsi.OpNopOut:
		f.mu.Lock()
		deaf, onPing := f.deaf, f.onPing
		if b.ITT() == iscsi.ReservedTag {
			f.pongs = append(f.pongs, *b)
		}
		f.mu.Unlock()
		if b.ITT() != iscsi.ReservedTag && onPing != nil {
			onPing(d, p)
			return
		}
		if b.ITT() != iscsi.ReservedTag && !deaf {
			var r iscsi.PDU
			r.BHS.NewNopIn()
			r.BHS.SetITT(b.ITT())
			r.BHS.SetTTT(iscsi.ReservedTag)
			d.answer(&r)
		}
	case iscsi.OpTaskRequest:
		f.mu.Lock()
		tmf := f.tmf
		f.mu.Unlock()
		if tmf != nil && tmf(d, p) {
			return
		}
		var r iscsi.PDU
		r.BHS.NewTaskResponse(iscsi.TaskComplete)
		r.BHS.SetITT(b.ITT())
		d.answer(&r)
	case iscsi.OpLogoutReq:
		d.logouts = append(d.logouts, b.LogoutRequest().Reason())
		var r iscsi.PDU
		x := r.BHS.NewLogoutResponse(iscsi.LogoutClosed)
		x.SetTimes(f.wait, 0)
		r.BHS.SetITT(b.ITT())
		d.answer(&r)
		if f.onLogout != nil {
			f.onLogout(d)
		}
	case iscsi.OpTextRequest:
		d.text(p)
	default:
		f.t.Errorf("the initiator sent a %v", b.Opcode())
	}
}

// text answers SendTargets in two pieces.
func (d *fakeDM) text(p *iscsi.PDU) {
	if d.f.onText != nil {
		d.f.onText(d, p)
		return
	}
	whole := iscsi.AppendTarget(nil, &iscsi.DiscoveredTarget{Name: "iqn.2026-11.softiser:a", Portals: []iscsi.TargetPortal{{Address: "192.0.2.1:3260", PortalGroupTag: 1, HasTag: true}}})
	whole = iscsi.AppendTarget(whole, &iscsi.DiscoveredTarget{Name: "iqn.2026-11.softiser:b", Portals: []iscsi.TargetPortal{{Address: "[2001:db8::1]:3261", PortalGroupTag: 2, HasTag: true}}})
	var r iscsi.PDU
	q := r.BHS.NewTextResponse()
	r.BHS.SetITT(p.BHS.ITT())
	if p.BHS.TTT() == iscsi.ReservedTag {
		r.Data = whole[:40]
		q.SetFinal(false)
		r.BHS.SetTTT(77)
	} else {
		r.Data = whole[40:]
		q.SetFinal(true)
		r.BHS.SetTTT(iscsi.ReservedTag)
	}
	d.win.Advance()
	d.answer(&r)
}

// execute carries a command out and answers it.
func (d *fakeDM) execute(p *iscsi.PDU) {
	f := d.f
	cmd := p.BHS.SCSICommand()
	cdb := cmd.CDB()
	op := spc.Opcode(cdb[0])
	f.mu.Lock()
	f.log = append(f.log, op.String())
	f.mu.Unlock()
	var in []byte
	switch op {
	case spc.OpRead10, spc.OpRead16, spc.OpWrite10, spc.OpWrite16:
		io := spc.ParseIO(cdb[:spc.CDBLen(cdb)])
		off, n := int(io.LBA)*f.bs, int(io.Blocks)*f.bs
		f.mu.Lock()
		ok := off+n <= len(f.disk)
		f.mu.Unlock()
		if !ok {
			d.check(p, spc.Sense{Key: spc.KeyIllegalRequest, ASC: spc.ASCLBAOutOfRange})
			return
		}
		d.move(p, off, n, op == spc.OpRead10 || op == spc.OpRead16)
		d.status(p, spc.StatusGood, nil, 0)
		return
	case spc.OpInquiry:
		in = f.inquiry(cdb)
	case spc.OpServiceActionIn:
		f.mu.Lock()
		c := spc.Capacity{Blocks: uint64(len(f.disk) / f.bs), BlockSize: uint32(f.bs), Provisioned: true, ReadZeroes: true}
		f.mu.Unlock()
		in = c.Append16(nil)
	case spc.OpModeSense6:
		in = []byte{23, 0, 0x10, 0, 0x08, 18, 0x04, 23: 0}
		if f.noFUA {
			in[2] = 0
		}
	case spc.OpReportLUNs:
		in = spc.AppendLUNList(nil, []uint64{0, iscsi.EncodeLUN(3)})
	case spc.OpTestUnitReady, spc.OpSyncCache10, spc.OpSyncCache16, spc.OpVerify10, spc.OpVerify16, spc.OpCompareAndWrite, spc.OpUnmap:
	case spc.OpWriteSame16:
		io := spc.ParseIO(cdb[:16])
		f.mu.Lock()
		clear(f.disk[int(io.LBA)*f.bs : (int(io.LBA)+int(io.Blocks))*f.bs])
		f.mu.Unlock()
	default:
		d.check(p, spc.Sense{Key: spc.KeyIllegalRequest, ASC: spc.ASCInvalidOpcode})
		return
	}
	d.reply(p, in)
}

// reply sends parameter data and GOOD.
func (d *fakeDM) reply(p *iscsi.PDU, in []byte) {
	left := p.BHS.SCSICommand().EDTL()
	if cmd := p.BHS.SCSICommand(); cmd.Write() {
		left = 0
	}
	d.mu.Lock()
	if b := d.bufs[p.BHS.ITT()]; b != nil {
		for _, s := range b.In {
			n := copy(s, in)
			in, left = in[n:], left-uint32(n)
			b.InLen += uint32(n)
		}
	}
	d.mu.Unlock()
	d.status(p, spc.StatusGood, nil, left)
}

// inquiry makes standard data or a VPD page.
func (f *fakeTarget) inquiry(cdb []byte) []byte {
	if cdb[1]&1 == 0 {
		q := spc.InquiryData{Version: 6, Queueing: true, Vendor: "FAKE", Product: "FAKE DISK", Revision: "1", Epoch: f.epoch}
		return q.AppendInquiryData(nil)
	}
	var p []byte
	switch cdb[2] {
	case spc.VPDSupported:
		p = []byte{0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2}
	case spc.VPDSerial:
		p = []byte("12345")
	case spc.VPDIdentification:
		f.mu.Lock()
		d := spc.Designator{CodeSet: 1, Type: spc.DesignatorNAA, ID: []byte{0x60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, f.naa}}
		f.mu.Unlock()
		p = d.Append(nil)
	case spc.VPDBlockLimits:
		l := spc.BlockLimits{MaxCompareAndWrite: 8, MaxTransfer: 128, MaxUnmapBlocks: 256, MaxUnmapDescriptors: 1, MaxWriteSame: 1024}
		p = l.Append(nil)
	case spc.VPDBlockDevice:
		b := spc.BlockDevice{RotationRate: 1}
		p = b.Append(nil)
	case spc.VPDProvisioning:
		v := spc.Provisioning{Unmap: !f.noUnmap, WriteSame16: true, ReadZeroes: true, Type: 2}
		p = v.Append(nil)
	}
	return spc.AppendVPD(nil, 0, cdb[2], p)
}

// move copies data between disk and the initiator's buffers.
func (d *fakeDM) move(p *iscsi.PDU, off, n int, read bool) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.bufs[p.BHS.ITT()]
	if b == nil {
		return // released: the connection is gone, or the task aborted
	}
	disk := d.f.disk[off : off+n]
	segs := b.Out
	if read {
		segs = b.In
	}
	for _, s := range segs {
		if read {
			disk = disk[copy(s, disk):]
			b.InLen += uint32(len(s))
		} else {
			disk = disk[copy(disk, s):]
		}
	}
}

// check answers with CHECK CONDITION.
func (d *fakeDM) check(p *iscsi.PDU, s spc.Sense) {
	d.status(p, spc.StatusCheckCondition, s.AppendFixed(nil), p.BHS.SCSICommand().EDTL())
}

// status answers a command.
func (d *fakeDM) status(p *iscsi.PDU, st spc.Status, sense []byte, residual uint32) {
	var r iscsi.PDU
	q := r.BHS.NewSCSIResponse()
	r.BHS.SetITT(p.BHS.ITT())
	q.SetStatus(byte(st))
	if residual > 0 {
		q.SetResidual(residual, d.f.residual)
	}
	if sense != nil {
		r.Data = iscsi.AppendSense(nil, sense)
	}
	d.f.mu.Lock()
	d.f.active--
	d.f.mu.Unlock()
	d.answer(&r)
}

// answer numbers a PDU and sends it.
func (d *fakeDM) answer(p *iscsi.PDU) {
	p.BHS.SetDataLen(len(p.Data))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.win.Open(d.f.window)
	p.BHS.SetSequence(iscsi.Sequence{StatSN: d.statSN, ExpCmdSN: d.win.ExpCmdSN, MaxCmdSN: d.win.MaxCmdSN})
	d.statSN++
	d.sendLocked(p)
}

func (d *fakeDM) raw(p *iscsi.PDU) {
	p.BHS.SetDataLen(len(p.Data))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sendLocked(p)
}

func (d *fakeDM) sendLocked(p *iscsi.PDU) {
	if !d.ended {
		d.outbox = append(d.outbox, p)
		d.cond.Broadcast()
	}
}

// hold makes the target sit on commands of the given opcode and returns a
// function that tells how many it holds.
func hold(ft *fakeTarget, op spc.Opcode) func() []*iscsi.PDU {
	var held []*iscsi.PDU
	ft.mu.Lock()
	ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
		if spc.Opcode(p.BHS.SCSICommand().CDB()[0]) != op {
			return false
		}
		ft.mu.Lock()
		held = append(held, p)
		ft.mu.Unlock()
		return true
	}
	ft.mu.Unlock()
	return func() []*iscsi.PDU {
		ft.mu.Lock()
		defer ft.mu.Unlock()
		return slices.Clone(held)
	}
}

func letGo(ft *fakeTarget) {
	ft.mu.Lock()
	ft.hook = nil
	ft.mu.Unlock()
}
