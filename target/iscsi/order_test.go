package iscsi

import (
	"encoding/binary"
	"testing"

	"softiser/internal/iscsi"
	"softiser/target/scsi"
)

var testUnitReady = make([]byte, 6)

// at sends a command with a CmdSN of the test's choice.
func (r *rawInitiator) at(sn uint32, c command) uint32 {
	r.t.Helper()
	keep := r.cmdSN
	r.cmdSN = sn
	tag := r.command(c)
	r.cmdSN = keep
	return tag
}

func TestCommandOrder(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	sn := r.cmdSN
	// 2 and 1 wait for 0; then all three are answered in CmdSN order.
	c := r.at(sn+2, command{cdb: testUnitReady})
	b := r.at(sn+1, command{cdb: testUnitReady})
	r.expectSilence()
	a := r.at(sn, command{cdb: testUnitReady})
	for i, want := range []uint32{a, b, c} {
		p := r.expect(iscsi.OpSCSIResponse)
		if p.ITT() != want {
			t.Errorf("response %d is for %#x, want %#x", i, p.ITT(), want)
		}
	}
	r.cmdSN = sn + 3
	r.ready()
}

func TestOutsideTheWindow(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Limits.Commands = 4 })
	r := s.session()
	sn := r.cmdSN
	r.nop(nil)
	if got := r.maxSN; got != sn+3 {
		t.Fatalf("MaxCmdSN %d, want %d", got, sn+3)
	}
	// Beyond the window, behind it, and a duplicate of one that is held: silence.
	r.at(sn+4, command{cdb: testUnitReady})
	r.at(sn-1, command{cdb: testUnitReady})
	r.at(sn+1, command{cdb: testUnitReady})
	r.at(sn+1, command{cdb: testUnitReady})
	r.expectSilence()
	eventually(t, "three PDUs are dropped", func() bool { return s.Status().Sessions[0].Dropped == 3 })
	r.at(sn, command{cdb: testUnitReady})
	r.expect(iscsi.OpSCSIResponse)
	r.expect(iscsi.OpSCSIResponse)
	r.cmdSN = sn + 2
	r.ready()
}

// The window closes when its commands are not answered, and opens again.
func TestWindowCloses(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Limits.Commands = 4 })
	r := s.session()
	release := s.dev.hold()
	defer release()
	for range 4 {
		r.command(command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
	}
	eventually(t, "four reads wait", func() bool { return s.dev.held() == 4 })
	p := r.nop(nil)
	if p.ExpCmdSN() != r.cmdSN || p.MaxCmdSN() != r.cmdSN-1 {
		t.Errorf("window %d..%d with CmdSN %d next: not closed", p.ExpCmdSN(), p.MaxCmdSN(), r.cmdSN)
	}
	r.command(command{cdb: testUnitReady}) // does not fit
	r.cmdSN--
	// Immediate commands are outside the window.
	if res := r.do(command{cdb: testUnitReady, immediate: true}, nil); res.status != 0 {
		t.Errorf("immediate command: status %#x", res.status)
	}
	release()
	for range 4 {
		p = r.read()
		for p.Opcode() == iscsi.OpDataIn && !p.DataIn().HasStatus() {
			p = r.read()
		}
	}
	if p.MaxCmdSN() != r.cmdSN+3 {
		t.Errorf("MaxCmdSN %d after the last response, want %d", p.MaxCmdSN(), r.cmdSN+3)
	}
	r.ready()
}

// An initiator that sends and never reads is stopped by its own window: it
// cannot make the target hold more than twice the window of commands.
func TestInitiatorThatNeverReads(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Limits.Commands = 8 })
	r := s.session()
	for range 400 {
		var b iscsi.BHS
		q := b.NewSCSICommand()
		q.SetFinal(true)
		q.SetRead(true)
		q.SetEDTL(1 << 20)
		q.SetCDB(cdbRW10(0x28, 0, 2048))
		q.SetITT(r.newTag())
		q.SetCmdSN(r.cmdSN)
		r.cmdSN++
		r.write(&b, nil)
	}
	other := s.dial()
	other.isid[5] = 9
	other.mustLogin(testIQN)
	other.ready()
	for _, x := range s.Status().Sessions {
		if x.Slots > 16 {
			t.Errorf("session %d holds %d command slots, the window is 8", x.TSIH, x.Slots)
		}
	}
}

func TestRejects(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	scsi := func(change func(iscsi.SCSICommand)) iscsi.BHS {
		var b iscsi.BHS
		q := b.NewSCSICommand()
		q.SetFinal(true)
		q.SetITT(r.newTag())
		q.SetCDB(testUnitReady)
		change(q)
		return b
	}
	for _, c := range []struct {
		name   string
		bhs    func() iscsi.BHS
		data   []byte
		reason iscsi.RejectReason
		plain  bool // takes no CmdSN
	}{
		{name: "bidirectional", reason: iscsi.RejectInvalidField,
			bhs: func() iscsi.BHS {
				return scsi(func(q iscsi.SCSICommand) { q.SetRead(true); q.SetWrite(true); q.SetEDTL(512) })
			}},
		{name: "length without direction", reason: iscsi.RejectInvalidField,
			bhs: func() iscsi.BHS { return scsi(func(q iscsi.SCSICommand) { q.SetEDTL(512) }) }},
		{name: "reserved tag", reason: iscsi.RejectInvalidField,
			bhs: func() iscsi.BHS { return scsi(func(q iscsi.SCSICommand) { q.SetITT(iscsi.ReservedTag) }) }},
		{name: "immediate data for a READ", reason: iscsi.RejectProtocol, data: make([]byte, 512),
			bhs: func() iscsi.BHS { return scsi(func(q iscsi.SCSICommand) { q.SetRead(true); q.SetEDTL(512) }) }},
		{name: "more immediate data than the command has", reason: iscsi.RejectProtocol, data: make([]byte, 1024),
			bhs: func() iscsi.BHS { return scsi(func(q iscsi.SCSICommand) { q.SetWrite(true); q.SetEDTL(512) }) }},
		{name: "unsolicited data with InitialR2T=Yes", reason: iscsi.RejectProtocol,
			bhs: func() iscsi.BHS {
				return scsi(func(q iscsi.SCSICommand) { q.SetWrite(true); q.SetFinal(false); q.SetEDTL(512) })
			}},
		{name: "SNACK", reason: iscsi.RejectSNACK, plain: true,
			bhs: func() (b iscsi.BHS) { b.NewSNACK(iscsi.SNACKStatus); return b }},
		{name: "login again", reason: iscsi.RejectProtocol, plain: true,
			bhs: func() (b iscsi.BHS) { b.NewLoginRequest(); return b }},
		{name: "unknown opcode", reason: iscsi.RejectUnsupported, plain: true,
			bhs: func() (b iscsi.BHS) { b[0] = 0x1d; return b }},
		{name: "solicited data that nobody asked for", reason: iscsi.RejectInvalidField, plain: true,
			bhs: func() (b iscsi.BHS) {
				d := b.NewDataOut()
				d.SetTTT(0x99990001)
				d.SetFinal(true)
				return b
			}, data: make([]byte, 16)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.t = t
			b := c.bhs()
			if !c.plain {
				b.SetCmdSN(r.cmdSN)
				r.cmdSN++
			}
			r.write(&b, c.data)
			p := r.expect(iscsi.OpReject)
			if got := p.Reject().Reason(); got != c.reason {
				t.Errorf("reason %v, want %v", got, c.reason)
			}
			if p.ITT() != iscsi.ReservedTag || len(p.data) < iscsi.BHSLen {
				t.Fatalf("Reject: ITT %#x, %d bytes", p.ITT(), len(p.data))
			}
			mustEqual(t, "the rejected header", p.data[:iscsi.BHSLen], b[:])
			r.nop(nil) // the session goes on
		})
	}
	r.t = t
	if p := r.nop(nil); p.MaxCmdSN() != r.cmdSN+127 {
		t.Errorf("rejected commands have kept places in the window: MaxCmdSN %d, CmdSN %d", p.MaxCmdSN(), r.cmdSN)
	}
	// The tag of a command in progress cannot be used again.
	release := s.dev.hold()
	defer release()
	tag := r.command(command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
	r.itt--
	r.command(command{cdb: testUnitReady})
	if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectTaskInProgress {
		t.Errorf("tag used twice: %v", p.Reject().Reason())
	}
	release()
	r.finish(tag, nil)
}

func TestResiduals(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	for _, c := range []struct {
		name     string
		c        command
		out      []byte
		status   uint8
		residual uint32
		flag     byte
		n        int
	}{
		{"READ into a larger buffer", command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 2048}, nil, 0, 1536, iscsi.ResidualUnderflow, 512},
		{"READ into a smaller buffer", command{cdb: cdbRW10(0x28, 0, 4), read: true, edtl: 512}, nil, 0, 1536, iscsi.ResidualOverflow, 512},
		{"READ without a buffer", command{cdb: cdbRW10(0x28, 0, 1)}, nil, 0, 512, iscsi.ResidualOverflow, 0},
		{"WRITE of less than announced", command{cdb: cdbRW10(0x2a, 0, 1), write: true, edtl: 2048}, make([]byte, 2048), 0, 1536, iscsi.ResidualUnderflow, 0},
		{"WRITE of more than announced", command{cdb: cdbRW10(0x2a, 0, 4), write: true, edtl: 512}, make([]byte, 512), 0, 1536, iscsi.ResidualOverflow, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.t = t
			res := r.do(c.c, c.out)
			if res.status != c.status || res.residual != c.residual || res.flags&0x06 != c.flag || len(res.data) != c.n {
				t.Errorf("status %#x residual %d flags %#x, %d bytes; want %#x %d %#x %d (sense % x)",
					res.status, res.residual, res.flags, len(res.data), c.status, c.residual, c.flag, c.n, res.sense)
			}
		})
	}
}

func TestSense(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	res := r.do(command{cdb: cdbRW10(0x28, volumeSize/512, 1), read: true, edtl: 512}, nil)
	if res.status != 2 || len(res.sense) < 14 || res.sense[2]&0xf != 5 || binary.BigEndian.Uint16(res.sense[12:]) != 0x2100 {
		t.Errorf("read beyond the end: status %#x sense % x", res.status, res.sense)
	}
	if res.residual != 512 || res.flags&iscsi.ResidualUnderflow == 0 {
		t.Errorf("residual %d flags %#x", res.residual, res.flags)
	}
	res = r.do(command{cdb: testUnitReady, lun: 7}, nil)
	if res.status != 2 || binary.BigEndian.Uint16(res.sense[12:]) != 0x2500 {
		t.Errorf("LUN 7: status %#x sense % x", res.status, res.sense)
	}
}

// Task attributes of SCSI Commands (RFC 7143 §11.3.1); those that are reserved are simple.
func TestTaskAttr(t *testing.T) {
	for a, want := range []scsi.TaskAttr{
		scsi.AttrSimple, scsi.AttrSimple, scsi.AttrOrdered, scsi.AttrHeadOfQueue, scsi.AttrACA, scsi.AttrSimple, scsi.AttrSimple, scsi.AttrSimple,
	} {
		if got := taskAttr(uint8(a)); got != want {
			t.Errorf("ATTR %d: %v, want %v", a, got, want)
		}
	}
}
