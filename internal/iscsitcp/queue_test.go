package iscsitcp

import (
	"bytes"
	"errors"
	"testing"
	"unsafe"

	"softiser/internal/faultmap"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
)

// queueing is one end in the full feature phase without a socket: what is queued stays.
func queueing(role iscsi.Role, change func(*iscsi.Params)) *Conn {
	c := &Conn{role: role, up: datamovertest.NewRecorder(), st: iscsi.ConnFull, enabled: true}
	c.cond.L = &c.mu
	c.params = iscsi.NewNegotiation(role, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
	c.params.MaxXmitDataSegmentLength, c.params.MaxBurstLength = 1024, 4096
	if change != nil {
		change(&c.params)
	}
	if role == iscsi.RoleTarget && c.params.ErrorRecoveryLevel > 0 {
		c.rec = newRecovery(c)
	}
	c.tx.init(c)
	return c
}

// queued are the PDUs in the queue of c; the last of them is what is said to be.
func queued(t *testing.T, c *Conn) (all []*outPDU) {
	t.Helper()
	for p := c.tx.First(); p != nil; p = p.Next() {
		all = append(all, p)
	}
	if n := len(all); n == 0 && c.tx.Last() != nil || n > 0 && c.tx.Last() != all[n-1] {
		t.Errorf("the last of %d PDUs is another one", n)
	}
	return all
}

// completed takes the transfers that have ended.
func completed(c *Conn) (all []*iscsi.Transfer) {
	for x := c.tx.doneHead; x != nil; x = x.Own.Next {
		all = append(all, x)
	}
	c.tx.doneHead, c.tx.doneTail = nil, nil
	return all
}

// sendAll is a socket that takes everything.
func sendAll(c *Conn) {
	for c.tx.Collect() {
		c.tx.Advance(len(wire(c)))
	}
}

func transfer(itt uint32, mem []byte) *iscsi.Transfer {
	return &iscsi.Transfer{ITT: itt, Ref: new(iscsi.Ref), Len: uint32(len(mem)), Segs: [][]byte{mem}, Final: true}
}

// wire is what c would send of what is collected.
func wire(c *Conn) (b []byte) {
	for _, v := range c.tx.Gather() {
		b = append(b, unsafe.Slice(v.Base, v.Len)...)
	}
	return b
}

// dataPDU queues one Data-In over segs.
func dataPDU(c *Conn, segs [][]byte) *outPDU {
	x := &iscsi.Transfer{ITT: 5, Ref: new(iscsi.Ref), Segs: segs}
	for _, s := range segs {
		x.Len += uint32(len(s))
	}
	if err := c.PutData(x); err != nil {
		panic(err)
	}
	return c.tx.Last()
}

// TestReleaseOfWhatWasOffered: a socket below TLS that is full has what it was offered sealed, and is to be
// offered the same again, though its task ends meanwhile.
func TestReleaseOfWhatWasOffered(t *testing.T) {
	c := queueing(iscsi.RoleInitiator, func(p *iscsi.Params) { p.MaxBurstLength = 1 << 20 })
	mem := bytes.Repeat([]byte{1}, 4096)
	b := &iscsi.TaskBuffers{Out: [][]byte{mem}}
	p := iscsi.PDU{Bufs: b}
	p.BHS.NewSCSICommand().SetITT(1)
	if err := c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	sendAll(c)
	c.dataOutLocked(c.tasks.find(1), 5, 0, 2048)
	c.tx.Collect()
	offered := wire(c)
	c.dataOutLocked(c.tasks.find(1), 5, 2048, 2048) // not seen yet
	c.ReleaseTask(b)
	for i := range mem {
		mem[i] = 2
	}
	c.tx.Collect()
	if again := wire(c); !bytes.Equal(again, offered) {
		t.Errorf("%d bytes were offered, and then %d others", len(offered), len(again))
	}
}

// TestHalfSentPDU: from wherever the socket has stopped, the data of a PDU can be copied, so
// that its memory goes back, and the rest of the PDU follows.
func TestHalfSentPDU(t *testing.T) {
	const n, head = 21, iscsi.BHSLen + iscsi.DigestLen
	const whole = head + n + 3 + iscsi.DigestLen
	for sent := range whole {
		mem := filled(n)
		c := queueing(iscsi.RoleTarget, func(p *iscsi.Params) { p.HeaderDigest, p.DataDigest = iscsi.DigestCRC32C, iscsi.DigestCRC32C })
		p := dataPDU(c, [][]byte{mem[:7], mem[7:8], mem[8:]})
		c.tx.Collect()
		all := wire(c)
		if len(all) != whole || !bytes.Equal(all[head:head+n], mem) {
			t.Fatalf("%d bytes of %d", len(all), whole)
		}
		c.tx.Advance(sent)
		if got := wire(c); !bytes.Equal(got, all[sent:]) {
			t.Fatalf("after %d of %d bytes % x follow, want % x", sent, whole, got, all[sent:])
		}
		copied := p.detach()
		if want := min(n, max(0, head+n-sent)); copied != want {
			t.Errorf("after %d bytes %d are copied, want %d", sent, copied, want)
		}
		clear(mem)
		if got := wire(c); !bytes.Equal(got, all[sent:]) {
			t.Errorf("copied after %d of %d bytes % x follow, want % x", sent, whole, got, all[sent:])
		}
	}
}

// TestDetachFault: of memory that cannot be read zeros go out, and the stream stays whole.
func TestDetachFault(t *testing.T) {
	c := queueing(iscsi.RoleTarget, nil)
	good, bad := filled(100), faultmap.New(t, 4096, 0)[:100]
	p := dataPDU(c, [][]byte{good, bad})
	c.tx.Collect()
	c.tx.Gather()
	if n := p.detach(); n != 200 {
		t.Errorf("%d bytes are copied", n)
	}
	if got := wire(c); len(got) != iscsi.BHSLen+200 || !bytes.Equal(got[iscsi.BHSLen:], append(bytes.Clone(good), make([]byte, 100)...)) {
		t.Errorf("%d bytes: % x", len(got), got)
	}
}

// TestSpareMemory: a PDU is used again with a short buffer of its own, a long one is given up.
func TestSpareMemory(t *testing.T) {
	for n, kept := range map[int]bool{16384: true, 16385: false} {
		var p outPDU
		p.own = make([]byte, n)
		p.reset()
		if kept != (cap(p.own) > 0) {
			t.Errorf("a buffer of %d bytes is kept: %v", n, !kept)
		}
	}
}

// TestWithdraw: the Data-Ins of a task that have not begun leave the queue, wherever they
// are, and nothing else does.
func TestWithdraw(t *testing.T) {
	c := queueing(iscsi.RoleTarget, nil)
	var nop iscsi.BHS
	nop.NewNopIn()
	push := func(itt uint32) *outPDU {
		var b iscsi.BHS
		b.NewDataIn().SetITT(itt)
		p := c.tx.alloc(&b)
		c.tx.push(p)
		return p
	}
	begun := push(5)
	c.tx.Collect()
	push(5)
	c.tx.push(c.tx.alloc(&nop))
	push(5)
	push(6)
	last := push(5)
	x := transfer(5, nil)
	last.xfer, last.last = x, true
	if got := c.tx.withdraw(5); got != x {
		t.Errorf("what ends with the last of them is %v", got)
	}
	var left []uint32
	for _, p := range queued(t, c) {
		left = append(left, p.bhs().ITT())
	}
	if len(left) != 3 || c.tx.First() != begun || left[2] != 6 {
		t.Errorf("left are those of tasks %#x", left)
	}
	if c.tx.withdraw(6) != nil || len(queued(t, c)) != 2 {
		t.Error("another task")
	}
	push(7)
	if all := queued(t, c); len(all) != 3 || all[2].bhs().ITT() != 7 {
		t.Error("what is queued behind it is lost")
	}
}

// TestRDataSNACKOfQueuedData: data that waits in the queue when they are asked for in another
// size go out once, and their transfer ends with the last of them. A hostile initiator
// acknowledges what it has not got: then nothing is left to send, and the transfer is over.
func TestRDataSNACKOfQueuedData(t *testing.T) {
	for _, acked := range []bool{false, true} {
		c := queueing(iscsi.RoleTarget, level1)
		x, y := transfer(5, filled(3000)), transfer(6, filled(100))
		for _, x := range []*iscsi.Transfer{x, y} {
			if err := c.PutData(x); err != nil {
				t.Fatal(err)
			}
		}
		if acked {
			c.rec.ackedData(c.rec.tasks[5], 3)
		}
		c.params.MaxXmitDataSegmentLength = 512
		var b iscsi.BHS
		q := b.NewSNACK(iscsi.SNACKRData)
		q.SetITT(5)
		q.SetTTT(9)
		if reason := c.rec.serve(q); reason != 0 {
			t.Fatal(reason)
		}
		want := 7
		if acked {
			want = 1
		}
		if all := queued(t, c); len(all) != want || all[0].xfer != y {
			t.Errorf("acknowledged %v: %d PDUs are queued, want %d", acked, len(all), want)
		}
		if done := completed(c); acked != (len(done) == 1 && done[0] == x) {
			t.Errorf("acknowledged %v: %d transfers are over", acked, len(done))
		}
		if pdus := len(c.rec.tasks[5].pdus) + 1; c.rec.pdus != pdus || c.tx.again != want-1 {
			t.Errorf("acknowledged %v: %d Data-Ins are kept of %d, %d come again", acked, c.rec.pdus, pdus, c.tx.again)
		}
		sendAll(c)
		done := completed(c)
		if acked && (len(done) != 1 || done[0] != y) || !acked && (len(done) != 2 || done[0] != y || done[1] != x) {
			t.Errorf("acknowledged %v: %d transfers are over when all is sent", acked, len(done))
		}
		if c.tx.again != 0 || c.tx.unsent.Bytes() != 0 {
			t.Errorf("%d PDUs and %d bytes count as queued", c.tx.again, c.tx.unsent.Bytes())
		}
	}
}

// TestNoFolding: the S bit is for a status without more to say, in the last Data-In of its
// task, before anything of that is sent (RFC 7143 §11.7.3).
func TestNoFolding(t *testing.T) {
	for name, c := range map[string]struct {
		fold   bool
		change func(d *Conn, p *iscsi.PDU)
	}{
		"good":                  {true, func(*Conn, *iscsi.PDU) {}},
		"underflow":             {true, func(_ *Conn, p *iscsi.PDU) { p.BHS.SCSIResponse().SetResidual(1, iscsi.ResidualUnderflow) }},
		"begun":                 {false, func(d *Conn, _ *iscsi.PDU) { d.tx.Collect() }},
		"not the last":          {false, func(d *Conn, _ *iscsi.PDU) { d.tx.Last().bhs().SetFinal(false) }},
		"sense data":            {false, func(_ *Conn, p *iscsi.PDU) { p.Data = []byte{0, 0} }},
		"bidirectional residue": {false, func(_ *Conn, p *iscsi.PDU) { p.BHS.SCSIResponse().SetBidiResidual(0, iscsi.ResidualBidiOverflow) }},
		"behind an R2T": {false, func(d *Conn, _ *iscsi.PDU) {
			o := d.tx.Last()
			o.bhs().NewR2T()
			o.bhs().SetITT(5)
			o.bhs().SetFinal(true)
		}},
	} {
		d := queueing(iscsi.RoleTarget, nil)
		if err := d.PutData(transfer(5, make([]byte, 100))); err != nil {
			t.Fatal(err)
		}
		var p iscsi.PDU
		p.BHS.NewSCSIResponse().SetITT(5)
		c.change(d, &p)
		if err := d.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		if n := len(queued(t, d)); c.fold != (n == 1) {
			t.Errorf("%s: %d PDUs are queued", name, n)
		}
	}
}

// TestFraming: what cannot be framed is refused, the longest that can is not.
func TestFraming(t *testing.T) {
	data := make([]byte, iscsi.MaxDataLen+1)
	for _, c := range []struct {
		ahs, data int
		ok        bool
	}{
		{iscsi.MaxAHSLen, 0, true}, {iscsi.MaxAHSLen + 4, 0, false}, {2, 0, false}, {0, iscsi.MaxDataLen, true}, {0, iscsi.MaxDataLen + 1, false},
	} {
		d := queueing(iscsi.RoleInitiator, nil)
		p := iscsi.PDU{AHS: make([]byte, c.ahs), Data: data[:c.data]}
		p.BHS.NewSCSICommand()
		if err := d.SendControl(&p); c.ok != (err == nil) || c.ok != (!d.tx.Empty()) {
			t.Errorf("%d bytes of AHS, %d of data: %v", c.ahs, c.data, err)
			continue
		}
		if o := d.tx.First(); c.ok && (o.bhs().AHSLen() != c.ahs || o.Data.Len() != c.data || len(o.Head) != iscsi.BHSLen+c.ahs) {
			t.Errorf("%d bytes of AHS, %d of data are a PDU with %d and %d", c.ahs, c.data, o.bhs().AHSLen(), o.Data.Len())
		}
	}
}

// TestTransfersOfNothing: a transfer that does not fit its memory is refused and not
// counted; one of no bytes is over at once.
func TestTransfersOfNothing(t *testing.T) {
	mem := make([]byte, 16)
	c := queueing(iscsi.RoleTarget, nil)
	for name, start := range map[string]func(*iscsi.Transfer) error{"PutData": c.PutData, "GetData": c.GetData} {
		for what, change := range map[string]func(*iscsi.Transfer){
			"more than its memory":   func(x *iscsi.Transfer) { x.Len++ },
			"less than its memory":   func(x *iscsi.Transfer) { x.Len-- },
			"behind all buffers":     func(x *iscsi.Transfer) { x.Offset = ^uint32(0) - 15 },
			"of no command":          func(x *iscsi.Transfer) { x.Ref = nil },
			"of no command, nothing": func(x *iscsi.Transfer) { x.Ref, x.Len, x.Segs = nil, 0, nil },
		} {
			x := transfer(5, mem)
			change(x)
			if err := start(x); err == nil {
				t.Errorf("%s %s: no error", name, what)
			}
		}
		if n := c.Stats().OutstandingTransfers; n != 0 || !c.tx.Empty() || len(completed(c)) != 0 {
			t.Fatalf("%s: %d transfers count as begun", name, n)
		}
		x := transfer(5, nil)
		x.Err, x.Own.Aborted = errors.New("of its last use"), true
		if err := start(x); err != nil {
			t.Fatal(err)
		}
		if done := completed(c); len(done) != 1 || done[0] != x || x.Err != nil || x.Own.Aborted || !c.tx.Empty() {
			t.Errorf("%s of nothing: %d are over, %v", name, len(done), x.Err)
		}
		c.AbortTransfer(x)
		if len(completed(c)) != 0 {
			t.Errorf("%s of nothing is over twice", name)
		}
		x = transfer(5, mem)
		x.Offset = ^uint32(0) - 16
		if err := start(x); err != nil || len(queued(t, c)) != 1 {
			t.Errorf("%s of the last 16 bytes: %v", name, err)
		}
		c.tx.Purge()
		if n := c.stats.transfers.Swap(0); n != 2 {
			t.Errorf("%d transfers count as begun, want 2", n)
		}
	}
}

// TestR2TsOfATask: MaxOutstandingR2T is of each task, and no call goes beyond it.
func TestR2TsOfATask(t *testing.T) {
	c := queueing(iscsi.RoleTarget, func(p *iscsi.Params) { p.MaxOutstandingR2T, p.MaxBurstLength = 2, 1024 })
	mem := make([]byte, 4096)
	x, y := transfer(5, mem), transfer(6, mem)
	for _, x := range []*iscsi.Transfer{x, y} {
		if err := c.GetData(x); err != nil {
			t.Fatal(err)
		}
	}
	count := func() (n map[uint32]int) {
		n = map[uint32]int{}
		for _, p := range queued(t, c) {
			n[p.bhs().ITT()]++
		}
		return n
	}
	if n := count(); n[5] != 2 || n[6] != 2 {
		t.Errorf("R2Ts of the tasks: %v", n)
	}
	c.pumpLocked(5)
	if n := count(); n[5] != 2 || n[6] != 2 {
		t.Errorf("once more: %v", n)
	}
	// An aborted transfer is over once, and its room is that of the next one.
	c.AbortTransfer(x)
	c.AbortTransfer(x)
	if done := completed(c); len(done) != 1 || done[0] != x || x.Err != iscsi.ErrAborted {
		t.Errorf("%d transfers are over, %v", len(done), x.Err)
	}
	z := transfer(5, mem)
	if err := c.GetData(z); err != nil {
		t.Fatal(err)
	}
	if n := count(); n[5] != 4 || n[6] != 2 {
		t.Errorf("of the next transfer: %v", n)
	}
	// What has failed keeps its reason, and after the end of the connection nothing is
	// completed that its end completes.
	y.Err = iscsi.ErrShortData
	if c.AbortTransfer(y); y.Err != iscsi.ErrShortData || len(completed(c)) != 1 {
		t.Errorf("%v", y.Err)
	}
	c.st = iscsi.ConnDead
	if c.AbortTransfer(z); z.Own.Aborted || len(completed(c)) != 0 {
		t.Error("aborted after the end")
	}
}

// TestPurge: at the end of a connection each transfer is over once, with the reason that it
// has or that of the end, and nothing is queued.
func TestPurge(t *testing.T) {
	c := queueing(iscsi.RoleTarget, nil)
	lost := errors.New("lost")
	xs := []*iscsi.Transfer{transfer(5, filled(3000)), transfer(6, filled(3000)), transfer(7, nil)}
	for _, x := range xs {
		if err := c.PutData(x); err != nil {
			t.Fatal(err)
		}
	}
	xs[1].Err = iscsi.ErrMemoryFault
	var ping iscsi.PDU
	ping.BHS.NewNopIn()
	if err := c.SendControl(&ping); err != nil {
		t.Fatal(err)
	}
	got := map[*iscsi.Transfer]int{}
	for x := c.tx.purge(lost); x != nil; x = x.Own.Next {
		got[x]++
	}
	if len(got) != 3 || got[xs[0]] != 1 || got[xs[1]] != 1 || got[xs[2]] != 1 {
		t.Errorf("over are %v", got)
	}
	if xs[0].Err != lost || xs[1].Err != iscsi.ErrMemoryFault || xs[2].Err != nil {
		t.Errorf("%v, %v, %v", xs[0].Err, xs[1].Err, xs[2].Err)
	}
	if len(queued(t, c)) != 0 || len(completed(c)) != 0 || c.tx.unsent.Bytes() != 0 {
		t.Error("something is left in the queue")
	}
}

// TestAnswersCount: what the peer makes us say counts until it is sent, what we say on our
// own does not: two ends would wait for each other.
func TestAnswersCount(t *testing.T) {
	for _, tc := range []struct {
		role iscsi.Role
		make func(*iscsi.BHS)
		want int
	}{
		{iscsi.RoleTarget, func(b *iscsi.BHS) { b.NewNopIn() }, pduCost + 8},
		{iscsi.RoleInitiator, func(b *iscsi.BHS) { b.NewNopOut().SetITT(none) }, pduCost + 8},
		{iscsi.RoleInitiator, func(b *iscsi.BHS) { b.NewNopOut().SetITT(1) }, 0},
		{iscsi.RoleInitiator, func(b *iscsi.BHS) { b.NewTextRequest().SetITT(none) }, 0},
	} {
		c := queueing(tc.role, nil)
		p := iscsi.PDU{Data: make([]byte, 8)}
		tc.make(&p.BHS)
		if err := c.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		if n := c.Backlog().Answers; n != tc.want {
			t.Errorf("%v, %s with tag %#x: %d bytes count, want %d", tc.role, p.BHS.Opcode(), p.BHS.ITT(), n, tc.want)
		}
		if sendAll(c); c.Backlog().Answers != 0 || c.Backlog().Waiting || c.Backlog().Sent != iscsi.BHSLen+8 || c.Stats().PDUsOut != 1 || c.Stats().PayloadOut != 0 {
			t.Errorf("when it is sent: %+v, %+v", c.Backlog(), c.Stats())
		}
	}
}
