package iscsitcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
)

// level1 is a target at error recovery level 1 with short Data-Ins.
func level1(p *iscsi.Params) {
	p.ErrorRecoveryLevel = 1
	p.HeaderDigest, p.DataDigest = iscsi.DigestCRC32C, iscsi.DigestCRC32C
	p.MaxXmitDataSegmentLength, p.MaxRecvDataSegmentLength = 1024, 1024
	p.MaxBurstLength, p.FirstBurstLength, p.MaxOutstandingR2T = 4096, 4096, 1
}

func filled(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>8) ^ byte(i*7)
	}
	return b
}

// put sends data for a task, and reads the n Data-Ins.
func (r *peer) put(itt uint32, mem []byte) []iscsi.BHS {
	r.t.Helper()
	x := &iscsi.Transfer{ITT: itt, Ref: new(iscsi.Ref), LUN: 3 << 48, Len: uint32(len(mem)), Segs: [][]byte{mem}, Final: true}
	if err := r.c.PutData(x); err != nil {
		r.t.Fatal(err)
	}
	r.c.Push()
	r.up.Completion(r.t)
	var all []iscsi.BHS
	for range (len(mem) + 1023) / 1024 {
		b, _ := r.recv()
		all = append(all, b)
	}
	return all
}

// respond sends a SCSI Response with a StatSN, and reads it.
func (r *peer) respond(itt, sn uint32) iscsi.BHS {
	r.t.Helper()
	var p iscsi.PDU
	s := p.BHS.NewSCSIResponse()
	s.SetITT(itt)
	s.SetSequence(iscsi.Sequence{StatSN: sn, ExpCmdSN: 1, MaxCmdSN: 2})
	if err := r.c.SendControl(&p); err != nil {
		r.t.Fatal(err)
	}
	r.c.Push()
	b, _ := r.recv()
	return b
}

// snack sends a SNACK. exp is ExpStatSN.
func (r *peer) snack(kind iscsi.SNACKType, itt, ttt, beg, run, exp uint32) {
	r.t.Helper()
	var b iscsi.BHS
	s := b.NewSNACK(kind)
	s.SetITT(itt)
	s.SetTTT(ttt)
	s.SetBegRun(beg)
	s.SetRunLength(run)
	s.SetExpStatSN(exp)
	if kind == iscsi.SNACKDataACK {
		s.SetLUN(3 << 48)
	}
	r.send(r.frame(b, nil, nil))
}

func (r *peer) rejected(want iscsi.RejectReason) {
	r.t.Helper()
	p := r.up.PDU(r.t, "bad SNACK")
	defer p.Release()
	if p.Bad == nil || p.Bad.Reason != want {
		r.t.Errorf("a SNACK came up with %v, want %v", p.Bad, want)
	}
}

const none uint32 = iscsi.ReservedTag

// Data SNACKs are served with exact copies, whatever has become of the volume; what
// was not sent or has been acknowledged is refused (RFC 7143 §11.16).
func TestDataSNACK(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	mem := filled(6000)
	want := bytes.Clone(mem)
	sent := r.put(5, mem)
	clear(mem) // a later WRITE
	for i, b := range sent {
		d := b.DataIn()
		last := i == len(sent)-1
		if d.DataSN() != uint32(i) || d.HasStatus() || d.Final() != (i == 3 || last) || d.Acknowledge() != (i == 3) {
			t.Errorf("Data-In %d: DataSN %d, F %v, A %v, S %v", i, d.DataSN(), d.Final(), d.Acknowledge(), d.HasStatus())
		}
		if i == 3 && (d.TTT() == none || d.LUN() != 3<<48) {
			t.Errorf("Data-In with A: TTT %#x, LUN %#x", d.TTT(), d.LUN())
		}
	}
	if b := r.respond(5, 7); b.SCSIResponse().ExpDataSN() != 6 {
		t.Errorf("ExpDataSN %d", b.SCSIResponse().ExpDataSN())
	}
	again := func(first, n int) {
		t.Helper()
		for i := first; i < first+n; i++ {
			b, data := r.recv()
			w := sent[i]
			w.SetSequence(iscsi.Sequence{ExpCmdSN: 8, MaxCmdSN: 9})
			if b != w {
				t.Errorf("Data-In %d again:\n% x, want\n% x", i, b[:], w[:])
			}
			if off := i * 1024; !bytes.Equal(data, want[off:min(off+1024, 6000)]) {
				t.Errorf("Data-In %d carries other data", i)
			}
		}
	}
	r.snack(iscsi.SNACKData, 5, none, 1, 2, 7)
	again(1, 2)
	r.snack(iscsi.SNACKData, 5, none, 4, 0, 7)
	again(4, 2)
	r.snack(iscsi.SNACKData, 5, none, 0, 0, 7)
	again(0, 6)
	for _, c := range []struct {
		kind          iscsi.SNACKType
		itt, ttt      uint32
		beg, run, exp uint32
		reason        iscsi.RejectReason
	}{
		{iscsi.SNACKData, 5, none, 6, 0, 7, iscsi.RejectProtocol},               // not sent yet
		{iscsi.SNACKData, 5, none, 4, 3, 7, iscsi.RejectProtocol},               // one too many
		{iscsi.SNACKData, 5, none, 1, 0xffffffff, 7, iscsi.RejectProtocol},      // wraps
		{iscsi.SNACKData, 6, none, 0, 0, 7, iscsi.RejectProtocol},               // no such task
		{iscsi.SNACKData, none, none, 0, 0, 7, iscsi.RejectInvalidField},        //
		{iscsi.SNACKData, 5, 1, 0, 0, 7, iscsi.RejectInvalidField},              //
		{iscsi.SNACKStatus, 5, none, 7, 1, 7, iscsi.RejectInvalidField},         //
		{iscsi.SNACKStatus, none, none, 8, 1, 7, iscsi.RejectProtocol},          //
		{iscsi.SNACKStatus, none, none, 6, 1, 7, iscsi.RejectProtocol},          //
		{iscsi.SNACKDataACK, none, 0x7777, 4, 0, 7, iscsi.RejectDataACK},        //
		{iscsi.SNACKDataACK, none, sent[3].TTT(), 7, 0, 7, iscsi.RejectDataACK}, // beyond what was sent
		{iscsi.SNACKDataACK, none, sent[3].TTT(), 4, 1, 7, iscsi.RejectDataACK}, //
		{iscsi.SNACKRData, 5, none, 0, 0, 7, iscsi.RejectInvalidField},          //
		{iscsi.SNACKRData, 5, 0, 0, 0, 7, iscsi.RejectInvalidField},             //
		{iscsi.SNACKRData, 5, 9, 1, 0, 7, iscsi.RejectInvalidField},             //
		{iscsi.SNACKRData, 6, 9, 0, 0, 7, iscsi.RejectProtocol},                 //
		{9, 5, none, 0, 0, 7, iscsi.RejectInvalidField},                         //
	} {
		r.snack(c.kind, c.itt, c.ttt, c.beg, c.run, c.exp)
		r.rejected(c.reason)
	}
	// DataACK moves the beginning; what it covers is gone.
	r.snack(iscsi.SNACKDataACK, none, sent[3].TTT(), 4, 0, 7)
	r.snack(iscsi.SNACKData, 5, none, 3, 1, 7)
	r.rejected(iscsi.RejectProtocol)
	r.snack(iscsi.SNACKData, 5, none, 0, 0, 7)
	again(4, 2)
	// And the acknowledged status ends it.
	r.snack(iscsi.SNACKData, 5, none, 4, 2, 8)
	r.rejected(iscsi.RejectProtocol)
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if k := r.c.rec; k.room != keepBytes || len(k.tasks)+len(k.tags)+len(k.status) != 0 {
		t.Errorf("kept after everything was acknowledged: %d bytes, %d tasks", keepBytes-k.room, len(k.tasks))
	}
}

// Numbered PDUs are sent again with their old StatSN and the present window.
func TestStatusSNACK(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	var sent []iscsi.BHS
	for i := range uint32(4) {
		sent = append(sent, r.respond(10+i, 0xfffffffe+i)) // the numbers wrap
	}
	check := func(first, n int) {
		t.Helper()
		for i := first; i < first+n; i++ {
			b, _ := r.recv()
			w := sent[i]
			w.SetSequence(iscsi.Sequence{StatSN: 0xfffffffe + uint32(i), ExpCmdSN: 8, MaxCmdSN: 9})
			if b != w {
				t.Errorf("response %d again:\n% x, want\n% x", i, b[:], w[:])
			}
		}
	}
	r.snack(iscsi.SNACKStatus, none, none, 0xffffffff, 2, 0xfffffffe)
	check(1, 2)
	r.snack(iscsi.SNACKStatus, none, none, 0, 0, 0xfffffffe)
	check(0, 4)
	r.snack(iscsi.SNACKStatus, none, none, 1, 0, 0)
	check(3, 1)
	r.snack(iscsi.SNACKStatus, none, none, 0xffffffff, 1, 0)
	r.rejected(iscsi.RejectProtocol)
	// An acknowledgement of what was not sent acknowledges nothing.
	r.snack(iscsi.SNACKStatus, none, none, 0, 1, 99)
	check(2, 1)
}

// R-Data: cut anew to a smaller MaxRecvDataSegmentLength, the response with the tag
// and its old StatSN behind it (RFC 7143 §11.16.3).
func TestRDataSNACK(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	mem := filled(6000)
	sent := r.put(5, mem)
	first := r.respond(5, 7)
	r.snack(iscsi.SNACKDataACK, none, sent[3].TTT(), 4, 0, 7)
	p := r.p
	p.MaxXmitDataSegmentLength = 512
	r.c.NoticeKeyValues(&p)
	r.snack(iscsi.SNACKRData, 5, 0x55, 0, 0, 7)
	off := uint32(4096)
	for i := range uint32(4) {
		b, data := r.recv()
		d := b.DataIn()
		if d.DataSN() != 4+i || d.Offset() != off || len(data) > 512 || !bytes.Equal(data, mem[off:off+uint32(len(data))]) || d.Final() != (i == 3) {
			t.Fatalf("Data-In %d: DataSN %d, offset %d, %d bytes, F %v", i, d.DataSN(), d.Offset(), len(data), d.Final())
		}
		off += uint32(len(data))
	}
	b, _ := r.recv()
	s := b.SCSIResponse()
	if s.SNACKTag() != 0x55 || s.StatSN() != first.StatSN() || s.ExpDataSN() != 8 || off != 6000 {
		t.Errorf("response: SNACK Tag %#x, StatSN %d, ExpDataSN %d, after %d bytes", s.SNACKTag(), s.StatSN(), s.ExpDataSN(), off)
	}
	r.snack(iscsi.SNACKStatus, none, none, 7, 1, 7)
	if b, _ := r.recv(); b.SCSIResponse().SNACKTag() != 0x55 {
		t.Error("a status SNACK brings the response without the last SNACK Tag")
	}
}

// What does not fit is not kept, and says so when it is asked for; answered commands
// make room first.
func TestKeepIsBounded(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) {
		level1(p)
		p.MaxXmitDataSegmentLength, p.MaxBurstLength = 1<<20, 1<<20
	})
	mem := filled(1 << 20)
	one := func(itt uint32) {
		t.Helper()
		x := &iscsi.Transfer{ITT: itt, Ref: new(iscsi.Ref), LUN: 3 << 48, Len: 1 << 20, Segs: [][]byte{mem}, Final: true}
		if err := r.c.PutData(x); err != nil {
			t.Fatal(err)
		}
		go r.c.Push()
		r.recv()
		r.up.Completion(t)
	}
	for i := range uint32(17) {
		one(i) // the last one does not fit: none has been answered
	}
	r.snack(iscsi.SNACKData, 16, none, 0, 0, 1)
	r.rejected(iscsi.RejectSNACK)
	r.respond(3, 1)
	one(20) // takes the room of 3
	r.snack(iscsi.SNACKData, 3, none, 0, 0, 1)
	r.rejected(iscsi.RejectSNACK)
	r.snack(iscsi.SNACKData, 20, none, 0, 0, 1)
	if b, data := r.recv(); b.ITT() != 20 || !bytes.Equal(data, mem) {
		t.Error("the newest command's data was not kept")
	}
	r.c.Recovery().Forget(20)
	r.c.Recovery().Forget(3) // answered: stays until it is acknowledged
	r.c.mu.Lock()
	if k := r.c.rec; k.room != 1<<20 || k.tasks[3] == nil || k.tasks[20] != nil {
		t.Errorf("room %d, task 3 %v, task 20 %v", k.room, k.tasks[3], k.tasks[20])
	}
	r.c.mu.Unlock()
	// Responses are bounded too.
	for i := range uint32(keepStatus + 10) {
		r.respond(100, 2+i)
	}
	r.c.mu.Lock()
	n := len(r.c.rec.status)
	r.c.mu.Unlock()
	if n != keepStatus {
		t.Errorf("%d responses are kept", n)
	}
}

// Data-Outs that are damaged or lost are asked for again, and nothing else.
func TestRecoveryR2T(t *testing.T) {
	for _, c := range []struct {
		name string
		send []int       // which of the four Data-Outs of the burst are sent
		bad  []int       // which of them are damaged in their data
		head []int       // which of them are damaged in their header
		want [][2]uint32 // offset and length of the R2Ts that follow
	}{
		{name: "damaged", send: []int{0, 1, 2, 3}, bad: []int{1}, want: [][2]uint32{{1024, 1024}}},
		{name: "damaged last", send: []int{0, 1, 2, 3}, bad: []int{3}, want: [][2]uint32{{3072, 1024}}},
		{name: "lost in the middle", send: []int{0, 3}, want: [][2]uint32{{1024, 2048}}},
		{name: "first lost", send: []int{1, 2, 3}, want: [][2]uint32{{0, 1024}}},
		{name: "last lost", send: []int{0, 1, 2}, want: [][2]uint32{{3072, 1024}}},
		{name: "all lost", want: [][2]uint32{{0, 4096}}},
		{name: "header damaged", send: []int{0, 1, 2, 3}, head: []int{1}, want: [][2]uint32{{1024, 1024}}},
		{name: "two holes", send: []int{0, 1, 2, 3}, bad: []int{0, 2}, want: [][2]uint32{{0, 1024}, {2048, 1024}}},
		{name: "duplicate", send: []int{0, 0, 1, 1, 2, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPeer(t, iscsi.RoleTarget, level1)
			mem, want := make([]byte, 4096), filled(4096)
			x, q := r.getData(4096, 0, mem)
			has := func(l []int, i int) bool { return bytes.IndexByte(ints(l), byte(i)) >= 0 }
			for _, i := range c.send {
				f := r.frame(dataOut(q.TTT(), 5, uint32(i), uint32(i)*1024, i == 3), nil, want[i*1024:(i+1)*1024])
				if has(c.bad, i) {
					f[200] ^= 4
				}
				if has(c.head, i) {
					f[41] ^= 4 // the offset
				}
				r.send(f)
			}
			for range c.bad {
				r.rejected(iscsi.RejectDataDigest)
			}
			if !has(c.send, 3) { // what comes last tells nothing of itself
				r.timeOut(uint32(len(c.send)) * 1024)
			}
			for i, w := range c.want {
				b, _ := r.recv()
				q := b.R2T()
				if b.Opcode() != iscsi.OpR2T || q.R2TSN() != uint32(1+i) || q.Offset() != w[0] || q.Desired() != w[1] {
					t.Fatalf("got %v R2TSN %d for %d bytes at %d, want %d at %d", b.Opcode(), q.R2TSN(), q.Desired(), q.Offset(), w[1], w[0])
				}
				for sn, off := uint32(0), w[0]; off < w[0]+w[1]; sn, off = sn+1, off+1024 {
					r.send(r.frame(dataOut(q.TTT(), 5, sn, off, off+1024 == w[0]+w[1]), nil, want[off:off+1024]))
				}
			}
			if r.up.Completion(t); x.Err != nil || !bytes.Equal(mem, want) {
				t.Errorf("%v, data right: %v", x.Err, bytes.Equal(mem, want))
			}
		})
	}
}

// timeOut lets the sequence time-out pass, which itself is far longer than a test, once
// got bytes of the only burst have come.
func (r *peer) timeOut(got uint32) {
	r.t.Helper()
	await.True(r.t, fmt.Sprintf("%d bytes have come", got), func() bool {
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		return len(r.c.gets.r2ts) == 1 && r.c.gets.r2ts[0].got == got
	})
	r.c.rec.lookForLate() // nothing since the last look?
	r.c.rec.lookForLate()
}

func ints(l []int) []byte {
	b := make([]byte, 0, len(l))
	for _, v := range l {
		b = append(b, byte(v))
	}
	return b
}

// A target does not ask for ever.
func TestRecoveryEnds(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	x, q := r.getData(1024, 0, make([]byte, 1024))
	for {
		f := r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, make([]byte, 1024))
		f[200] ^= 4
		r.send(f)
		r.rejected(iscsi.RejectDataDigest)
		b, ok := r.next()
		if !ok {
			if x.Err == nil {
				t.Error("the transfer has no error")
			}
			return
		}
		q = b.R2T()
	}
}

// An outstanding R2T is repeated for a SNACK, one that has been served is not.
func TestR2TSNACK(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	_, q := r.getData(8192, 0, make([]byte, 8192))
	for _, run := range []uint32{0, 1} {
		r.snack(iscsi.SNACKData, 5, none, 0, run, 1)
		if b, _ := r.recv(); b != *q.BHS {
			t.Errorf("R2T again:\n% x, want\n% x", b[:], q.BHS[:])
		}
	}
	r.snack(iscsi.SNACKData, 5, none, 1, 1, 1)
	r.rejected(iscsi.RejectProtocol)
	for i := range uint32(4) {
		r.send(r.frame(dataOut(q.TTT(), 5, i, i*1024, i == 3), nil, make([]byte, 1024)))
	}
	if b, _ := r.recv(); b.R2T().R2TSN() != 1 {
		t.Errorf("second R2T has number %d", b.R2T().R2TSN())
	}
	r.snack(iscsi.SNACKData, 5, none, 0, 1, 1)
	r.rejected(iscsi.RejectProtocol)
}

// An R2T that was given up can still be asked for: the initiator may have missed it,
// and the recovery R2T has the next number.
func TestStaleR2T(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	mem, want := make([]byte, 1024), filled(1024)
	x, q := r.getData(1024, 0, mem)
	r.timeOut(0)
	b, _ := r.recv()
	if b.R2T().R2TSN() != 1 || b.R2T().TTT() == q.TTT() {
		t.Fatalf("R2T %d with tag %#x", b.R2T().R2TSN(), b.R2T().TTT())
	}
	r.snack(iscsi.SNACKData, 5, none, 0, 1, 1)
	again, _ := r.recv()
	if again != *q.BHS {
		t.Errorf("R2T again:\n% x, want\n% x", again[:], q.BHS[:])
	}
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, make([]byte, 1024))) // dropped
	r.send(r.frame(dataOut(b.R2T().TTT(), 5, 0, 0, true), nil, want))
	if r.up.Completion(t); x.Err != nil || !bytes.Equal(mem, want) {
		t.Errorf("%v, data right: %v", x.Err, bytes.Equal(mem, want))
	}
}

// A PDU with a damaged header is skipped when the next header is sound; twice in a
// row, or with a length that cannot be, the connection ends.
func TestHeaderDigestResync(t *testing.T) {
	nop := func(r *peer, tag uint32) []byte {
		var b iscsi.BHS
		b.NewNopOut().SetITT(tag)
		return r.frame(b, nil, []byte("ping"))
	}
	r := newPeer(t, iscsi.RoleTarget, level1)
	for i := range uint32(3) {
		f := nop(r, 1)
		f[17] ^= 1
		r.send(f)
		r.send(nop(r, 2+i))
		p := r.up.PDU(t, "NOP-Out")
		if p.BHS.ITT() != 2+i || string(p.Data) != "ping" {
			t.Errorf("got %v for %d", p.BHS.Opcode(), p.BHS.ITT())
		}
		p.Release()
	}
	// A header that has become that of a login is not one without a digest.
	f := nop(r, 1)
	f[0] ^= byte(iscsi.OpLoginRequest)
	r.send(f)
	r.send(nop(r, 5))
	p := r.up.PDU(t, "NOP-Out")
	if p.BHS.Opcode() != iscsi.OpNopOut || p.BHS.ITT() != 5 {
		t.Errorf("got %v with tag %d behind a damaged opcode", p.BHS.Opcode(), p.BHS.ITT())
	}
	p.Release()
	for _, bad := range [][]int{{17, 17}, {7}, {5}} { // twice; length, a little and far off
		r := newPeer(t, iscsi.RoleTarget, level1)
		for _, at := range bad {
			f := nop(r, 1)
			f[at] ^= 1
			r.send(f)
		}
		r.send(nop(r, 2))
		if err := r.up.End(t); err != errHeaderDigest {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// SNACKs of any content neither end the connection nor are served beyond what was
// sent.
func FuzzSNACK(f *testing.F) {
	f.Add(byte(0), uint32(5), none, uint32(0), uint32(0), uint32(7))
	f.Add(byte(1), none, none, uint32(7), uint32(1), uint32(7))
	f.Add(byte(2), none, uint32(1), uint32(4), uint32(0), uint32(8))
	f.Add(byte(3), uint32(5), uint32(9), uint32(0), uint32(0), uint32(7))
	f.Fuzz(func(t *testing.T, kind byte, itt, ttt, beg, run, exp uint32) {
		c := &Conn{role: iscsi.RoleTarget, up: datamovertest.NewRecorder(), st: iscsi.ConnFull}
		c.rec = newRecovery(c)
		c.params.MaxXmitDataSegmentLength, c.params.MaxBurstLength = 512, 1024
		c.tx.init(c)
		x := &iscsi.Transfer{ITT: 5, Ref: new(iscsi.Ref), LUN: 0, Len: 3000, Segs: [][]byte{filled(3000)}, Final: true}
		if err := c.PutData(x); err != nil {
			t.Fatal(err)
		}
		var p iscsi.PDU
		p.BHS.NewSCSIResponse().SetITT(5)
		p.BHS.SetSequence(iscsi.Sequence{StatSN: 7})
		_ = c.SendControl(&p)
		rnd := rand.New(rand.NewPCG(uint64(beg), uint64(run)))
		for range 4 {
			var b iscsi.BHS
			q := b.NewSNACK(iscsi.SNACKType(kind))
			q.SetITT(itt)
			q.SetTTT(ttt)
			q.SetBegRun(beg)
			q.SetRunLength(run)
			c.rec.acked(exp)
			before := c.tx.again
			reason := c.rec.serve(q)
			if n := c.tx.again - before; n > 7 || reason != 0 && n > 0 {
				t.Fatalf("%d PDUs are sent for a SNACK that was answered with %v", n, reason)
			}
			kind, beg, run, exp = kind+byte(rnd.IntN(2)), beg+uint32(rnd.IntN(3)), run-uint32(rnd.IntN(3)), exp+uint32(rnd.IntN(2))
		}
		if c.rec.room > keepBytes || c.rec.room < keepBytes-3000 {
			t.Fatalf("room %d", c.rec.room)
		}
	})
}
