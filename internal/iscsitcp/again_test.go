package iscsitcp

import (
	"bytes"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// sent is what c puts on the wire, PDU by PDU, without digests.
func sent(t *testing.T, c *Conn) (all []iscsi.BHS) {
	t.Helper()
	var b []byte
	for c.tx.Collect() {
		w := wire(c)
		b = append(b, w...)
		c.tx.Advance(len(w))
	}
	for len(b) > 0 {
		h := iscsi.BHS(b)
		n := iscsi.BHSLen + h.DataLen() + iscsi.PadLen(h.DataLen())
		all, b = append(all, h), b[n:]
	}
	return all
}

func plainLevel1(p *iscsi.Params) {
	level1(p)
	p.HeaderDigest, p.DataDigest = iscsi.DigestNone, iscsi.DigestNone
}

// serve serves a SNACK and expects that to work.
func serve(t *testing.T, c *Conn, kind iscsi.SNACKType, itt, tag, beg, run uint32) {
	t.Helper()
	if reason := refusal(c, kind, itt, tag, beg, run); reason != 0 {
		t.Errorf("SNACK %v for task %#x: %v", kind, itt, reason)
	}
}

func refusal(c *Conn, kind iscsi.SNACKType, itt, tag, beg, run uint32) iscsi.RejectReason {
	var b iscsi.BHS
	q := b.NewSNACK(kind)
	q.SetITT(itt)
	q.SetTTT(tag)
	q.SetBegRun(beg)
	q.SetRunLength(run)
	return c.rec.serve(q)
}

// answered sends data and a status for a task; data may be more than one transfer.
func answered(t *testing.T, c *Conn, itt, stat uint32, data ...[]byte) {
	t.Helper()
	ref, off := new(iscsi.Ref), uint32(0)
	for i, d := range data {
		x := transfer(itt, d)
		x.Ref, x.Offset, x.Final = ref, off, i == len(data)-1
		off += x.Len
		if err := c.PutData(x); err != nil {
			t.Fatal(err)
		}
	}
	p := iscsi.PDU{Ref: *ref, Data: []byte("sense")}
	s := p.BHS.NewSCSIResponse()
	s.SetITT(itt)
	s.SetSequence(iscsi.Sequence{StatSN: stat})
	if err := c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
}

// TestStatusAgainCounts: what is sent once more counts as an answer, with its data, until it
// has gone; and there is a bound to it.
func TestStatusAgainCounts(t *testing.T) {
	c := queueing(iscsi.RoleTarget, plainLevel1)
	answered(t, c, 5, 1)
	sent(t, c)
	serve(t, c, iscsi.SNACKStatus, iscsi.ReservedTag, iscsi.ReservedTag, 1, 1)
	if c.tx.again != 1 || c.Backlog().Answers != pduCost+5 {
		t.Errorf("%d PDUs come again, %d bytes count", c.tx.again, c.Backlog().Answers)
	}
	if all := sent(t, c); len(all) != 1 || all[0].Opcode() != iscsi.OpSCSIResponse || all[0].SCSIResponse().StatSN() != 1 {
		t.Errorf("%d PDUs were sent", len(all))
	}
	if c.tx.again != 0 || c.Backlog().Answers != 0 {
		t.Errorf("behind it %d PDUs come again, %d bytes count", c.tx.again, c.Backlog().Answers)
	}
	ask := func() *inPDU {
		in := newInPDU(0)
		q := in.pdu.BHS.NewSNACK(iscsi.SNACKStatus)
		q.SetITT(iscsi.ReservedTag)
		q.SetTTT(iscsi.ReservedTag)
		q.SetBegRun(1)
		return in
	}
	for again, want := range map[int]bool{againPDUs - 1: true, againPDUs: false} {
		c.tx.again = again
		if err := c.rec.snack(ask()); err != nil {
			t.Fatal(err)
		}
		if c.tx.Empty() == want {
			t.Errorf("with %d PDUs on their way it is sent once more: %v", again, !want)
		}
		c.tx.Purge()
	}
}

// TestRDataSNACKIsOfOneTask: only that task's data and status come again, cut to the new length,
// with the bits of their sequences where these end; nothing else of it leaves the queue, and all
// its transfers end.
func TestRDataSNACKIsOfOneTask(t *testing.T) {
	mem := filled(6000)
	c := queueing(iscsi.RoleTarget, plainLevel1)
	answered(t, c, 4, 1, mem[:100])
	answered(t, c, 5, 2, mem[:2048], mem[2048:])
	sent(t, c)
	completed(c)
	c.params.MaxXmitDataSegmentLength = 512
	serve(t, c, iscsi.SNACKRData, 5, 9, 0, 0)
	check := func() {
		t.Helper()
		off := uint32(0)
		for _, b := range sent(t, c) {
			switch d := b.DataIn(); b.Opcode() {
			case iscsi.OpDataIn:
				end := off + uint32(b.DataLen())
				if d.ITT() != 5 || d.Offset() != off || b.DataLen() > 512 || d.Final() != (end == 4096 || end == 6000) || d.Acknowledge() != (end == 4096) {
					t.Errorf("Data-In of %d bytes at %d, F %v, A %v", b.DataLen(), d.Offset(), d.Final(), d.Acknowledge())
				}
				off = end
			case iscsi.OpSCSIResponse:
				if b.ITT() != 5 || b.SCSIResponse().SNACKTag() != 9 || off != 6000 {
					t.Errorf("response to task %#x", b.ITT())
				}
			}
		}
		if off != 6000 {
			t.Errorf("%d bytes were sent", off)
		}
	}
	check()
	// Once more, and again before that has been sent: it goes out once.
	serve(t, c, iscsi.SNACKRData, 5, 9, 0, 0)
	serve(t, c, iscsi.SNACKRData, 5, 9, 0, 0)
	if n := len(queued(t, c)); c.tx.again != n {
		t.Errorf("%d of %d PDUs come again", c.tx.again, n)
	}
	c.tx.Purge()
	if c.tx.again != 0 || c.Backlog().Answers != 0 {
		t.Errorf("%d PDUs come again, %d bytes count", c.tx.again, c.Backlog().Answers)
	}

	c = queueing(iscsi.RoleTarget, plainLevel1)
	answered(t, c, 5, 1, mem[:2048], mem[2048:])
	c.params.MaxXmitDataSegmentLength = 512
	serve(t, c, iscsi.SNACKRData, 5, 9, 0, 0)
	responses := 0
	for _, p := range queued(t, c) {
		if p.bhs().Opcode() == iscsi.OpSCSIResponse {
			responses++
		}
	}
	if responses != 2 {
		t.Errorf("%d responses are queued, want the one that was there and the one that comes again", responses)
	}
	sendAll(c)
	if done := completed(c); len(done) != 2 {
		t.Errorf("%d transfers are over, want 2", len(done))
	}
}

// TestRDataSNACKOfNothing: where all has been acknowledged nothing comes again, and what waited
// in the queue is over, alone in it or not.
func TestRDataSNACKOfNothing(t *testing.T) {
	for _, gone := range []bool{false, true} {
		for _, others := range []bool{false, true} {
			c := queueing(iscsi.RoleTarget, plainLevel1)
			x := transfer(5, filled(3000))
			if err := c.PutData(x); err != nil {
				t.Fatal(err)
			}
			want := 1
			if gone {
				sent(t, c)
				completed(c)
				want = 0
			}
			var nop iscsi.PDU
			nop.BHS.NewNopIn()
			if others {
				if err := c.SendControl(&nop); err != nil {
					t.Fatal(err)
				}
			}
			c.rec.ackedData(c.rec.tasks[5], 3)
			serve(t, c, iscsi.SNACKRData, 5, 9, 0, 0)
			sendAll(c)
			if done := completed(c); len(done) != want || want == 1 && done[0] != x {
				t.Errorf("sent before %v, others in the queue %v: %d transfers are over, want %d", gone, others, len(done), want)
			}
		}
	}
}

// TestSNACKAnswers: R2Ts that are outstanding come again and are not refused; an
// acknowledgement has no length.
func TestSNACKAnswers(t *testing.T) {
	c := queueing(iscsi.RoleTarget, plainLevel1)
	c.cfg.SequenceTimeout = time.Hour
	if err := c.GetData(transfer(5, make([]byte, 100))); err != nil {
		t.Fatal(err)
	}
	c.rec.late.Stop() // nobody looks whether it has come
	serve(t, c, iscsi.SNACKData, 5, iscsi.ReservedTag, 0, 0)
	all := sent(t, c)
	if len(all) != 2 || all[0].Opcode() != iscsi.OpR2T || !bytes.Equal(all[0][:], all[1][:]) {
		t.Errorf("%d PDUs were sent", len(all))
	}
	if reason := refusal(c, iscsi.SNACKData, 5, iscsi.ReservedTag, 1, 0); reason != iscsi.RejectProtocol {
		t.Errorf("an R2T that is not there: %v", reason)
	}
	c = queueing(iscsi.RoleTarget, plainLevel1)
	answered(t, c, 5, 1, filled(6000))
	tag := c.rec.tasks[5].tag
	for run, want := range map[uint32]iscsi.RejectReason{1: iscsi.RejectDataACK, 0: 0} {
		if reason := refusal(c, iscsi.SNACKDataACK, iscsi.ReservedTag, tag, 2, run); reason != want {
			t.Errorf("DataACK with a run of %d: %v", run, reason)
		}
	}
}
