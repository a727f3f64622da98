package iscsitcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"softiser/internal/faultmap"
	"softiser/internal/iscsi"
	"softiser/internal/loopback"
	"softiser/internal/pcaptest"
)

// The R2T and the Data-Ins on the wire, and status folded into the last Data-In.
func TestTargetWire(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.MaxBurstLength = 6000; p.MaxOutstandingR2T = 1 })
	mem := make([]byte, 10000)
	x, q := r.getData(10000, 500, mem)
	if q.LUN() != 1<<48 || q.ITT() != 5 || q.Sequence() != (iscsi.Sequence{StatSN: 7, ExpCmdSN: 8, MaxCmdSN: 9}) || q.R2TSN() != 0 || q.Offset() != 500 || q.Desired() != 6000 || q.TTT() == iscsi.ReservedTag {
		t.Fatalf("R2T % x", *q.BHS)
	}
	send := func(q iscsi.R2T) {
		for off, sn := uint32(0), uint32(0); off < q.Desired(); sn++ {
			n := min(4096, q.Desired()-off)
			r.send(r.frame(dataOut(q.TTT(), 5, sn, q.Offset()+off, off+n == q.Desired()), nil, bytes.Repeat([]byte{byte(q.R2TSN() + 1)}, int(n))))
			off += n
		}
	}
	send(q)
	b, _ := r.recv() // only now, as MaxOutstandingR2T is 1
	q = b.R2T()
	if q.R2TSN() != 1 || q.Offset() != 6500 || q.Desired() != 4000 {
		t.Fatalf("R2T % x", *q.BHS)
	}
	send(q)
	if y := r.up.Completion(t); y != x || x.Err != nil || snOf(x.Ref).r2tSN() != 2 {
		t.Fatalf("%v", y.Err)
	}
	if mem[0] != 1 || mem[5999] != 1 || mem[6000] != 2 || mem[9999] != 2 {
		t.Fatal("data")
	}

	// READ of 10000 bytes, 6000 to a sequence, 4096 to a PDU.
	for i := range mem {
		mem[i] = byte(i) ^ byte(i>>8)
	}
	x = &iscsi.Transfer{ITT: 6, Ref: new(iscsi.Ref), Len: 10000, Segs: [][]byte{mem[:1], {}, mem[1:7000], mem[7000:]}, Final: true}
	if err := r.c.PutData(x); err != nil {
		t.Fatal(err)
	}
	var resp iscsi.PDU
	s := resp.BHS.NewSCSIResponse()
	s.SetITT(6)
	s.SetSequence(iscsi.Sequence{StatSN: 20, ExpCmdSN: 21, MaxCmdSN: 22})
	s.SetResidual(17, iscsi.ResidualUnderflow)
	if err := r.c.SendControl(&resp); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	var got []byte
	for i, want := range []struct {
		n     int
		final bool
	}{{4096, false}, {1904, true}, {4000, true}} {
		b, data := r.recv()
		d := b.DataIn()
		if b.Opcode() != iscsi.OpDataIn || len(data) != want.n || d.Final() != want.final || d.DataSN() != uint32(i) || int(d.Offset()) != len(got) || d.TTT() != iscsi.ReservedTag || d.HasStatus() != (i == 2) {
			t.Fatalf("Data-In %d: % x", i, b)
		}
		if i == 2 && (d.Sequence() != s.Sequence() || d.Residual() != 17 || d.ResidualFlags() != iscsi.ResidualUnderflow || d.Status() != 0) {
			t.Fatalf("status % x", b)
		}
		got = append(got, data...)
	}
	if !bytes.Equal(got, mem) {
		t.Fatal("data")
	}
	r.up.Completion(t)

	// What follows in the buffer has its sequences from the beginning of that, and goes on with DataSN.
	ref := new(iscsi.Ref)
	for i := range uint32(2) {
		x = &iscsi.Transfer{ITT: 7, Ref: ref, Offset: 5000 + 1500*i, Len: 1500, Segs: [][]byte{mem[:1500]}}
		if err := r.c.PutData(x); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
	}
	for i, want := range []struct {
		off   uint32
		n     int
		final bool
	}{{5000, 1000, true}, {6000, 500, false}, {6500, 1500, false}} {
		b, data := r.recv()
		if d := b.DataIn(); d.Offset() != want.off || len(data) != want.n || d.Final() != want.final || d.DataSN() != uint32(i) {
			t.Fatalf("Data-In %d of %d bytes: % x", i, len(data), b)
		}
	}
	r.up.Completion(t)
	r.up.Completion(t)

	// CHECK CONDITION is a PDU of its own, and so is a response to another task.
	for i, change := range []func(){
		func() { s.SetStatus(2) },
		func() { s.SetStatus(0); s.SetResponse(iscsi.ResponseTargetFailure) },
		func() { s.SetResponse(0); s.SetITT(99) },
	} {
		change()
		x = &iscsi.Transfer{ITT: 6, Ref: new(iscsi.Ref), Len: 100, Segs: [][]byte{mem[:100]}, Final: true}
		if err := r.c.PutData(x); err != nil {
			t.Fatal(err)
		}
		if err := r.c.SendControl(&resp); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		if b, _ := r.recv(); b.DataIn().HasStatus() {
			t.Errorf("case %d: folded", i)
		}
		if b, _ := r.recv(); b.Opcode() != iscsi.OpSCSIResponse {
			t.Errorf("case %d: got %s", i, b.Opcode())
		}
		r.up.Completion(t)
	}
}

// Data-Outs that do not fit what was asked for go up to be rejected; the
// connection, and the transfer, live on.
func TestTargetBadDataOut(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	mem := make([]byte, 8192)
	x, q := r.getData(8192, 1000, mem)
	ttt := q.TTT()
	data := bytes.Repeat([]byte{0xbb}, 4096)
	for name, b := range map[string]iscsi.BHS{
		"unknown tag":      dataOut(0x12345678, 5, 0, 1000, false),
		"tag of tomorrow":  dataOut(ttt+0x10000, 5, 0, 1000, false),
		"other task":       dataOut(ttt, 6, 0, 1000, false),
		"before the range": dataOut(ttt, 5, 0, 0, false),
		"beyond the range": dataOut(ttt, 5, 0, 1000+8192-4095, false),
		"far away":         dataOut(ttt, 5, 0, 0xfffff000, false),
		"out of order":     dataOut(ttt, 5, 0, 2000, false),
		"wrong DataSN":     dataOut(ttt, 5, 1, 1000, false),
	} {
		r.send(r.frame(b, nil, data))
		p := r.up.PDU(t, name)
		if p.Bad == nil || p.Bad.Reason != iscsi.RejectInvalidField || p.BHS.Opcode() != iscsi.OpDataOut {
			t.Errorf("%s: %v", name, p.Bad)
		}
		p.Release()
	}
	if !bytes.Equal(mem, make([]byte, len(mem))) {
		t.Fatal("rejected data reached the memory")
	}
	r.send(r.frame(dataOut(ttt, 5, 0, 1000, false), nil, data))
	r.send(r.frame(dataOut(ttt, 5, 1, 1000+4096, true), nil, data))
	if y := r.up.Completion(t); y != x || x.Err != nil {
		t.Fatalf("%v", y.Err)
	}
	// The tag is used up: data for it is dropped without a word.
	r.send(r.frame(dataOut(ttt, 5, 2, 1000, true), nil, data))
	// A sequence that ends early fails the transfer.
	x, q = r.getData(8192, 0, mem)
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, data))
	if r.up.Completion(t); !errors.Is(x.Err, iscsi.ErrShortData) {
		t.Fatalf("%v", x.Err)
	}
	select {
	case p := <-r.up.PDUs:
		t.Errorf("came up: % x", p.BHS)
		p.Release()
	default:
	}
}

// With DataPDUInOrder=No a Data-Out may begin anywhere in the sequence that its R2T
// asked for. One that begins inside and ends behind it would lie in what another R2T
// has asked for, and be counted for this one.
func TestTargetDataOutBeyondItsR2T(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) {
		p.DataPDUInOrder, p.MaxBurstLength, p.MaxOutstandingR2T = false, 6000, 2
	})
	mem := make([]byte, 12000)
	x, first := r.getData(12000, 500, mem)
	b, _ := r.recv()
	second := b.R2T()
	if first.Offset() != 500 || second.Offset() != 6500 || first.Desired() != 6000 || second.Desired() != 6000 {
		t.Fatalf("R2Ts for %d at %d and %d at %d", first.Desired(), first.Offset(), second.Desired(), second.Offset())
	}
	bad := bytes.Repeat([]byte{0xbb}, 4096)
	for name, b := range map[string]iscsi.BHS{
		"over the end of the first":        dataOut(first.TTT(), 5, 0, 500+6000-4095, false),
		"at the end of the first":          dataOut(first.TTT(), 5, 0, 500+6000, false),
		"over the end of the second":       dataOut(second.TTT(), 5, 0, 6500+6000-4095, false),
		"into the second from in front":    dataOut(second.TTT(), 5, 0, 6499, false),
		"of the first, wholly in the next": dataOut(first.TTT(), 5, 0, 7000, false),
	} {
		r.send(r.frame(b, nil, bad))
		p := r.up.PDU(t, name)
		if p.Bad == nil || p.Bad.Reason != iscsi.RejectInvalidField || p.BHS.Opcode() != iscsi.OpDataOut {
			t.Errorf("%s: %v", name, p.Bad)
		}
		p.Release()
	}
	if !bytes.Equal(mem, make([]byte, len(mem))) {
		t.Fatal("rejected data reached the memory")
	}
	// From behind, up to the last byte of each: as it should be.
	want := make([]byte, len(mem))
	for i, q := range []iscsi.R2T{second, first} {
		fill := bytes.Repeat([]byte{byte(i + 1)}, 6000)
		r.send(r.frame(dataOut(q.TTT(), 5, 0, q.Offset()+2000, false), nil, fill[:4000]))
		r.send(r.frame(dataOut(q.TTT(), 5, 1, q.Offset(), true), nil, fill[:2000]))
		copy(want[q.Offset()-500:], fill)
	}
	if y := r.up.Completion(t); y != x || x.Err != nil {
		t.Fatalf("%v", y.Err)
	}
	if !bytes.Equal(mem, want) {
		t.Error("data in another order is not where it belongs")
	}
}

// What ends the connection, and why.
func TestStreamErrors(t *testing.T) {
	var nop, cmd, resp, dataIn, r2t iscsi.BHS
	nop.NewNopOut()
	cmd.NewSCSICommand()
	resp.NewSCSIResponse()
	dataIn.NewDataIn()
	r2t.NewR2T()
	long := func(b iscsi.BHS) []byte { b.SetDataLen(4097); return b[:] }
	for _, c := range []struct {
		name  string
		role  iscsi.Role
		bytes []byte
		says  string
	}{
		{"data too long", iscsi.RoleTarget, long(nop), "4097 bytes; 4096 is the limit"},
		{"response at the target", iscsi.RoleTarget, resp[:], "other side to send"},
		{"command at the initiator", iscsi.RoleInitiator, cmd[:], "other side to send"},
		{"AHS on a NOP", iscsi.RoleTarget, func() []byte { b := nop; b.SetAHSLen(4); return b[:] }(), "additional header segments"},
		{"data on an R2T", iscsi.RoleInitiator, append(append([]byte(nil), func() []byte { b := r2t; b.SetDataLen(4); return b[:] }()...), 1, 2, 3, 4), "R2T with data"},
		{"cut header", iscsi.RoleTarget, nop[:20], "within a PDU"},
		{"cut data", iscsi.RoleTarget, func() []byte { b := nop; b.SetDataLen(8); return append(b[:], 1, 2) }(), "within a PDU"},
		{"end", iscsi.RoleTarget, nil, "EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPeer(t, c.role, nil)
			r.send(c.bytes)
			r.nc.(*net.TCPConn).CloseWrite()
			if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// What a hostile target does to an initiator's task ends the connection before
// any byte outside the buffers is touched.
func TestInitiatorHostileTarget(t *testing.T) {
	in := func(itt, sn, off uint32, status bool) iscsi.BHS {
		var b iscsi.BHS
		d := b.NewDataIn()
		d.SetITT(itt)
		d.SetDataSN(sn)
		d.SetOffset(off)
		d.SetHasStatus(status)
		return b
	}
	r2t := func(ttt, sn, off, n uint32) iscsi.BHS {
		var b iscsi.BHS
		q := b.NewR2T()
		q.SetITT(1)
		q.SetTTT(ttt)
		q.SetR2TSN(sn)
		q.SetOffset(off)
		q.SetDesired(n)
		return b
	}
	data := make([]byte, 512)
	for _, c := range []struct {
		name string
		b    iscsi.BHS
		data []byte
		says string
	}{
		{"Data-In behind the end", in(1, 0, 9000-511, false), data, "buffer of 9000"},
		{"Data-In far away", in(1, 0, 0xffffff00, false), data, "buffer of 9000"},
		{"Data-In out of order", in(1, 0, 512, false), data, "expected 0"},
		{"DataSN", in(1, 3, 0, false), data, "DataSN 3"},
		{"status without F", in(1, 0, 0, true), data, "without F"},
		{"R2T with the reserved tag", r2t(iscsi.ReservedTag, 0, 0, 100), nil, "reserved tag"},
		{"R2T for nothing", r2t(1, 0, 0, 0), nil, "R2T for 0"},
		{"R2T for too much", r2t(1, 0, 0, 262145), nil, "MaxBurstLength"},
		{"R2T behind the end", r2t(1, 0, 8000, 1001), nil, "buffer of 9000"},
		{"R2T far away", r2t(1, 0, 0xffffff00, 512), nil, "buffer of 9000"},
		{"R2TSN", r2t(1, 1, 0, 100), nil, "R2TSN 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPeer(t, iscsi.RoleInitiator, nil)
			mem := bytes.Repeat([]byte{0xee}, 9000)
			p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{mem}, Out: [][]byte{make([]byte, 9000)}}}
			p.BHS.NewSCSICommand().SetITT(1)
			if err := r.c.SendControl(&p); err != nil {
				t.Fatal(err)
			}
			r.c.Push()
			r.recv()
			r.send(r.frame(c.b, nil, c.data))
			if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v", err)
			}
			if c.name != "status without F" && !bytes.Equal(mem, bytes.Repeat([]byte{0xee}, 9000)) {
				t.Error("memory was touched")
			}
		})
	}
}

// asked returns the initiator's end of a task with buffers of n bytes each way, to
// which the target has not answered yet.
func asked(t *testing.T, n int, change func(*iscsi.Params)) *peer {
	t.Helper()
	r := newPeer(t, iscsi.RoleInitiator, change)
	p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{make([]byte, n)}, Out: [][]byte{make([]byte, n)}}}
	p.BHS.NewSCSICommand().SetITT(1)
	if err := r.c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	r.recv()
	return r
}

// A number that comes a second time, with what would be next in order, is no better than one that is
// left out.
func TestInitiatorNumberTwice(t *testing.T) {
	for says, pdu := range map[string]func(b *iscsi.BHS, off uint32) []byte{
		"DataSN 0, expected 1": func(b *iscsi.BHS, off uint32) []byte {
			d := b.NewDataIn()
			d.SetITT(1)
			d.SetOffset(off)
			return make([]byte, 512)
		},
		"R2TSN 0, expected 1": func(b *iscsi.BHS, off uint32) []byte {
			q := b.NewR2T()
			q.SetITT(1)
			q.SetOffset(off)
			q.SetDesired(512)
			return nil
		},
	} {
		r := asked(t, 1024, nil)
		for _, off := range []uint32{0, 512} {
			var b iscsi.BHS
			data := pdu(&b, off)
			r.send(r.frame(b, nil, data))
		}
		if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("ended with %v, want %s", err, says)
		}
	}
}

// Where Data-Ins may come in any order each may be inside the buffer, and all of
// them be more than was asked for.
func TestInitiatorTooMuchData(t *testing.T) {
	r := asked(t, 1024, func(p *iscsi.Params) { p.DataPDUInOrder = false })
	for sn := range uint32(3) {
		var b iscsi.BHS
		d := b.NewDataIn()
		d.SetITT(1)
		d.SetDataSN(sn)
		r.send(r.frame(b, nil, make([]byte, 512)))
	}
	if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "more than the buffer of 1024") {
		t.Errorf("ended with %v", err)
	}
}

// A target that asks and asks, and does not read the answers, does not make the
// initiator queue them for ever.
func TestInitiatorTooManyR2Ts(t *testing.T) {
	const n = 256 << 10
	r := asked(t, n, nil)
	var flood []byte
	for sn := range uint32(2000) {
		var b iscsi.BHS
		q := b.NewR2T()
		q.SetITT(1)
		q.SetTTT(sn)
		q.SetR2TSN(sn)
		q.SetDesired(n)
		flood = append(flood, r.frame(b, nil, nil)...)
	}
	_, _ = r.nc.Write(flood) // may fail: the other end ends in the middle
	if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "MaxOutstandingR2T") {
		t.Errorf("ended with %v", err)
	}
}

// Data and R2Ts of a task that is gone are dropped; a status that comes with them
// still goes up, for its StatSN.
func TestInitiatorUnknownTask(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	var b iscsi.BHS
	d := b.NewDataIn()
	d.SetITT(77)
	d.SetFinal(true)
	d.SetHasStatus(true)
	d.SetSequence(iscsi.Sequence{StatSN: 3, ExpCmdSN: 4, MaxCmdSN: 5})
	r.send(r.frame(b, nil, make([]byte, 3000)))
	p := r.up.PDU(t, "response")
	if p.BHS.Opcode() != iscsi.OpSCSIResponse || p.BHS.StatSN() != 3 || p.BHS.ITT() != 77 {
		t.Errorf("% x", p.BHS)
	}
	p.Release()
	q := b.NewR2T()
	q.SetITT(77)
	q.SetTTT(1)
	q.SetDesired(100)
	r.send(r.frame(b, nil, nil))
	n := b.NewNopIn()
	n.SetTTT(9)
	r.send(r.frame(b, nil, nil))
	p = r.up.PDU(t, "NOP-In")
	if p.BHS.Opcode() != iscsi.OpNopIn {
		t.Errorf("% x", p.BHS)
	}
	p.Release()
}

// The A bit is answered with a DataACK.
func TestDataACK(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{make([]byte, 100)}}}
	c := p.BHS.NewSCSICommand()
	c.SetITT(1)
	c.SetExpStatSN(44)
	if err := r.c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	r.recv()
	var b iscsi.BHS
	d := b.NewDataIn()
	d.SetITT(1)
	d.SetAcknowledge(true)
	d.SetLUN(1 << 48)
	d.SetTTT(0x99)
	r.send(r.frame(b, nil, make([]byte, 50)))
	b, _ = r.recv()
	s := b.SNACK()
	if b.Opcode() != iscsi.OpSNACK || s.Type() != iscsi.SNACKDataACK || s.TTT() != 0x99 || s.LUN() != 1<<48 || s.BegRun() != 1 || s.RunLength() != 0 || s.ITT() != iscsi.ReservedTag || s.ExpStatSN() != 44 {
		t.Errorf("% x", b)
	}
}

// Digest errors (RFC 7143 §7.7, §7.8).
func TestDigestErrors(t *testing.T) {
	on := func(p *iscsi.Params) { p.HeaderDigest, p.DataDigest = iscsi.DigestCRC32C, iscsi.DigestCRC32C }
	t.Run("Header", func(t *testing.T) {
		r := newPeer(t, iscsi.RoleTarget, on)
		var b iscsi.BHS
		b.NewNopOut()
		f := r.frame(b, nil, nil)
		f[50] ^= 1
		r.send(f)
		if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "header digest") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("AHS", func(t *testing.T) {
		r := newPeer(t, iscsi.RoleTarget, on)
		var b iscsi.BHS
		b.NewSCSICommand().SetITT(2)
		ahs := iscsi.AppendExtendedCDB(nil, make([]byte, 32))
		r.send(r.frame(b, ahs, []byte("immediate")))
		p := r.up.PDU(t, "command")
		if !bytes.Equal(p.AHS, ahs) || string(p.Data) != "immediate" || p.Bad != nil {
			t.Errorf("AHS % x, data %q, %v", p.AHS, p.Data, p.Bad)
		}
		p.Release()
	})
	t.Run("ControlData", func(t *testing.T) {
		r := newPeer(t, iscsi.RoleTarget, on)
		var b iscsi.BHS
		b.NewSCSICommand().SetITT(2)
		f := r.frame(b, nil, []byte("immediate"))
		f[53] ^= 1
		r.send(f)
		p := r.up.PDU(t, "command")
		if p.Bad == nil || p.Bad.Reason != iscsi.RejectDataDigest {
			t.Errorf("%v", p.Bad)
		}
		p.Release()
	})
	t.Run("DataOut", func(t *testing.T) {
		r := newPeer(t, iscsi.RoleTarget, on)
		x, q := r.getData(1000, 0, make([]byte, 1000))
		f := r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, make([]byte, 1000))
		f[500] ^= 1
		r.send(f)
		var perr *iscsi.ProtocolError
		if r.up.Completion(t); !errors.As(x.Err, &perr) || perr.Reason != iscsi.RejectDataDigest {
			t.Errorf("%v", x.Err)
		}
		p := r.up.PDU(t, "Data-Out")
		if p.Bad == nil || p.Bad.Reason != iscsi.RejectDataDigest {
			t.Errorf("%v", p.Bad)
		}
		p.Release()
	})
	t.Run("DataIn", func(t *testing.T) {
		r := newPeer(t, iscsi.RoleInitiator, on)
		p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{make([]byte, 100)}}}
		p.BHS.NewSCSICommand().SetITT(1)
		if err := r.c.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		r.recv()
		var b iscsi.BHS
		b.NewDataIn().SetITT(1)
		f := r.frame(b, nil, make([]byte, 100))
		f[80] ^= 1
		r.send(f)
		if err := r.up.End(t); !errors.Is(err, errDigestFatal) {
			t.Errorf("ended with %v", err)
		}
	})
}

// A transfer into a mapping that has been truncated fails alone.
func TestMemoryFault(t *testing.T) {
	const n = 64 << 10
	mem := faultmap.New(t, n, 0)
	for _, digest := range []iscsi.Digest{iscsi.DigestNone, iscsi.DigestCRC32C} {
		r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) {
			p.MaxRecvDataSegmentLength = n
			p.DataDigest = digest
		})
		x, q := r.getData(n, 0, mem)
		r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, make([]byte, n)))
		if r.up.Completion(t); !errors.Is(x.Err, iscsi.ErrMemoryFault) {
			t.Fatalf("%v", x.Err)
		}
		// The stream is intact.
		good := make([]byte, 100)
		y, q := r.getData(100, 0, good)
		r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, bytes.Repeat([]byte{9}, 100)))
		if r.up.Completion(t); y.Err != nil || good[99] != 9 {
			t.Fatalf("%v", y.Err)
		}
	}
}

// Any bytes from the peer: no panic, no leak, and the connection ends when the
// stream does.
func FuzzStream(f *testing.F) {
	var b iscsi.BHS
	b.NewNopOut().SetITT(1)
	f.Add(append([]byte(nil), b[:]...), true)
	b = dataOut(0x10000, 5, 0, 0, true)
	b.SetDataLen(5)
	f.Add(append(append([]byte(nil), b[:]...), 1, 2, 3, 4, 5, 0, 0, 0), true)
	b.NewDataIn().SetITT(1)
	b.SetDataLen(8)
	f.Add(append(append([]byte(nil), b[:]...), 1, 2, 3, 4, 5, 6, 7, 8), false)
	b.NewR2T().SetITT(1)
	b.R2T().SetDesired(100)
	f.Add(append([]byte(nil), b[:]...), false)
	// What Linux says to each other, from the middle of the full feature phase.
	for _, name := range pcaptest.Names(f, "iscsi-tcp") {
		for _, c := range pcaptest.Open(f, name) {
			for target, b := range map[bool][]byte{true: c.C2S, false: c.S2C} {
				for len(b) >= iscsi.BHSLen && (b[0]&0x3f == byte(iscsi.OpLoginRequest) || b[0]&0x3f == byte(iscsi.OpLoginResponse)) {
					n := int(b[5])<<16 | int(b[6])<<8 | int(b[7])
					b = b[min(len(b), iscsi.BHSLen+n+iscsi.PadLen(n)):]
				}
				f.Add(b[:min(len(b), 3000)], target)
			}
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte, target bool) {
		a, s := loopback.Pair(t)
		role := iscsi.RoleInitiator
		if target {
			role = iscsi.RoleTarget
		}
		c, err := New(s, role, Config{})
		if err != nil {
			t.Fatal(err)
		}
		p := iscsi.NewNegotiation(role, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
		p.MaxBurstLength = 512
		c.NoticeKeyValues(&p)
		if err := c.Enable(); err != nil {
			t.Fatal(err)
		}
		up := &releaser{end: make(chan struct{})}
		mem := make([]byte, 7000)
		c.Start(up)
		if target {
			if err := c.GetData(&iscsi.Transfer{ITT: 5, Ref: new(iscsi.Ref), Len: 1000, Segs: [][]byte{mem[1000:2000]}}); err != nil {
				t.Fatal(err)
			}
			c.Push()
		} else {
			for i := range uint32(3) { // what is aimed at, too, lies between guards
				q := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{mem[1000+2000*i : 2000+2000*i]}, Out: [][]byte{make([]byte, 1000)}}}
				q.BHS.NewSCSICommand().SetITT(1 + i)
				if err := c.SendControl(&q); err != nil {
					t.Fatal(err)
				}
			}
			c.Push()
		}
		go io.Copy(io.Discard, a)
		_, _ = a.Write(stream)
		a.CloseWrite()
		<-up.end
		<-c.Ended()
		a.Close()
		for _, m := range [][]byte{mem[:1000], mem[2000:3000], mem[4000:5000], mem[6000:]} {
			if len(bytes.Trim(m, "\x00")) != 0 {
				t.Fatal("memory beside the buffer was touched")
			}
		}
		if n := BuffersOut(); n != 0 {
			t.Fatalf("%d buffers are out", n)
		}
	})
}

type releaser struct{ end chan struct{} }

func (r *releaser) ControlNotify(p *iscsi.PDU)           { p.Release() }
func (r *releaser) DataCompletionNotify(*iscsi.Transfer) {}
func (r *releaser) ConnectionTerminateNotify(error)      { close(r.end) }
func (r *releaser) Sequence() iscsi.Sequence             { return iscsi.Sequence{} }

// A port that is somebody else's is recognised by its first words, however few they are.
func TestStranger(t *testing.T) {
	for name, says := range map[string]string{
		"SSH":   "SSH-2.0-OpenSSH_9.2p1\r\n",
		"HTTP":  "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n400 Bad Request",
		"TLS":   "\x15\x03\x01\x00\x02\x02\x46",
		"MySQL": "J\x00\x00\x00\n8.0.36",
	} {
		r := loginPeer(t, iscsi.RoleInitiator, Config{})
		r.c.Start(r.up)
		r.send([]byte(says)) // and keeps the connection
		err := r.up.End(t)
		if pe, ok := errors.AsType[*iscsi.ProtocolError](err); !ok || !strings.Contains(pe.Error(), fmt.Sprintf("does not speak iSCSI: it begins with %q", says[:min(len(says), strangerBytes)])) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
