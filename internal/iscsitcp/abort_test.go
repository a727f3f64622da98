package iscsitcp

import (
	"encoding/binary"
	"testing"

	"softiser/internal/iscsi"
)

// A PutData that is aborted when some of its Data-Ins have begun is complete when
// the last of these has gone out: they use its memory.
func TestAbortBegunPutData(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.MaxXmitDataSegmentLength = 256 << 10 })
	c := r.c
	x := &iscsi.Transfer{ITT: 5, Ref: new(iscsi.Ref), Len: 16 << 20, Segs: [][]byte{make([]byte, 16<<20)}, Final: true}
	if err := c.PutData(x); err != nil {
		t.Fatal(err)
	}
	// The transmitter has taken a round, and has sent all of it but the last three.
	const begun = 3
	c.mu.Lock()
	c.tx.Collect()
	c.tx.Gather()
	sent := -begun
	for p := c.tx.First(); p.Taken(); p = p.Next() {
		sent++
	}
	c.tx.Advance(sent * (iscsi.BHSLen + 256<<10))
	c.mu.Unlock()
	c.AbortTransfer(x)
	c.mu.Lock()
	c.tx.Collect()
	if n := len(queued(t, c)); n != begun {
		t.Errorf("%d Data-Ins had begun, %d are left", begun, n)
	}
	if c.tx.doneHead != nil {
		t.Error("the transfer is complete, and its memory in the queue")
	}
	c.mu.Unlock()
	go c.Push()
	for i := range begun {
		if b, data := r.recv(); b.Opcode() != iscsi.OpDataIn || b.DataIn().DataSN() != uint32(sent+i) || len(data) != 256<<10 {
			t.Fatalf("PDU %d is a %s of %d bytes", i, b.Opcode(), len(data))
		}
	}
	if r.up.Completion(t); x.Err != iscsi.ErrAborted {
		t.Errorf("%v", x.Err)
	}
}

// The longest PDU that can be announced has a buffer.
func TestLongestPDU(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.MaxRecvDataSegmentLength = iscsi.MaxDataLen })
	var b iscsi.BHS
	b.NewSCSICommand().SetITT(1)
	b.SetAHSLen(iscsi.MaxAHSLen)
	b.SetDataLen(iscsi.MaxDataLen)
	ahs := make([]byte, iscsi.MaxAHSLen)
	data := make([]byte, iscsi.MaxDataLen+iscsi.PadLen(iscsi.MaxDataLen))
	binary.BigEndian.PutUint32(data[1<<23:], 0xc0ffee)
	go func() {
		for _, p := range [][]byte{b[:], ahs, data} {
			_, _ = r.nc.Write(p)
		}
	}()
	p := r.up.PDU(t, "command")
	if len(p.AHS) != iscsi.MaxAHSLen || len(p.Data) != iscsi.MaxDataLen || binary.BigEndian.Uint32(p.Data[1<<23:]) != 0xc0ffee {
		t.Errorf("%d bytes of AHS, %d of data", len(p.AHS), len(p.Data))
	}
	p.Release()
}

// The tags of R2Ts stay apart whatever MaxOutstandingR2T and MaxBurstLength were
// negotiated.
func TestManyR2Ts(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.MaxOutstandingR2T, p.MaxBurstLength = 65535, 512 })
	const n = 512 * 40000
	mem := make([]byte, n)
	var xs [2]iscsi.Transfer
	for i := range xs {
		xs[i] = iscsi.Transfer{ITT: 5 + uint32(i), Ref: new(iscsi.Ref), Len: n, Segs: [][]byte{mem}}
		if err := r.c.GetData(&xs[i]); err != nil {
			t.Fatal(err)
		}
	}
	tags := map[uint32]bool{}
	r.c.mu.Lock()
	for _, q := range r.c.gets.r2ts {
		tags[q.ttt] = true
	}
	if len(tags) != len(r.c.gets.r2ts) || len(tags) < len(xs) {
		t.Errorf("%d tags for %d R2Ts", len(tags), len(r.c.gets.r2ts))
	}
	r.c.mu.Unlock()
	for i := range xs {
		r.c.AbortTransfer(&xs[i])
	}
	_ = r.nc.Close()
	r.c.Push()
	for range xs {
		r.up.Completion(t)
	}
}

// The generation of a tag wraps; tags that were valid once are told from others
// before and after.
func TestTagWrap(t *testing.T) {
	var tab getTable
	x := &iscsi.Transfer{ITT: 1, Ref: new(iscsi.Ref), Len: 512}
	tab.add(x)
	g := tab.slots[0]
	var last uint32
	for i := range 3*maxGen + 5 {
		q := tab.open(g, 0, 512)
		if q.ttt == iscsi.ReservedTag || q.ttt == last {
			t.Fatalf("tag %#x", q.ttt)
		}
		if got, _ := tab.lookup(q.ttt); got != q {
			t.Fatalf("number %d: tag %#x is not found", i, q.ttt)
		}
		if got, stale := tab.lookup(last); i > 0 && (got != nil || !stale) {
			t.Fatalf("number %d: the tag before it, %#x, counts as never valid", i, last)
		}
		if _, stale := tab.lookup(q.ttt + 1<<16); i < maxGen-1 && stale {
			t.Fatalf("number %d: the next tag counts as stale", i)
		}
		last = q.ttt
		tab.close(q)
	}
	for _, never := range []uint32{0, 0x80010000, 0xfffe0000, 0x00010001} {
		if q, stale := tab.lookup(never); q != nil || stale {
			t.Errorf("tag %#x has been valid", never)
		}
	}
}

// StatSN wraps: what is kept for a SNACK is found and acknowledged across it.
func TestStatSNWrap(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	for i := range uint32(4) {
		r.respond(10+i, 0xfffffffe+i)
	}
	r.snack(iscsi.SNACKStatus, none, none, 0xffffffff, 2, 0xfffffffe)
	for _, want := range []uint32{0xffffffff, 0} {
		if b, _ := r.recv(); b.StatSN() != want {
			t.Fatalf("StatSN %#x again, want %#x", b.StatSN(), want)
		}
	}
	r.snack(iscsi.SNACKStatus, none, none, 1, 0, 0) // everything before 0 has arrived
	if b, _ := r.recv(); b.StatSN() != 1 {
		t.Fatalf("StatSN %#x again, want 1", b.StatSN())
	}
	r.c.mu.Lock()
	if k := r.c.rec.status; len(k) != 2 || k[0].sn != 0 {
		t.Errorf("%d are kept", len(k))
	}
	r.c.mu.Unlock()
	r.snack(iscsi.SNACKStatus, none, none, 0xffffffff, 1, 0)
	r.rejected(iscsi.RejectProtocol)
}

// DataSN and R2TSN wrap within a task.
func TestDataSNWrap(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.MaxBurstLength, p.MaxOutstandingR2T = 1024, 1 })
	x := &iscsi.Transfer{ITT: 5, Len: 4096, Segs: [][]byte{make([]byte, 4096)}, Final: true, Ref: &iscsi.Ref{0xfffffffe, 0xfffffffe}}
	if err := r.c.PutData(x); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	for _, want := range []uint32{0xfffffffe, 0xffffffff, 0, 1} {
		if b, _ := r.recv(); b.DataIn().DataSN() != want {
			t.Fatalf("DataSN %#x, want %#x", b.DataIn().DataSN(), want)
		}
	}
	r.up.Completion(t)
	if err := r.c.GetData(x); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	for i, want := range []uint32{0xfffffffe, 0xffffffff, 0, 1} {
		b, _ := r.recv()
		if q := b.R2T(); q.R2TSN() != want || q.Offset() != uint32(i)*1024 {
			t.Fatalf("R2TSN %#x for %d, want %#x", q.R2TSN(), q.Offset(), want)
		}
		r.send(r.frame(dataOut(b.TTT(), 5, 0, uint32(i)*1024, true), nil, make([]byte, 1024)))
	}
	if r.up.Completion(t); x.Err != nil {
		t.Fatal(x.Err)
	}

	r = newPeer(t, iscsi.RoleInitiator, nil)
	p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{make([]byte, 16)}, Out: [][]byte{make([]byte, 1024)}}}
	p.BHS.NewSCSICommand().SetITT(3)
	if err := r.c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	r.recv()
	r.c.mu.Lock()
	k := r.c.tasks.find(3)
	k.dataSN, k.r2tSN = 0xffffffff, 0xffffffff
	r.c.mu.Unlock()
	for i, sn := range []uint32{0xffffffff, 0, 1} {
		var b iscsi.BHS
		d := b.NewDataIn()
		d.SetITT(3)
		d.SetDataSN(sn)
		d.SetOffset(uint32(i) * 4)
		r.send(r.frame(b, nil, []byte("data")))
		q := b.NewR2T()
		q.SetITT(3)
		q.SetTTT(9)
		q.SetR2TSN(sn)
		q.SetOffset(uint32(i) * 256)
		q.SetDesired(256)
		r.send(r.frame(b, nil, nil))
		if b, data := r.recv(); b.Opcode() != iscsi.OpDataOut || b.DataOut().Offset() != uint32(i)*256 || len(data) != 256 {
			t.Fatalf("%s of %d bytes", b.Opcode(), len(data))
		}
	}
}
