package iscsitcp

import (
	"bytes"
	"sync/atomic"
	"testing"

	"softiser/internal/await"
	"softiser/internal/faultmap"
	"softiser/internal/iscsi"
)

// bound is the memory of all connections, as a number.
type bound struct {
	most int
	sum  atomic.Int64
}

func (m *bound) Reserve(n int) bool {
	if m.sum.Add(int64(n)) > int64(m.most) {
		m.sum.Add(int64(-n))
		return false
	}
	return true
}

func (m *bound) Unreserve(n int) { m.sum.Add(int64(-n)) }
func (m *bound) used() int       { return int(m.sum.Load()) }

// testKeeper is a keeper and what tests do with it.
type testKeeper struct {
	keeper
	t  *testing.T
	m  *bound
	sn uint32
}

func newTestKeeper(t *testing.T) *testKeeper {
	m := &bound{most: 1 << 30}
	return &testKeeper{keeper: newKeeper(m), t: t, m: m}
}

// read keeps data of a READ, as one Data-In.
func (k *testKeeper) read(itt uint32, segs ...[]byte) []byte {
	x := &iscsi.Transfer{ITT: itt, Segs: segs}
	for _, s := range segs {
		x.Len += uint32(len(s))
	}
	t := k.task(x)
	b := k.copyOf(t, x)
	t.pdus = append(t.pdus, keptPDU{data: b})
	k.pdus++
	return b
}

// control keeps a control PDU of a task.
func (k *testKeeper) control(op iscsi.Opcode, itt uint32, data []byte) {
	var p iscsi.PDU
	switch op {
	case iscsi.OpSCSIResponse:
		p.BHS.NewSCSIResponse()
	case iscsi.OpTaskResponse:
		p.BHS.NewTaskResponse(0)
	case iscsi.OpNopIn:
		p.BHS.NewNopIn()
	case iscsi.OpLoginResponse:
		p.BHS.NewLoginResponse()
	}
	p.BHS.SetITT(itt)
	p.BHS.SetStatSN(k.sn)
	p.Data = data
	k.sent(&p)
	k.sn++
}

// is checks what is kept, and that it is what is counted.
func (k *testKeeper) is(tasks, status, bytes int) {
	k.t.Helper()
	pdus, kept := 0, 0
	for _, t := range k.tasks {
		pdus += len(t.pdus)
		kept += t.bytes
		if k.tags[t.tag] != t {
			k.t.Errorf("task %d is not found by its tag", t.itt)
		}
	}
	for _, s := range k.status {
		kept += len(s.data)
	}
	if len(k.tasks) != tasks || len(k.tags) != tasks || len(k.status) != status || kept != bytes || k.m.used() != bytes || k.room != keepBytes-bytes || k.pdus != pdus {
		k.t.Errorf("%d tasks, %d tags, %d PDUs with status, %d bytes, of which %d are reserved and %d taken, %d of %d Data-Ins; want %d tasks, %d, %d bytes",
			len(k.tasks), len(k.tags), len(k.status), kept, k.m.used(), keepBytes-k.room, k.pdus, pdus, tasks, status, bytes)
	}
}

// TestKeeperCounts: what is kept is what is counted, until it is acknowledged, given up, or
// the connection ends.
func TestKeeperCounts(t *testing.T) {
	k := newTestKeeper(t)
	one, two := bytes.Repeat([]byte{1}, 100), bytes.Repeat([]byte{2}, 50)
	if got := k.read(5, one, two); !bytes.Equal(got, append(bytes.Clone(one), two...)) {
		t.Errorf("% x", got)
	}
	k.read(5, two)
	k.is(1, 0, 200)
	k.ackedData(k.tasks[5], 1)
	k.is(1, 0, 50)
	k.control(iscsi.OpSCSIResponse, 5, []byte{0: 0, 9: 0})
	k.control(iscsi.OpNopIn, 9, two)
	k.is(1, 2, 110)
	k.read(6, one)
	k.control(iscsi.OpSCSIResponse, 6, nil)
	k.is(2, 3, 210)
	k.acked(7) // nothing has that number yet
	k.acked(0)
	k.acked(^uint32(0)) // an old one
	k.is(2, 3, 210)
	k.acked(1)
	k.is(1, 2, 150)
	k.read(6, two) // the tag is used again: the answer has arrived
	k.is(1, 2, 100)
	if k.status[1].task != nil {
		t.Error("a response belongs to the next command with its tag")
	}
	k.acked(3)
	k.is(1, 0, 50)
	k.control(iscsi.OpNopIn, 9, two)
	k.close()
	k.is(0, 0, 0)
	if k.read(7, one) != nil {
		t.Error("kept after the end")
	}
	k.close()
	k.control(iscsi.OpNopIn, 9, two)
	k.is(0, 0, 0)
}

// TestKeeperMakesRoom: the oldest commands that have been answered and have data lose it,
// no more of them than is necessary, then the new one is sent without; who has lost some of its
// data keeps none.
func TestKeeperMakesRoom(t *testing.T) {
	k := newTestKeeper(t)
	const most = 1000
	k.room = most
	full := func() { k.room += keepBytes - most } // for is
	for itt := uint32(1); itt <= 4; itt++ {
		k.read(itt, make([]byte, 200))
	}
	for _, itt := range []uint32{1, 3, 2} {
		k.control(iscsi.OpSCSIResponse, itt, nil)
	}
	k.ackedData(k.tasks[1], 1)
	if k.read(5, make([]byte, 400)) == nil || k.tasks[1].lost || k.tasks[3].lost || k.room != 0 {
		t.Errorf("there was room: %v, %v, %d", k.tasks[1].lost, k.tasks[3].lost, k.room)
	}
	if k.read(6, make([]byte, 150)) == nil || k.tasks[1].lost || !k.tasks[3].lost || k.tasks[2].lost || k.tasks[3].pdus[0].data != nil {
		t.Error("the oldest that was answered and has data did not make room")
	}
	if k.read(4, make([]byte, 500)) != nil || !k.tasks[2].lost || !k.tasks[4].lost || k.tasks[4].pdus[0].data != nil {
		t.Error("kept without room")
	}
	if k.read(4, make([]byte, 1)) != nil || k.tasks[5].lost {
		t.Error("a READ keeps the end of its data, whose beginning is lost")
	}
	full()
	k.is(6, 3, 550)
	k.m.most = k.m.used() // what all have
	if k.read(7, make([]byte, 100)) != nil || !k.tasks[7].lost {
		t.Error("kept although all have no more")
	}
	k.is(7, 3, 550)
	// Memory that cannot be read.
	k.m.most = 1 << 30
	if k.read(8, faultmap.New(t, 8192, 4096)) != nil || !k.tasks[8].lost {
		t.Error("kept what could not be read")
	}
	k.is(8, 3, 550)
	k.close()
	k.is(0, 0, 0)
}

// TestKeeperAnswers: only the SCSI Response of a running READ is its answer, and only what
// has a number of its own is kept.
func TestKeeperAnswers(t *testing.T) {
	k := newTestKeeper(t)
	k.read(5, make([]byte, 10))
	k.control(iscsi.OpTaskResponse, 5, nil)
	k.control(iscsi.OpLoginResponse, 5, nil)
	k.control(iscsi.OpNopIn, iscsi.ReservedTag, nil)
	if k.is(1, 1, 10); k.tasks[5].answered || k.answer(5) >= 0 {
		t.Error("answered by something else")
	}
	k.control(iscsi.OpSCSIResponse, 6, nil)
	k.control(iscsi.OpSCSIResponse, 5, nil)
	k.control(iscsi.OpSCSIResponse, 5, nil) // of a later command without data
	if k.is(1, 4, 10); !k.tasks[5].answered || k.answer(5) != 3 || k.status[3].task != nil {
		t.Errorf("answered %v, by number %d", k.tasks[5].answered, k.answer(5))
	}
	k.lastTag = iscsi.ReservedTag - 1
	k.read(7, make([]byte, 10))
	k.read(8, make([]byte, 10))
	if k.tasks[7].tag != 1 || k.tasks[8].tag != 2 {
		t.Errorf("tags %#x and %#x", k.tasks[7].tag, k.tasks[8].tag)
	}
}

// level2 is level1, one higher.
func level2(p *iscsi.Params) {
	level1(p)
	p.ErrorRecoveryLevel = 2
}

// recovery is the layer of the peer's connection, whose memory is m from here on.
func (r *peer) recovery(m *bound) *recovery {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.c.rec.memory = m
	return r.c.rec
}

// kept is what a connection keeps.
func (rec *recovery) kept() (tasks, tags, status, pdus, bytes int) {
	rec.c.mu.Lock()
	defer rec.c.mu.Unlock()
	return len(rec.tasks), len(rec.tags), len(rec.status), rec.pdus, keepBytes - rec.room
}

func (r *peer) keeps(rec *recovery, tasks, status, pdus, bytes int) {
	r.t.Helper()
	if t, tags, s, p, b := rec.kept(); t != tasks || tags != tasks || s != status || p != pdus || b != bytes {
		r.t.Errorf("%d tasks, %d tags, %d PDUs with status, %d Data-Ins, %d bytes are kept; want %d, %d, %d, %d", t, tags, s, p, b, tasks, status, pdus, bytes)
	}
}

// TestAdopt: a task goes over to another connection with all that is kept of it, and
// nothing of it stays: what the initiator has not got comes again, by numbers and tags
// of the new one.
func TestAdopt(t *testing.T) {
	for _, c := range []struct {
		name     string
		answered bool
		exp      uint32
		from     int // the first Data-In that comes
	}{{"answered", true, 0, 0}, {"answered, some has arrived", true, 2, 2}, {"answered, all has", true, 6, 6}, {"answered, more than all", true, 7, 0}, {"running", false, 3, 3}} {
		t.Run(c.name, func(t *testing.T) {
			m := &bound{most: 1 << 30}
			a, b := newPeer(t, iscsi.RoleTarget, level2), newPeer(t, iscsi.RoleTarget, level2)
			old, now := a.recovery(m), b.recovery(m)
			mem := filled(6000)
			sent := a.put(5, mem)
			a.put(6, mem[:100])
			status := 0
			if c.answered {
				a.respond(5, 7)
				status = 1
				// Cut anew for a reader of another kind, all of it and the response come again.
				a.snack(iscsi.SNACKRData, 5, 77, 0, 0, 7)
				for range 7 {
					a.recv()
				}
			}
			a.keeps(old, 2, status, 7, 6100)
			now.lastTag = iscsi.ReservedTag - 1
			var answer iscsi.PDU
			answered, lost := b.c.Recovery().Adopt(a.c.Recovery(), 5, c.exp, nil, &answer)
			b.c.Push()
			if answered != c.answered || lost {
				t.Fatalf("answered %v, lost %v", answered, lost)
			}
			if c.answered {
				if s := answer.BHS.SCSIResponse(); s.ITT() != 5 || s.SNACKTag() != 0 || s.ExpDataSN() != 6 || snOf(&answer.Ref).dataSN() != 6 {
					t.Errorf("the answer: % x, next DataSN %d", answer.BHS, snOf(&answer.Ref).dataSN())
				}
			}
			for i := c.from; i < len(sent); i++ {
				h, data := b.recv()
				if d := h.DataIn(); d.DataSN() != uint32(i) || d.Acknowledge() && d.TTT() != 1 || !bytes.Equal(data, mem[i*1024:min(i*1024+1024, 6000)]) {
					t.Errorf("Data-In %d, TTT %#x, with %d bytes", d.DataSN(), d.TTT(), len(data))
				}
			}
			a.keeps(old, 1, 0, 1, 100)
			first := 0
			if c.from > 0 {
				first = c.from
			}
			left := max(6000-1024*first, 0)
			b.keeps(now, 1, 0, 6-first, left)
			if m.used() != left+100 {
				t.Errorf("%d bytes are reserved", m.used())
			}
			a.snack(iscsi.SNACKData, 5, none, 0, 0, 7)
			a.rejected(iscsi.RejectProtocol)
			a.snack(iscsi.SNACKDataACK, none, sent[3].DataIn().TTT(), 4, 0, 7)
			a.rejected(iscsi.RejectDataACK)
			a.c.Recovery().Discard()
			a.keeps(old, 0, 0, 0, 0)
			b.snack(iscsi.SNACKDataACK, none, 1, 6, 0, 7)
			b.snack(iscsi.SNACKData, 9, none, 0, 0, 7) // behind it
			b.rejected(iscsi.RejectProtocol)
			b.keeps(now, 1, 0, 0, 0)
			if m.used() != 0 {
				t.Errorf("%d bytes are still reserved", m.used())
			}
		})
	}
}

// TestAdoptSense: the data of a response goes over with it, and so does its memory.
func TestAdoptSense(t *testing.T) {
	m := &bound{most: 1 << 30}
	a, b := newPeer(t, iscsi.RoleTarget, level2), newPeer(t, iscsi.RoleTarget, level2)
	old := a.recovery(m)
	b.recovery(m)
	p := iscsi.PDU{Data: filled(20)}
	p.BHS.NewSCSIResponse().SetITT(5)
	if err := a.c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	a.keeps(old, 0, 1, 0, 20)
	if old.Holds(5) == 0 || old.Holds(6) != 0 {
		t.Error("which responses are held")
	}
	var answer iscsi.PDU
	if answered, _ := b.c.Recovery().Adopt(a.c.Recovery(), 5, 0, nil, &answer); !answered || !bytes.Equal(answer.Data, filled(20)) {
		t.Errorf("answered %v with % x", answered, answer.Data)
	}
	a.keeps(old, 0, 0, 0, 0)
	if m.used() != 0 || old.Holds(5) != 0 {
		t.Errorf("%d bytes are still reserved, held %v", m.used(), old.Holds(5))
	}
}

// TestPutInPieces: only the end of all data ends a sequence before its burst does, and asks
// for no acknowledgement; what cannot be kept is sent all the same.
func TestPutInPieces(t *testing.T) {
	for _, room := range []int{1 << 20, 0} {
		r := newPeer(t, iscsi.RoleTarget, level1)
		r.recovery(&bound{most: room})
		mem, ref := filled(8192), new(iscsi.Ref)
		for _, x := range []*iscsi.Transfer{{Offset: 0, Len: 2048}, {Offset: 2048, Len: 6144, Final: true}} {
			x.ITT, x.Ref, x.Segs = 5, ref, [][]byte{mem[x.Offset : x.Offset+x.Len]}
			if err := r.c.PutData(x); err != nil {
				t.Fatal(err)
			}
			r.c.Push()
			r.up.Completion(t)
		}
		for i := range uint32(8) {
			h, data := r.recv()
			d := h.DataIn()
			if d.DataSN() != i || d.Offset() != 1024*i || d.Final() != (i%4 == 3) || d.Acknowledge() != (i == 3) || !bytes.Equal(data, mem[1024*i:][:1024]) {
				t.Errorf("room for %d: Data-In %d: % x", room, i, h)
			}
		}
		if sn := snOf(ref).dataSN(); sn != 8 {
			t.Errorf("the next DataSN is %d", sn)
		}
	}
}

// TestRefusedSNACKs: what is asked for before anything was sent, or again after it was
// acknowledged, is refused; and who does not read what he has asked for gets no more.
func TestRefusedSNACKs(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	r.snack(iscsi.SNACKStatus, none, none, 0, 0, 7)
	r.rejected(iscsi.RejectProtocol)
	r.snack(iscsi.SNACKStatus, none, 5, 0, 0, 7)
	r.rejected(iscsi.RejectInvalidField)
	tag := r.put(5, filled(6000))[3].DataIn().TTT()
	r.snack(iscsi.SNACKDataACK, none, tag, 4, 1, 7)
	r.rejected(iscsi.RejectDataACK)
	r.snack(iscsi.SNACKDataACK, none, tag, 4, 0, 7)
	r.snack(iscsi.SNACKData, 5, none, 0, 1, 7)
	r.rejected(iscsi.RejectProtocol)
	r.respond(5, 7)
	r.respond(9, 8)
	r.snack(iscsi.SNACKStatus, none, none, 0, 1, 7)
	r.rejected(iscsi.RejectProtocol)
	ask := func(queued int) {
		r.c.mu.Lock()
		r.c.tx.again = queued
		r.c.mu.Unlock()
		r.snack(iscsi.SNACKData, 5, none, 4, 1, 7)
		r.send(r.frame(dataOut(99, 5, 0, 0, true), nil, nil)) // behind it
		r.rejected(iscsi.RejectInvalidField)
	}
	ask(againPDUs)
	ask(0)
	if h, _ := r.recv(); h.DataIn().DataSN() != 4 {
		t.Errorf("% x", h)
	}
	r.respond(10, 9) // and nothing else has come before it
}

// TestAdoptLost: a task of which something is not kept says so if the initiator still needs it.
func TestAdoptLost(t *testing.T) {
	for exp, want := range map[uint32]bool{0: true, 1: true, 2: false} {
		a, b := newPeer(t, iscsi.RoleTarget, level2), newPeer(t, iscsi.RoleTarget, level2)
		old := a.recovery(&bound{}) // no room
		b.recovery(&bound{})
		a.put(5, filled(2000))
		a.keeps(old, 1, 0, 2, 0)
		if answered, lost := b.c.Recovery().Adopt(a.c.Recovery(), 5, exp, nil, nil); answered || lost != want {
			t.Errorf("from %d on: answered %v, lost %v", exp, answered, lost)
		}
	}
}

// TestAdoptR2T: R2Ts go on from the number that the initiator names, if it can have seen
// those before.
func TestAdoptR2T(t *testing.T) {
	a, b := newPeer(t, iscsi.RoleTarget, level2), newPeer(t, iscsi.RoleTarget, level2)
	for _, c := range []struct{ next, exp, want uint32 }{{4, 4, 4}, {4, 5, 5}, {4, 6, 4}, {4, 3, 4}, {4, 0, 4}, {^uint32(0), 0, ^uint32(0)}} {
		ref := new(iscsi.Ref)
		snOf(ref).setR2TSN(c.next)
		if answered, lost := b.c.Recovery().Adopt(a.c.Recovery(), 5, c.exp, ref, nil); answered || lost {
			t.Error("nothing is known of it")
		}
		if got := snOf(ref).r2tSN(); got != c.want {
			t.Errorf("R2T %d comes next, the initiator wants %d: %d, want %d", c.next, c.exp, got, c.want)
		}
	}
}

// TestKeptAfterTheEnd: at level 1 nothing is kept when the connection has ended, at level 2
// it is until it is discarded; what is adopted by one that has ended is not sent.
func TestKeptAfterTheEnd(t *testing.T) {
	for _, level := range []func(*iscsi.Params){level1, level2} {
		m := &bound{most: 1 << 30}
		a, b := newPeer(t, iscsi.RoleTarget, level), newPeer(t, iscsi.RoleTarget, level2)
		old, now := a.recovery(m), b.recovery(m)
		a.put(5, filled(2000))
		a.nc.Close()
		<-a.c.Ended()
		if a.p.ErrorRecoveryLevel == 1 {
			a.keeps(old, 0, 0, 0, 0)
			continue
		}
		a.keeps(old, 1, 0, 2, 2000)
		b.nc.Close()
		<-b.c.Ended()
		now.Adopt(old, 5, 0, nil, nil)
		b.keeps(now, 1, 0, 2, 2000)
		if !b.c.tx.Empty() {
			t.Error("it is in the queue of a connection that has ended")
		}
		now.Discard()
		if m.used() != 0 {
			t.Errorf("%d bytes are still reserved", m.used())
		}
	}
}

// TestOldDataOut: at level 1 a Data-Out that has come before is dropped without a word, and
// what has been rejected has changed nothing.
func TestOldDataOut(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	mem, want := make([]byte, 4096), filled(4096)
	x, q := r.getData(4096, 0, mem)
	out := func(itt, sn, off uint32) {
		r.send(r.frame(dataOut(q.TTT(), itt, sn, off, off == 3072), nil, want[off:off+1024]))
	}
	out(5, 0, 0)
	out(5, 1, 1024)
	out(5, 0, 0) // again
	for _, bad := range []struct{ itt, sn, off uint32 }{
		{6, 3, 3072}, // another task, ahead
		{5, 2, 3072}, // in order by its number only
		{5, 3, 1024}, // ahead by its number only
		{5, 3, 0},
	} {
		out(bad.itt, bad.sn, bad.off)
		p := r.up.PDU(t, "what is refused")
		if p.Bad == nil || p.Bad.Reason != iscsi.RejectInvalidField || p.BHS.Opcode() != iscsi.OpDataOut || p.BHS.DataOut().DataSN() != bad.sn {
			t.Errorf("%+v came up as %v", bad, p.Bad)
		}
		p.Release()
	}
	r.send(r.frame(dataOut(q.TTT(), 5, 3, 8192, false), nil, want[:1024])) // ahead, and beyond what was asked for
	r.up.PDU(t, "what is beyond").Release()
	out(5, 2, 2048)
	out(5, 3, 3072)
	if got := r.up.Completion(t); got != x || x.Err != nil || !bytes.Equal(mem, want) {
		t.Errorf("%v, the data are there: %v", x.Err, bytes.Equal(mem, want))
	}
	if s := r.c.Stats(); s.PayloadIn != 4096 || s.OutstandingTransfers != 0 {
		t.Errorf("%+v", s)
	}
}

// TestDamagedDataOut: the Reject of a damaged Data-Out can name it, by its header.
func TestDamagedDataOut(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	mem, want := make([]byte, 2048), filled(2048)
	_, q := r.getData(2048, 0, mem)
	b := r.frame(dataOut(q.TTT(), 5, 0, 0, false), nil, want[:1024])
	b[100] ^= 1
	r.send(b)
	p := r.up.PDU(t, "a damaged Data-Out")
	if p.Bad == nil || p.Bad.Reason != iscsi.RejectDataDigest || p.BHS.Opcode() != iscsi.OpDataOut || p.BHS.DataOut().TTT() != q.TTT() || p.BHS.ITT() != 5 {
		t.Errorf("%v, % x", p.Bad, p.BHS)
	}
	p.Release()
	r.send(r.frame(dataOut(q.TTT(), 5, 1, 1024, true), nil, want[1024:]))
	h, _ := r.recv()
	q = h.R2T()
	if h.Opcode() != iscsi.OpR2T || q.Offset() != 0 || q.Desired() != 1024 {
		t.Fatalf("% x", h)
	}
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, want[:1024]))
	if x := r.up.Completion(t); x.Err != nil || !bytes.Equal(mem, want) {
		t.Errorf("%v", x.Err)
	}
}

// TestLateDataOuts: what is late is asked for again at the second look that finds nothing
// new, as long as looking goes on, and only of what runs; there is an end to it.
func TestLateDataOuts(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	mem, want := make([]byte, 2048), filled(2048)
	looks := func() bool {
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		return r.c.rec.late != nil
	}
	if looks() {
		t.Error("it looks before anything is asked for")
	}
	_, q := r.getData(1024, 0, mem[:1024])
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, want[:1024]))
	r.up.Completion(t) // one R2T that is over
	x, q := r.getData(2048, 0, mem)
	r.c.rec.lookForLate()
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, false), nil, want[:1024]))
	await.True(t, "it has come", func() bool { return r.c.Stats().PayloadIn == 2048 })
	r.c.rec.lookForLate() // and there was something new
	if !looks() {
		t.Error("it looks no longer")
	}
	r.c.rec.lookForLate()
	h, _ := r.recv()
	if again := h.R2T(); again.R2TSN() != q.R2TSN()+1 || again.Offset() != 1024 || again.Desired() != 1024 {
		t.Fatalf("% x", h)
	}
	n := 0
	for ; len(r.up.Done) == 0 && n < 4*maxHoles; n++ {
		r.c.rec.lookForLate()
	}
	if got := r.up.Completion(t); got != x || x.Err != iscsi.ErrShortData || n != 2*maxHoles {
		t.Errorf("%v after %d looks", x.Err, n)
	}
	r.c.rec.lookForLate()
	if looks() {
		t.Error("it looks for nothing")
	}
}

// TestInitiatorDataOuts: a solicited Data-Out names the logical unit, as it has to (RFC
// 7143 §11.7.4), an unsolicited one does not; a command that contradicts itself is not sent.
func TestInitiatorDataOuts(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	data := filled(4096)
	command := func(itt uint32, b *iscsi.TaskBuffers, own []byte) error {
		p := &iscsi.PDU{Bufs: b, Data: own}
		s := p.BHS.NewSCSICommand()
		s.SetITT(itt)
		s.SetLUN(3 << 48)
		s.SetExpStatSN(77)
		defer r.c.Push()
		return r.c.SendControl(p)
	}
	for name, b := range map[string]*iscsi.TaskBuffers{
		"more than there is":          {Out: [][]byte{data[:512]}, Unsolicited: 513, Slot: -1},
		"immediate more than all":     {Out: [][]byte{data[:512]}, Unsolicited: 10, Immediate: 11, Slot: -1},
		"immediate more than one PDU": {Out: [][]byte{filled(8192)}, Unsolicited: 5000, Immediate: 4097, Slot: -1},
	} {
		if command(1, b, nil) == nil {
			t.Errorf("%s was sent", name)
		}
	}
	if command(1, &iscsi.TaskBuffers{Out: [][]byte{data}, Slot: -1}, []byte{1}) == nil {
		t.Error("data beside the buffers were sent")
	}
	b := &iscsi.TaskBuffers{Out: [][]byte{data}, Unsolicited: 1024, Slot: -1}
	if err := command(5, b, nil); err != nil {
		t.Fatal(err)
	}
	if command(5, &iscsi.TaskBuffers{Out: [][]byte{data}, Slot: -1}, nil) == nil {
		t.Error("a tag that is in use was used")
	}
	if h, _ := r.recv(); h.Opcode() != iscsi.OpSCSICommand || h.ITT() != 5 {
		t.Fatalf("% x", h)
	}
	check := func(ttt uint32, lun uint64, off, n uint32) {
		t.Helper()
		h, got := r.recv()
		if d := h.DataOut(); h.Opcode() != iscsi.OpDataOut || d.TTT() != ttt || d.LUN() != lun || d.ITT() != 5 || h.ExpStatSN() != 77 ||
			d.Offset() != off || !d.Final() || d.DataSN() != 0 || !bytes.Equal(got, data[off:off+n]) {
			t.Errorf("% x with %d bytes", h, len(got))
		}
	}
	check(none, 0, 0, 1024)
	var h iscsi.BHS
	q := h.NewR2T()
	q.SetITT(5)
	q.SetTTT(9)
	q.SetOffset(1024)
	q.SetDesired(3072)
	r.send(r.frame(h, nil, nil))
	check(9, 3<<48, 1024, 3072)
	r.c.ReleaseTask(b)
}

// TestDataOutsOfOthersFirst: data that is asked for behind other data, which takes long, is not late while that comes,
// also if it comes for a tag that has been given up.
func TestDataOutsOfOthersFirst(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	want := filled(4096)
	first, second := make([]byte, 4096), make([]byte, 1024)
	x, q := r.getData(4096, 0, first)
	y := &iscsi.Transfer{ITT: 6, Ref: new(iscsi.Ref), LUN: 1 << 48, Len: 1024, Segs: [][]byte{second}}
	if err := r.c.GetData(y); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	r.recv()
	asked := func() int {
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		return int(r.c.gets.sent) - beforeAll
	}
	came := uint64(0)
	out := func(q iscsi.R2T, itt, sn, off, n uint32, final bool) {
		t.Helper()
		r.send(r.frame(dataOut(q.TTT(), itt, sn, off, final), nil, want[:n]))
		came += uint64(n)
		await.True(t, "it has come", func() bool { return r.c.Stats().PayloadIn == came })
	}
	r.c.rec.lookForLate()
	for i := range uint32(3) {
		out(q, 5, i, i*1024, 1024, false)
		r.c.rec.lookForLate() // the time of the second is over
	}
	if n := asked(); n != 2 {
		t.Fatalf("%d R2Ts though data comes", n)
	}
	r.c.rec.lookForLate() // nothing any more: the first is late, and the second one's time begins
	b, _ := r.recv()
	rest := b.R2T()
	if b.Opcode() != iscsi.OpR2T || rest.Offset() != 3072 || rest.Desired() != 1024 {
		t.Fatalf("% x", b)
	}
	// What was late comes: of a tag that is not known any more.
	r.send(r.frame(dataOut(q.TTT(), 5, 3, 3072, true), nil, want[:1024]))
	await.True(t, "it has come", func() bool {
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		return r.c.gets.moved == beforeAll
	})
	r.c.rec.lookForLate()
	r.c.rec.lookForLate()
	if n := asked(); n != 3 {
		t.Fatalf("%d R2Ts, another one behind data that was late", n)
	}
	r.c.rec.lookForLate()
	if n := asked(); n != 5 {
		t.Fatalf("%d R2Ts though nothing comes", n)
	}
	var again [2]iscsi.BHS
	for i := range again {
		again[i], _ = r.recv()
	}
	for i := range again {
		q := again[i].R2T()
		out(q, again[i].ITT(), 0, q.Offset(), 1024, true)
	}
	r.up.Completion(t)
	r.up.Completion(t)
	if x.Err != nil || y.Err != nil {
		t.Error(x.Err, y.Err)
	}
}
