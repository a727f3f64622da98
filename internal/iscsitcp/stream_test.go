package iscsitcp

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"softiser/internal/await"
	"softiser/internal/faultmap"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/pdustream"
	"softiser/internal/sockio"
)

// TestLengthsAtEveryLevel: no length is believed without a look at it, with whatever digests
// and error recovery, nor that of what has waited for the peer to read.
func TestLengthsAtEveryLevel(t *testing.T) {
	for level := range uint32(3) {
		for _, digest := range []iscsi.Digest{iscsi.DigestNone, iscsi.DigestCRC32C} {
			for _, full := range []bool{false, true} {
				r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) {
					p.ErrorRecoveryLevel, p.HeaderDigest, p.MaxRecvDataSegmentLength = level, digest, 1024
				})
				if full {
					r.c.mu.Lock()
					r.c.tx.unsent.Add(1 << 20)
					r.c.mu.Unlock()
				}
				var b iscsi.BHS
				b.NewNopOut()
				r.send(r.frame(b, nil, make([]byte, 1028))[:iscsi.BHSLen+iscsi.DigestLen])
				if full {
					await.True(t, "reading waits for the peer", func() bool { return r.c.Stats().ReceiveCalls > 0 })
					r.c.mu.Lock()
					r.c.tx.unsent.Sub(1 << 20)
					r.c.cond.Broadcast()
					r.c.mu.Unlock()
				}
				if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "1028 bytes; 1024 is the limit") {
					t.Errorf("level %d, digest %v, waited %v: ended with %v", level, digest, full, err)
				}
			}
		}
	}
	r := loginPeer(t, iscsi.RoleTarget, Config{LoginDataLimit: 100})
	p := r.full(nil)
	r.c.NoticeKeyValues(&p)
	r.c.Start(r.up)
	var b iscsi.BHS
	b.NewLoginRequest().SetDataLen(101)
	r.send(b[:])
	if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "101 bytes; 100 is the limit") {
		t.Errorf("during login: ended with %v", err)
	}
}

// TestUnknownPDUs: what nobody knows goes up to be rejected, whatever comes with it; the stream
// goes on behind it.
func TestUnknownPDUs(t *testing.T) {
	for _, role := range []iscsi.Role{iscsi.RoleInitiator, iscsi.RoleTarget} {
		r := newPeer(t, role, nil)
		for _, op := range []byte{0x1d, 0x3e} {
			if iscsi.Opcode(op).Known() {
				t.Fatalf("%#x is known", op)
			}
			var b iscsi.BHS
			b[0] = op
			r.send(r.frame(b, make([]byte, 8), []byte("data")))
			p := r.up.PDU(t, "unknown PDU")
			if p.BHS[0] != op || len(p.AHS) != 8 || string(p.Data) != "data" {
				t.Errorf("%#x with %d bytes of AHS and %q", p.BHS[0], len(p.AHS), p.Data)
			}
			p.Release()
		}
	}
}

// TestCutTails: padding and digest may come later than the data, byte by byte.
func TestCutTails(t *testing.T) {
	for _, op := range []iscsi.Opcode{iscsi.OpNopOut, iscsi.OpDataOut} {
		for missing := 1; missing <= 7; missing++ {
			r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.DataDigest = iscsi.DigestCRC32C })
			mem := make([]byte, 101)
			var b iscsi.BHS
			b.NewNopOut().SetITT(5)
			if op == iscsi.OpDataOut {
				_, q := r.getData(101, 0, mem)
				b = dataOut(q.TTT(), 5, 0, 0, true)
			}
			rest := r.half(r.frame(b, nil, filled(101)), 2*missing)
			r.send(rest)
			if op == iscsi.OpDataOut {
				if x := r.up.Completion(t); x.Err != nil || !bytes.Equal(mem, filled(101)) {
					t.Errorf("without the last %d bytes at first: %v", missing, x.Err)
				}
				continue
			}
			p := r.up.PDU(t, "NOP-Out")
			if p.Bad != nil || !bytes.Equal(p.Data, filled(101)) {
				t.Errorf("without the last %d bytes at first: %v", missing, p.Bad)
			}
			p.Release()
		}
	}
}

// placed sends f but for its last n bytes and waits until the data before them are in their
// place.
func (r *peer) placed(f []byte, n int) (rest []byte) {
	r.t.Helper()
	before := r.c.Stats().ReceiveCalls
	r.send(f[:len(f)-n])
	await.True(r.t, "header and data have come", func() bool { return r.c.Stats().ReceiveCalls >= before+2 })
	return f[len(f)-n:]
}

// TestAbortBehindTheData: memory that is taken away between the data and their padding or
// digest is not looked at again, and whoever uses it now changes nothing for the stream.
func TestAbortBehindTheData(t *testing.T) {
	for _, digest := range []iscsi.Digest{iscsi.DigestNone, iscsi.DigestCRC32C} {
		tail := 3
		if digest == iscsi.DigestCRC32C {
			tail += iscsi.DigestLen
		}
		change := func(p *iscsi.Params) {
			p.DataDigest, p.MaxRecvDataSegmentLength, p.DataSequenceInOrder = digest, 8192, false // which nobody guesses
		}
		r := newPeer(t, iscsi.RoleTarget, change)
		mem := make([]byte, 4097)
		x, q := r.getData(4097, 0, mem)
		rest := r.placed(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, filled(4097)), tail)
		r.c.AbortTransfer(x)
		clear(mem)
		r.send(rest)
		r.ping()
		if p := r.up.PDU(t, "NOP-Out"); p.BHS.Opcode() != iscsi.OpNopOut {
			t.Errorf("got %s, %v", p.BHS.Opcode(), p.Bad)
		} else {
			p.Release()
		}
		if got := r.up.Completion(t); got != x || x.Err != iscsi.ErrAborted {
			t.Errorf("%v", got.Err)
		}

		r = newPeer(t, iscsi.RoleInitiator, change)
		b := r.command(mem)
		var h iscsi.BHS
		d := h.NewDataIn()
		d.SetITT(1)
		d.SetFinal(true)
		rest = r.placed(r.frame(h, nil, filled(4097)), tail)
		r.c.ReleaseTask(b)
		clear(mem)
		r.send(rest)
		r.ping()
		if p := r.up.PDU(t, "NOP-In"); p.BHS.Opcode() != iscsi.OpNopIn {
			t.Errorf("got %s", p.BHS.Opcode())
		} else {
			p.Release()
		}
	}
}

// TestManyPieces: memory in more pieces than a call takes is filled and sent all the same.
func TestManyPieces(t *testing.T) {
	const n = 4 * (sockio.MaxVec + 100)
	cut := func(b []byte) (all [][]byte) {
		for ; len(b) > 0; b = b[4:] {
			all = append(all, b[:4:4])
		}
		return all
	}
	for _, digest := range []iscsi.Digest{iscsi.DigestNone, iscsi.DigestCRC32C} {
		r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) {
			p.MaxXmitDataSegmentLength, p.MaxRecvDataSegmentLength, p.DataDigest = 2*n, 2*n, digest
		})
		mem := make([]byte, n)
		x := &iscsi.Transfer{ITT: 5, Ref: new(iscsi.Ref), Len: n, Segs: cut(mem)}
		if err := r.c.GetData(x); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		b, _ := r.recv()
		r.send(r.frame(dataOut(b.R2T().TTT(), 5, 0, 0, true), nil, filled(n)))
		if r.up.Completion(t); x.Err != nil || !bytes.Equal(mem, filled(n)) {
			t.Errorf("Data-Out: %v", x.Err)
		}
		for range 2 {
			if err := r.c.PutData(&iscsi.Transfer{ITT: 6, Ref: new(iscsi.Ref), Len: n, Segs: cut(mem), Final: true}); err != nil {
				t.Fatal(err)
			}
		}
		r.c.Push()
		for range 2 {
			if _, data := r.recv(); !bytes.Equal(data, mem) {
				t.Error("Data-In: wrong data")
			}
			if x := r.up.Completion(t); x.Err != nil {
				t.Error(x.Err)
			}
		}
	}
}

// answering is an upper layer that answers where it is told, and lets the receive goroutine
// send.
type answering struct {
	*datamovertest.Recorder
	c    *Conn
	data []byte
}

func (a *answering) ControlNotify(p *iscsi.PDU) {
	out := iscsi.PDU{Data: a.data}
	switch p.BHS.Opcode() {
	case iscsi.OpLoginRequest:
		out.BHS.NewLoginResponse()
	default:
		out.BHS.NewNopIn()
	}
	out.BHS.SetITT(p.BHS.ITT())
	p.Release()
	_ = a.c.SendControl(&out)
}

// TestAnswersOfUpCalls: what is queued within an up-call goes out without Push, before reading
// waits for anything: for login to go on, or for the peer to read.
func TestAnswersOfUpCalls(t *testing.T) {
	r := loginPeer(t, iscsi.RoleTarget, Config{Upgradable: true})
	r.c.Start(&answering{r.up, r.c, nil})
	r.loginRequest(nil)
	if b, _ := r.recv(); b.Opcode() != iscsi.OpLoginResponse {
		t.Errorf("got %s", b.Opcode())
	}

	r = loginPeer(t, iscsi.RoleTarget, Config{})
	r.enable(r.full(nil))
	r.c.Start(&answering{r.up, r.c, make([]byte, 4096)})
	const n = 300 // which come in one read and are answered with more than may wait
	r.send(r.pings(n))
	for i := range n {
		if b, data := r.recv(); b.Opcode() != iscsi.OpNopIn || len(data) != 4096 {
			t.Fatalf("answer %d is a %s with %d bytes", i, b.Opcode(), len(data))
		}
	}
	await.True(t, "nothing waits", func() bool { return r.c.Backlog().Answers == 0 })
}

// TestFloodBehindAFailureInATransfer: nor is a connection that has failed read on while data
// is due.
func TestFloodBehindAFailureInATransfer(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	r.getData(4096, 0, make([]byte, 4096))
	const sent = 1 << 14
	flood := r.pings(sent)
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		_, _ = r.nc.Write(flood)
	}()
	await.True(t, "the upper layer holds PDUs up", func() bool { return len(r.up.PDUs) == cap(r.up.PDUs) })
	r.c.Terminate(errors.New("it has failed"))
	r.up.Release()
	if err := r.up.End(t); err == nil {
		t.Fatal("no reason")
	}
	<-flooded
	if n := r.c.Stats().PDUsIn; n > pdustream.ReadAhead/iscsi.BHSLen+uint64(cap(r.up.PDUs))+10 {
		t.Errorf("%d PDUs of %d were read, most of them behind the end", n, sent)
	}
}

// TestFaultWithinCopiedData: data that are copied to memory of which a part has gone are lost,
// and that is told, without a digest that would find it.
func TestFaultWithinCopiedData(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	good, bad := make([]byte, 50), faultmap.New(t, 4096, 0)[:50]
	p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{good, bad}}}
	p.BHS.NewSCSICommand().SetITT(1)
	if err := r.c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	r.recv()
	var b iscsi.BHS
	d := b.NewDataIn()
	d.SetITT(1)
	d.SetFinal(true)
	d.SetHasStatus(true)
	r.send(r.frame(b, nil, filled(100)))
	q := r.up.PDU(t, "response")
	if q.BHS.SCSIResponse().Response() != iscsi.ResponseTargetFailure {
		t.Error("GOOD for data that are not there")
	}
	q.Release()
}

// TestDataInOrders: sequences may come in any order where that was agreed on, and a Data-In
// without data may stand at the end.
func TestDataInOrders(t *testing.T) {
	for _, pdus := range []bool{true, false} {
		r := newPeer(t, iscsi.RoleInitiator, func(p *iscsi.Params) { p.DataSequenceInOrder, p.DataPDUInOrder = false, pdus })
		mem := make([]byte, 2048)
		bufs := r.command(mem)
		for sn, off := range []uint32{1024, 0, 2048} {
			var b iscsi.BHS
			d := b.NewDataIn()
			d.SetITT(1)
			d.SetDataSN(uint32(sn))
			d.SetOffset(off)
			d.SetFinal(true)
			d.SetHasStatus(off == 2048)
			r.send(r.frame(b, nil, filled(2048)[off:min(off+1024, 2048)]))
		}
		p := r.up.PDU(t, "response")
		if !bytes.Equal(mem, filled(2048)) || bufs.InLen != 2048 {
			t.Errorf("PDUs in order %v: %d bytes", pdus, bufs.InLen)
		}
		p.Release()
	}
}

// TestSequenceWithoutF: a sequence that is complete is over without its F bit, and the next one
// is asked for.
func TestSequenceWithoutF(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.MaxBurstLength, p.MaxOutstandingR2T = 1024, 1 })
	mem := make([]byte, 2048)
	x, q := r.getData(2048, 0, mem)
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, false), nil, filled(2048)[:1024]))
	await.True(t, "the data have come", func() bool { return r.c.Stats().PayloadIn == 1024 })
	r.c.Push()
	b, _ := r.recv()
	if q = b.R2T(); b.Opcode() != iscsi.OpR2T || q.Offset() != 1024 {
		t.Fatalf("got %s", b.Opcode())
	}
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 1024, false), nil, filled(2048)[1024:]))
	if got := r.up.Completion(t); got != x || x.Err != nil || !bytes.Equal(mem, filled(2048)) {
		t.Errorf("%v", got.Err)
	}
}

// TestOldDataOutAtLevel0: where nothing is sent again a Data-Out with an old number is refused.
func TestOldDataOutAtLevel0(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	_, q := r.getData(4096, 0, make([]byte, 4096))
	f := r.frame(dataOut(q.TTT(), 5, 0, 0, false), nil, filled(1024))
	r.send(f)
	r.send(f)
	p := r.up.PDU(t, "refused Data-Out")
	if p.BHS.Opcode() != iscsi.OpDataOut || p.Bad == nil {
		t.Errorf("%s, %v", p.BHS.Opcode(), p.Bad)
	}
	p.Release()
}

// TestDataACKIsAnAnswer: the acknowledgement that a target asks for has the digests of its
// connection, and counts until it is sent.
func TestDataACKIsAnAnswer(t *testing.T) {
	c := queueing(iscsi.RoleInitiator, func(p *iscsi.Params) { p.ErrorRecoveryLevel = 1 })
	c.rx.c = c
	var b iscsi.BHS
	d := b.NewDataIn()
	d.SetTTT(3)
	c.rx.acknowledge(d)
	if all := queued(t, c); len(all) != 1 || !all[0].digest || c.Backlog().Answers != pduCost {
		t.Errorf("%d PDUs are queued, %d bytes of answers", len(all), c.Backlog().Answers)
	}
	if sendAll(c); c.Backlog().Answers != 0 {
		t.Errorf("%d bytes count when it is sent", c.Backlog().Answers)
	}
}

// TestDataInNumbers: what a target's PDUs say of the order: Data-Ins the window, a response how
// many Data-Ins there were, other PDUs what the upper layer has said (RFC 7143 §11.4, §11.7).
func TestDataInNumbers(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	x := transfer(5, filled(6000))
	x.Final = false
	if err := r.c.PutData(x); err != nil {
		t.Fatal(err)
	}
	var p, nop iscsi.PDU
	s := p.BHS.NewSCSIResponse()
	s.SetITT(5)
	s.SetStatus(2)
	p.Ref, p.Data = *x.Ref, []byte("sense")
	nop.BHS.NewNopIn().SetITT(5)
	copy(nop.BHS[36:], "unchanged...")
	want := nop.BHS
	for _, p := range []*iscsi.PDU{&nop, &p} {
		if err := r.c.SendControl(p); err != nil {
			t.Fatal(err)
		}
	}
	r.c.Push()
	for i := range uint32(2) {
		b, _ := r.recv()
		d := b.DataIn()
		if q := b.Sequence(); d.DataSN() != i || d.Final() || q != (iscsi.Sequence{ExpCmdSN: 8, MaxCmdSN: 9}) {
			t.Errorf("Data-In %d: DataSN %d, F %v, %+v", i, d.DataSN(), d.Final(), q)
		}
	}
	if b, _ := r.recv(); b != want {
		t.Errorf("NOP-In % x, want % x", b, want)
	}
	if b, _ := r.recv(); b.Opcode() != iscsi.OpSCSIResponse || b.SCSIResponse().ExpDataSN() != 2 {
		t.Errorf("%s: % x", b.Opcode(), b)
	}
}

// TestResponseAfterTheEnd: one that comes too late is refused, and kept for the connection that
// adopts the task, where the level allows that.
func TestResponseAfterTheEnd(t *testing.T) {
	for level := range uint32(3) {
		t.Run(fmt.Sprint("level", level), func(t *testing.T) {
			r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.ErrorRecoveryLevel = level })
			x := transfer(5, filled(1000))
			if err := r.c.PutData(x); err != nil {
				t.Fatal(err)
			}
			rec := r.c.Recovery()
			r.c.Terminate(errors.New("lost"))
			<-r.c.Ended()
			p := iscsi.PDU{Ref: *x.Ref}
			p.BHS.NewSCSIResponse().SetITT(5)
			if err := r.c.SendControl(&p); err == nil {
				t.Error("the response was taken")
			}
			if rec == nil {
				return
			}
			if (rec.Holds(5) != 0) != (level == 2) {
				t.Errorf("it is kept: %v", rec.Holds(5))
			}
			if n := p.BHS.SCSIResponse().ExpDataSN(); n != 1 {
				t.Errorf("ExpDataSN %d", n)
			}
			rec.Discard()
		})
	}
}
