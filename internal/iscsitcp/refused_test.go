package iscsitcp

import (
	"bytes"
	"errors"
	"testing"

	"softiser/internal/faultmap"
	"softiser/internal/iscsi"
)

// command begins a task with in for its data at the initiator's end of r.
func (r *peer) command(in []byte) *iscsi.TaskBuffers {
	r.t.Helper()
	p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{in}}}
	p.BHS.NewSCSICommand().SetITT(1)
	if err := r.c.SendControl(&p); err != nil {
		r.t.Fatal(err)
	}
	r.c.Push()
	r.recv()
	return p.Bufs
}

// TestInitiatorFoldedStatus: what a Data-In with S says of its command goes up as a SCSI
// Response that says the same (RFC 7143 §11.7.3).
func TestInitiatorFoldedStatus(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	bufs := r.command(make([]byte, 3000))
	var b iscsi.BHS
	d := b.NewDataIn()
	d.SetITT(1)
	r.send(r.frame(b, nil, make([]byte, 1000)))
	d = b.NewDataIn()
	d.SetITT(1)
	d.SetDataSN(1)
	d.SetOffset(1000)
	d.SetFinal(true)
	d.SetHasStatus(true)
	d.SetStatus(0x18)
	d.SetResidual(1500, iscsi.ResidualUnderflow)
	seq := iscsi.Sequence{StatSN: 3, ExpCmdSN: 4, MaxCmdSN: 5}
	d.SetSequence(seq)
	r.send(r.frame(b, nil, make([]byte, 500)))
	p := r.up.PDU(t, "response")
	defer p.Release()
	s := p.BHS.SCSIResponse()
	if p.BHS.Opcode() != iscsi.OpSCSIResponse || s.Status() != 0x18 || s.Residual() != 1500 || s.ResidualFlags() != iscsi.ResidualUnderflow ||
		s.ExpDataSN() != 2 || s.Sequence() != seq || s.ITT() != 1 {
		t.Errorf("% x", p.BHS)
	}
	if bufs.InLen != 1500 {
		t.Errorf("%d bytes have come, it says, of 1500", bufs.InLen)
	}
}

// TestInitiatorMemoryFault: data that the initiator's memory does not take are not there,
// whatever the target says.
func TestInitiatorMemoryFault(t *testing.T) {
	const n = 16 << 10
	for _, digest := range []iscsi.Digest{iscsi.DigestNone, iscsi.DigestCRC32C} {
		r := newPeer(t, iscsi.RoleInitiator, func(p *iscsi.Params) {
			p.MaxRecvDataSegmentLength = n
			p.DataDigest = digest
		})
		r.command(faultmap.New(t, n, 0))
		var b iscsi.BHS
		d := b.NewDataIn()
		d.SetITT(1)
		d.SetFinal(true)
		d.SetHasStatus(true)
		r.send(r.frame(b, nil, make([]byte, n)))
		p := r.up.PDU(t, "response")
		if s := p.BHS.SCSIResponse(); s.Response() != iscsi.ResponseTargetFailure {
			t.Errorf("response %d", s.Response())
		}
		p.Release()
	}
}

// TestInitiatorDamagedResponse: at level 0 a SCSI Response whose sense data are damaged ends
// the connection: nobody can ask for it again.
func TestInitiatorDamagedResponse(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, func(p *iscsi.Params) { p.DataDigest = iscsi.DigestCRC32C })
	r.command(make([]byte, 512))
	var b iscsi.BHS
	s := b.NewSCSIResponse()
	s.SetITT(1)
	s.SetStatus(2)
	f := r.frame(b, nil, make([]byte, 20))
	f[60] ^= 1
	r.send(f)
	if err := r.up.End(t); !errors.Is(err, errDigestFatal) {
		t.Errorf("ended with %v", err)
	}
}

// TestTargetDataOutTwice: where Data-Outs may come in any order, bytes that come twice would
// leave others unsent and the count right.
func TestTargetDataOutTwice(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.DataPDUInOrder = false })
	mem := make([]byte, 8192)
	x, q := r.getData(8192, 0, mem)
	ones := bytes.Repeat([]byte{1}, 4096)
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 4096, false), nil, ones))
	for name, off := range map[string]uint32{"twice": 4096, "half of it twice": 2048} {
		r.send(r.frame(dataOut(q.TTT(), 5, 1, off, true), nil, ones))
		p := r.up.PDU(t, name)
		if p.Bad == nil || p.Bad.Reason != iscsi.RejectInvalidField {
			t.Errorf("%s: %v", name, p.Bad)
		}
		p.Release()
	}
	r.send(r.frame(dataOut(q.TTT(), 5, 1, 0, true), nil, ones))
	if y := r.up.Completion(t); y != x || x.Err != nil || !bytes.Equal(mem, bytes.Repeat([]byte{1}, 8192)) {
		t.Errorf("%v", y.Err)
	}
}

// TestSNACKAtLevel0 is for the upper layer to reject, and other PDUs go up at level 1 too.
func TestSNACKAtLevel0(t *testing.T) {
	for level, kind := range []iscsi.Opcode{iscsi.OpSNACK, iscsi.OpNopOut} {
		r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.ErrorRecoveryLevel = uint32(level) })
		var b iscsi.BHS
		if kind == iscsi.OpSNACK {
			b.NewSNACK(iscsi.SNACKStatus).SetITT(none)
		} else {
			b.NewNopOut().SetITT(1)
		}
		r.send(r.frame(b, nil, nil))
		p := r.up.PDU(t, kind.String())
		if p.BHS.Opcode() != kind || p.Bad != nil {
			t.Errorf("level %d: %v came up (%v)", level, p.BHS.Opcode(), p.Bad)
		}
		p.Release()
	}
}

// TestDataACKRefused: an acknowledgement names its command's LUN and no task, and data that
// have been sent (RFC 7143 §11.16).
func TestDataACKRefused(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	sent := r.put(5, filled(6000))
	tag := sent[3].DataIn().TTT()
	ack := func(change func(iscsi.SNACK)) {
		var b iscsi.BHS
		s := b.NewSNACK(iscsi.SNACKDataACK)
		s.SetITT(none)
		s.SetTTT(tag)
		s.SetLUN(3 << 48)
		s.SetBegRun(4)
		change(s)
		r.send(r.frame(b, nil, nil))
	}
	for _, change := range []func(iscsi.SNACK){
		func(s iscsi.SNACK) { s.SetLUN(2 << 48) },
		func(s iscsi.SNACK) { s.SetITT(5) },
		func(s iscsi.SNACK) { s.SetRunLength(1) },
		func(s iscsi.SNACK) { s.SetTTT(tag + 1) },
		func(s iscsi.SNACK) { s.SetBegRun(7) },
	} {
		ack(change)
		r.rejected(iscsi.RejectDataACK)
	}
	ack(func(s iscsi.SNACK) { s.SetBegRun(6) }) // all that there are
	r.snack(iscsi.SNACKData, 5, none, 5, 1, 7)
	r.rejected(iscsi.RejectProtocol)
}

// TestStatusAgainWithData: a numbered PDU that is asked for again has its data, or is
// refused when there was no room to keep them.
func TestStatusAgainWithData(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	say := func(sn uint32) {
		t.Helper()
		p := iscsi.PDU{Data: []byte("ping data")}
		n := p.BHS.NewNopIn()
		n.SetITT(9)
		n.SetTTT(none)
		n.SetSequence(iscsi.Sequence{StatSN: sn, ExpCmdSN: 1, MaxCmdSN: 2})
		if err := r.c.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		if _, data := r.recv(); string(data) != "ping data" {
			t.Fatalf("%q", data)
		}
	}
	say(7)
	r.snack(iscsi.SNACKStatus, none, none, 7, 1, 7)
	if b, data := r.recv(); b.StatSN() != 7 || string(data) != "ping data" {
		t.Errorf("again: % x %q", b, data)
	}
	r.c.mu.Lock()
	room := r.c.rec.room
	r.c.rec.room = 0
	r.c.mu.Unlock()
	say(8)
	mem := filled(2000)
	r.put(6, mem)
	r.c.mu.Lock()
	r.c.rec.room = room
	r.c.mu.Unlock()
	for _, run := range []uint32{1, 2} {
		r.snack(iscsi.SNACKStatus, none, none, 9-run, run, 7)
		r.rejected(iscsi.RejectSNACK)
	}
	r.snack(iscsi.SNACKRData, 6, 77, 0, 0, 7)
	r.rejected(iscsi.RejectSNACK)
}

// TestR2TSNACKNamesItsTask: R2Ts are repeated of the command and from the number that was
// asked for.
func TestR2TSNACKNamesItsTask(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { level1(p); p.MaxOutstandingR2T = 4 })
	_, first := r.getData(8192, 0, make([]byte, 8192))
	b, _ := r.recv()
	second := b.R2T()
	y := &iscsi.Transfer{ITT: 6, Ref: new(iscsi.Ref), LUN: 1 << 48, Len: 100, Segs: [][]byte{make([]byte, 100)}}
	if err := r.c.GetData(y); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	r.recv()
	for _, c := range []struct {
		itt, beg, run uint32
		want          []uint32
	}{{5, 0, 0, []uint32{first.TTT(), second.TTT()}}, {5, 1, 0, []uint32{second.TTT()}}, {5, 0, 1, []uint32{first.TTT()}}} {
		r.snack(iscsi.SNACKData, c.itt, none, c.beg, c.run, 7)
		got := map[uint32]bool{}
		for range c.want {
			b, _ := r.recv()
			got[b.R2T().TTT()] = true
		}
		for _, w := range c.want {
			if !got[w] {
				t.Errorf("from %d, %d R2Ts: got the tags %v", c.beg, c.run, got)
			}
		}
	}
	r.snack(iscsi.SNACKData, 5, none, 2, 0, 7) // and nothing else has been sent before this
	r.rejected(iscsi.RejectProtocol)
	r.snack(iscsi.SNACKData, 6, none, 0, 0, 7)
	if b, _ := r.recv(); b.ITT() != 6 {
		t.Errorf("an R2T of task %d", b.ITT())
	}
}

// TestEndlessHoles: a sequence that ends early is asked for again, and not for ever.
func TestEndlessHoles(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	x, q := r.getData(4096, 0, make([]byte, 4096))
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, make([]byte, 1024)))
	for n := 1; ; n++ {
		b, more := r.next()
		if !more {
			if n != maxHoles+1 {
				t.Errorf("given up after %d holes, want %d", n, maxHoles+1)
			}
			break
		}
		q = b.R2T()
		if b.Opcode() != iscsi.OpR2T || q.Offset() != 1024 || q.Desired() != 3072 || q.R2TSN() != uint32(n) {
			t.Fatalf("hole %d: % x", n, b)
		}
		r.send(r.frame(dataOut(q.TTT(), 5, 0, 1024, true), nil, nil))
	}
	if !errors.Is(x.Err, iscsi.ErrShortData) {
		t.Errorf("%v", x.Err)
	}
}
