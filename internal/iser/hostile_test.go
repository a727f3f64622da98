package iser

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"softiser/internal/faultmap"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/loopback"
	"softiser/rdma"
)

// peer is a scripted other end: a bare queue pair against a Conn in the full
// feature phase.
type peer struct {
	t    *testing.T
	c    *Conn
	up   *datamovertest.Recorder
	dev  *rdma.Device
	pd   *rdma.PD
	qp   *rdma.QP
	cq   *rdma.CQ
	bufs [][]byte
	last rdma.WC // of recv
}

func newPeer(t *testing.T, role iscsi.Role, change func(*iscsi.Params)) *peer {
	t.Helper()
	return newPeerWith(t, role, true, change)
}

// newPeerWith says whether the peer allows Send with Invalidate.
func newPeerWith(t *testing.T, role iscsi.Role, invalidate bool, change func(*iscsi.Params)) *peer {
	t.Helper()
	d := device(t)
	r := &peer{t: t, up: datamovertest.NewRecorder()}
	var err error
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r.dev, err = rdma.Open(nil)
	check(err)
	r.pd, err = r.dev.AllocPD()
	check(err)
	r.cq, err = r.dev.CreateCQ(rdma.CQConfig{Depth: 1024})
	check(err)
	r.qp, err = r.pd.CreateQP(rdma.QPConfig{SendCQ: r.cq, RecvCQ: r.cq})
	check(err)
	for i := range 16 {
		r.bufs = append(r.bufs, make([]byte, recvBufLen))
		check(r.qp.PostRecv(rdma.RecvWR{ID: uint64(i), SGL: []rdma.SGE{{Mem: r.bufs[i], LKey: r.pd.LocalDMAKey()}}}))
	}
	a, b := loopback.Pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ch := make(chan error, 1)
	if role == iscsi.RoleTarget {
		go func() {
			var err error
			r.c, err = d.Serve(ctx, b, ConnConfig{})
			ch <- err
		}()
		_, err = rdma.Client(ctx, a, r.qp, &rdma.ConnParams{PrivateData: privateData(invalidate), IRD: 16})
	} else {
		go func() {
			q, err := rdma.Server(ctx, b, nil)
			if err == nil {
				err = q.Accept(ctx, r.qp, &rdma.ConnParams{PrivateData: privateData(invalidate), ORD: 16})
			}
			ch <- err
		}()
		r.c, err = d.Client(ctx, a, ConnConfig{})
	}
	check(err)
	check(<-ch)
	p := iscsi.NewNegotiation(role, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
	p.RDMAExtensions, p.MaxXmitDataSegmentLength, p.MaxRecvDataSegmentLength = true, 8192, 8192
	if change != nil {
		change(&p)
	}
	r.c.NoticeKeyValues(&p)
	check(r.c.Enable())
	r.c.Start(r.up)
	t.Cleanup(func() {
		r.c.Terminate(errors.New("end of the test"))
		<-r.c.Ended()
		_ = r.qp.Close()
		_ = r.cq.Close()
		r.up.Release()
	})
	return r
}

func (r *peer) post(wr rdma.SendWR) {
	r.t.Helper()
	if err := r.qp.PostSend(wr); err != nil {
		r.t.Fatal(err)
	}
}

// send sends raw bytes.
func (r *peer) send(msg []byte) {
	r.t.Helper()
	r.post(rdma.SendWR{ID: 99, Op: rdma.OpSend, SGL: []rdma.SGE{{Mem: msg, LKey: r.pd.LocalDMAKey()}}})
}

// recv waits for the next Send of the Conn.
func (r *peer) recv() []byte {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		var wc [1]rdma.WC
		if r.cq.Poll(wc[:]) == 1 {
			if wc[0].Opcode == rdma.WCRecv {
				if wc[0].Status != rdma.StatusSuccess {
					r.t.Fatalf("receive: %v", wc[0].Status)
				}
				r.last = wc[0]
				return r.bufs[wc[0].ID][:wc[0].ByteLen]
			}
			continue
		}
		if err := r.cq.Wait(ctx); err != nil {
			r.t.Fatal(err)
		}
	}
}

func control(h header, b *iscsi.BHS, data []byte) []byte {
	b.SetDataLen(len(data))
	m := append(append(h.append(nil), b[:]...), data...)
	return append(m, make([]byte, iscsi.PadLen(len(data)))...)
}

// Messages that end the connection, and why.
func TestMessageErrors(t *testing.T) {
	var nop, snack, dataIn, resp, r2t, cmd iscsi.BHS
	nop.NewNopOut()
	snack.NewSNACK(iscsi.SNACKData)
	dataIn.NewDataIn()
	resp.NewSCSIResponse()
	r2t.NewR2T()
	cmd.NewSCSICommand()
	ctl := func(b iscsi.BHS) []byte { return control(header{}, &b, nil) }
	for _, c := range []struct {
		name string
		role iscsi.Role
		msg  []byte
		says string
	}{
		{"nothing", iscsi.RoleTarget, nil, "shorter than the header"},
		{"short header", iscsi.RoleTarget, make([]byte, 27), "shorter than the header"},
		{"unknown type", iscsi.RoleTarget, append([]byte{0x70}, make([]byte, 75)...), "message type"},
		{"short BHS", iscsi.RoleTarget, ctl(nop)[:70], "header and BHS take"},
		{"data missing", iscsi.RoleTarget, func() []byte { b := nop; b.SetDataLen(5); return append(header{}.bytes(), b[:]...) }(), "room for 0"},
		{"too much padding", iscsi.RoleTarget, append(ctl(nop), 0, 0, 0, 0), "room for 4"},
		{"AHS missing", iscsi.RoleTarget, func() []byte { b := cmd; b.SetAHSLen(1020); return append(header{}.bytes(), b[:]...) }(), "AHS"},
		{"response at the target", iscsi.RoleTarget, ctl(resp), "the initiator sent a SCSI Response"},
		{"R2T at the initiator", iscsi.RoleInitiator, ctl(r2t), "R2T over iSER"},
		{"Data-In at the initiator", iscsi.RoleInitiator, ctl(dataIn), "Data-In over iSER"},
		{"command at the initiator", iscsi.RoleInitiator, ctl(cmd), "the target sent a SCSI Command"},
		{"HelloReply at the target", iscsi.RoleTarget, (&hello{reply: true, maxVer: 10, ver: 10}).append(nil), "unexpected Hello"},
		{"HelloReply without a Hello", iscsi.RoleInitiator, (&hello{reply: true, maxVer: 10, ver: 10}).append(nil), "without a Hello"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPeer(t, c.role, nil)
			if c.role == iscsi.RoleInitiator { // MPA: the initiator speaks first
				var p iscsi.PDU
				p.BHS.NewNopOut()
				if err := r.c.SendControl(&p); err != nil {
					t.Fatal(err)
				}
				r.c.Push()
				r.recv()
			}
			r.send(c.msg)
			if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

func (h header) bytes() []byte { return h.append(nil) }

// SNACKs and solicited Data-Outs go up, to be rejected.
func TestRejectedPDUs(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	if !r.c.Limits().QuietUntilFirstCommand || r.c.Limits().MaxControlData != linuxControlData {
		t.Errorf("%+v", r.c.Limits())
	}
	var b iscsi.BHS
	b.NewSNACK(iscsi.SNACKData)
	r.send(control(header{}, &b, nil))
	p := r.up.PDU(t, "SNACK")
	if p.Bad == nil || p.Bad.Reason != iscsi.RejectSNACK {
		t.Errorf("%v", p.Bad)
	}
	p.Release()
	if r.c.Limits().QuietUntilFirstCommand {
		t.Error("still quiet")
	}
	var d iscsi.BHS
	d.NewDataOut().SetTTT(5)
	r.send(control(header{}, &d, []byte("abc")))
	p = r.up.PDU(t, "Data-Out")
	if p.Bad == nil || p.Bad.Reason != iscsi.RejectInvalidField || string(p.Data) != "abc" {
		t.Errorf("%v", p.Bad)
	}
	p.Release()
	// Data without padding is as good as with it.
	var u iscsi.BHS
	u.NewDataOut()
	m := control(header{}, &u, []byte("abcde"))
	r.send(m[:len(m)-3])
	p = r.up.PDU(t, "Data-Out")
	if p.Bad != nil || string(p.Data) != "abcde" {
		t.Errorf("%v %q", p.Bad, p.Data)
	}
	p.Release()
}

// Hello is answered whether or not it was agreed on; a version that we do not
// speak is refused.
func TestHelloAnswers(t *testing.T) {
	for _, c := range []struct {
		h      hello
		reject bool
	}{
		{hello{maxVer: 10, ver: 10, depth: 4}, false},
		{hello{maxVer: 15, ver: 1, depth: 4}, false},
		{hello{maxVer: 9, ver: 9}, true},
		{hello{maxVer: 15, ver: 11}, true},
	} {
		for _, required := range []bool{false, true} {
			r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.ISERHelloRequired = required })
			r.send(c.h.append(nil))
			var got hello
			got.parse(r.recv())
			if !got.reply || got.reject != c.reject || got.ver != Version || got.depth > 32 {
				t.Errorf("%+v is answered %+v", c.h, got)
			}
			r.pdu(func(b *iscsi.BHS) { b.NewNopOut().SetITT(77) })
			p := r.up.PDU(t, "what follows the Hello")
			if p.BHS.Opcode() != iscsi.OpNopOut || p.BHS.ITT() != 77 {
				t.Errorf("a Hello came up: % x", p.BHS)
			}
			p.Release()
		}
	}
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.ISERHelloRequired = true })
	var b iscsi.BHS
	b.NewNopOut()
	r.send(control(header{}, &b, nil))
	if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "before the Hello") {
		t.Errorf("ended with %v", err)
	}
}

// A second Hello, or one that comes too late, is none.
func TestHelloTwice(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.ISERHelloRequired = true })
	h := (&hello{maxVer: Version, ver: Version, depth: 4}).append(nil)
	r.send(h)
	r.recv()
	r.send(h)
	if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "unexpected Hello") {
		t.Errorf("ended with %v", err)
	}
}

// What an initiator that has asked for it makes of a HelloReply.
func TestHelloReplies(t *testing.T) {
	for name, c := range map[string]struct {
		reply hello
		says  string // "": the connection goes on
	}{
		"good":            {hello{reply: true, maxVer: Version, ver: Version, depth: 4}, ""},
		"reject":          {hello{reply: true, reject: true, maxVer: Version, ver: Version}, "rejects the connection"},
		"another version": {hello{reply: true, maxVer: 15, ver: 11}, "rejects the connection"},
		"a Hello":         {hello{maxVer: Version, ver: Version}, "unexpected Hello"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newPeer(t, iscsi.RoleInitiator, func(p *iscsi.Params) { p.ISERHelloRequired = true })
			var ping iscsi.PDU
			ping.BHS.NewNopOut()
			if err := r.c.SendControl(&ping); err != nil {
				t.Fatal(err)
			}
			r.c.Push()
			if m := r.recv(); m[0]&typeMask != typeHello {
				t.Fatalf("the first message is of type %#x, want a Hello", m[0])
			}
			r.send(c.reply.append(nil))
			if c.says != "" {
				if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("ended with %v", err)
				}
				return
			}
			var in iscsi.BHS
			in.NewNopIn()
			in.SetITT(77)
			r.send(control(header{}, &in, nil))
			p := r.up.PDU(t, "NOP-In")
			if p.BHS.Opcode() != iscsi.OpNopIn || p.BHS.ITT() != 77 {
				t.Errorf("a HelloReply came up: % x", p.BHS)
			}
			p.Release()
			r.send(c.reply.append(nil)) // once is enough
			if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "unexpected Hello") {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// Without an agreement nothing is invalidated from afar, not even the task's own STag.
func TestInvalidationNotAgreedOn(t *testing.T) {
	r := newPeerWith(t, iscsi.RoleInitiator, false, nil)
	p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{make([]byte, 512)}}}
	p.BHS.NewSCSICommand().SetITT(3)
	if err := r.c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	h, _, _, _, err := split(r.recv())
	if err != nil {
		t.Fatal(err)
	}
	var b iscsi.BHS
	b.NewSCSIResponse().SetITT(3)
	r.post(rdma.SendWR{ID: 99, Op: rdma.OpSendInv, InvSTag: h.ReadSTag, SGL: []rdma.SGE{{Mem: control(header{}, &b, nil), LKey: r.pd.LocalDMAKey()}}})
	if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "was not agreed on") {
		t.Errorf("ended with %v", err)
	}
}

// A response invalidates what its command has advertised, where that was agreed on;
// one whose command has advertised nothing is a plain Send.
func TestResponsesInvalidate(t *testing.T) {
	for _, agreed := range []bool{true, false} {
		r := newPeerWith(t, iscsi.RoleTarget, agreed, nil)
		w, err := r.pd.AllocWindow()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		stag, base, err := w.Bind(r.qp, [][]byte{make([]byte, 64)}, rdma.AccessRemoteRead|rdma.AccessRemoteWrite|rdma.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		for itt, h := range []header{{}, {wsv: true, stags: stags{WriteSTag: stag, WriteBase: base}}} {
			var b iscsi.BHS
			b.NewSCSICommand().SetITT(uint32(itt))
			r.send(control(h, &b, nil))
			p := r.up.PDU(t, "command")
			q := iscsi.PDU{Ref: p.Ref}
			q.BHS.NewSCSIResponse().SetITT(uint32(itt))
			p.Release()
			if err := r.c.SendControl(&q); err != nil {
				t.Fatal(err)
			}
			r.c.Push()
			r.recv()
			if got, want := r.last.Flags&rdma.WCWithInv != 0, agreed && h.wsv; got != want || got && r.last.InvSTag != stag {
				t.Errorf("agreed on %v, STag %#x: invalidates %v %#x", agreed, h.WriteSTag, got, r.last.InvSTag)
			}
		}
	}
}

// The longest data segment fits a receive buffer beside additional header segments.
func TestLongestMessage(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.MaxRecvDataSegmentLength = RecvDataLen })
	var b iscsi.BHS
	b.NewSCSICommand().SetAttr(1)
	b.SetAHSLen(ahsRoom)
	data := bytes.Repeat([]byte{0xda}, RecvDataLen)
	b.SetDataLen(len(data))
	var h header
	m := append(h.append(nil), b[:]...)
	r.send(append(append(m, make([]byte, ahsRoom)...), data...))
	p := r.up.PDU(t, "command")
	if len(p.AHS) != ahsRoom || !bytes.Equal(p.Data, data) {
		t.Errorf("%d bytes of additional header segments and %d of data", len(p.AHS), len(p.Data))
	}
	p.Release()
}

// A Send that does not fit a receive buffer is not a PDU, though what fitted looks
// like one.
func TestCutMessage(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	var b iscsi.BHS
	b.NewNopOut()
	m := control(header{}, &b, make([]byte, RecvDataLen))
	r.send(append(m, make([]byte, 4096)...))
	if err := r.up.End(t); err == nil {
		t.Error("the connection has no reason to end")
	}
	select {
	case p := <-r.up.PDUs:
		t.Errorf("a part of a message came up: % x", p.BHS)
		p.Release()
	default:
	}
}

// The command as the initiator sends it, and what a response may invalidate.
func TestInitiatorInvalidation(t *testing.T) {
	start := func(t *testing.T, in, out int, unsolicited uint32) (*peer, header) {
		r := newPeer(t, iscsi.RoleInitiator, nil)
		p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{Immediate: unsolicited, Unsolicited: unsolicited}}
		if in > 0 {
			p.Bufs.In = [][]byte{make([]byte, in)}
		}
		if out > 0 {
			p.Bufs.Out = [][]byte{[]byte(strings.Repeat("x", out))}
		}
		p.BHS.NewSCSICommand().SetITT(3)
		if err := r.c.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		h, bhs, _, data, err := split(r.recv())
		if err != nil || bhs.Opcode() != iscsi.OpSCSICommand || len(data) != int(unsolicited) {
			t.Fatalf("%v, %s, %d bytes", err, bhs.Opcode(), len(data))
		}
		if h.rsv != (in > 0) || h.wsv != (out > int(unsolicited)) {
			t.Fatalf("header %+v", h)
		}
		return r, h
	}
	respond := func(r *peer, itt, inv uint32, op rdma.Opcode) {
		var b iscsi.BHS
		b.NewSCSIResponse().SetITT(itt)
		r.post(rdma.SendWR{ID: 99, Op: op, InvSTag: inv, SGL: []rdma.SGE{{Mem: control(header{}, &b, nil), LKey: r.pd.LocalDMAKey()}}})
	}
	good := func(t *testing.T, r *peer) {
		t.Helper()
		p := r.up.PDU(t, "response")
		if p.BHS.SCSIResponse().Response() != 0 {
			t.Error("response changed")
		}
		p.Release()
	}
	t.Run("read", func(t *testing.T) {
		r, h := start(t, 4096, 0, 0)
		respond(r, 3, h.ReadSTag, rdma.OpSendInv)
		good(t, r)
	})
	t.Run("write", func(t *testing.T) {
		r, h := start(t, 0, 9000, 100)
		respond(r, 3, h.WriteSTag, rdma.OpSendInv)
		good(t, r)
	})
	t.Run("both", func(t *testing.T) {
		r, h := start(t, 512, 9000, 0)
		respond(r, 3, h.ReadSTag, rdma.OpSendInv)
		good(t, r)
		// The other STag is dead as well: reading from it ends the connection.
		r.post(rdma.SendWR{ID: 1, Op: rdma.OpRead, Remote: rdma.RemoteAddr{STag: h.WriteSTag, TO: h.WriteBase},
			SGL: []rdma.SGE{{Mem: make([]byte, 10), LKey: r.pd.LocalDMAKey()}}})
		r.up.End(t)
	})
	t.Run("plain Send", func(t *testing.T) {
		r, h := start(t, 4096, 0, 0)
		respond(r, 3, 0, rdma.OpSend)
		good(t, r)
		r.post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, Remote: rdma.RemoteAddr{STag: h.ReadSTag, TO: h.ReadBase},
			SGL: []rdma.SGE{{Mem: make([]byte, 10), LKey: r.pd.LocalDMAKey()}}})
		r.up.End(t)
	})
	t.Run("unknown task", func(t *testing.T) {
		r, h := start(t, 4096, 0, 0)
		respond(r, 4, h.ReadSTag, rdma.OpSendInv)
		if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "unknown task") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("wrong STag of the task", func(t *testing.T) {
		r, h := start(t, 512, 9000, 0)
		respond(r, 3, h.WriteSTag, rdma.OpSendInv)
		if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "not the task's") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("on another PDU", func(t *testing.T) {
		r, h := start(t, 512, 0, 0)
		var b iscsi.BHS
		b.NewNopIn()
		r.post(rdma.SendWR{ID: 99, Op: rdma.OpSendInv, InvSTag: h.ReadSTag, SGL: []rdma.SGE{{Mem: control(header{}, &b, nil), LKey: r.pd.LocalDMAKey()}}})
		if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "NOP-In") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("one byte too far", func(t *testing.T) {
		r, h := start(t, 4096, 0, 0)
		r.post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, Remote: rdma.RemoteAddr{STag: h.ReadSTag, TO: h.ReadBase + 4000},
			SGL: []rdma.SGE{{Mem: make([]byte, 97), LKey: r.pd.LocalDMAKey()}}})
		r.up.End(t)
	})
	t.Run("reading what may be written", func(t *testing.T) {
		r, h := start(t, 4096, 0, 0)
		r.post(rdma.SendWR{ID: 1, Op: rdma.OpRead, Remote: rdma.RemoteAddr{STag: h.ReadSTag, TO: h.ReadBase},
			SGL: []rdma.SGE{{Mem: make([]byte, 10), LKey: r.pd.LocalDMAKey()}}})
		r.up.End(t)
	})
}

// The target's side of a command: where it writes and reads, and what it
// invalidates.
func TestTargetAddresses(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	mem := make([]byte, 10000)
	for i := range mem {
		mem[i] = byte(i) ^ byte(i>>8)
	}
	w, err := r.pd.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	command := func(write bool, segs [][]byte, a rdma.Access) *iscsi.PDU {
		stag, base, err := w.Bind(r.qp, segs, a)
		if err != nil {
			t.Fatal(err)
		}
		h := header{rsv: !write, wsv: write}
		if write {
			h.WriteSTag, h.WriteBase = stag, base
		} else {
			h.ReadSTag, h.ReadBase = stag, base
		}
		var b iscsi.BHS
		b.NewSCSICommand().SetITT(8)
		r.send(control(h, &b, nil))
		return r.up.PDU(t, "command")
	}
	respond := func(p *iscsi.PDU) {
		q := iscsi.PDU{Ref: p.Ref}
		q.BHS.NewSCSIResponse().SetITT(8)
		if err := r.c.SendControl(&q); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		if _, bhs, _, _, err := split(r.recv()); err != nil || bhs.Opcode() != iscsi.OpSCSIResponse {
			t.Fatalf("%v", err)
		}
		if w.Valid() {
			t.Error("the response has not closed the STag")
		}
		p.Release()
	}
	// WRITE of 10000 bytes, 4000 of them unsolicited: the base is behind these.
	p := command(true, [][]byte{mem[4000:]}, rdma.AccessRemoteRead)
	got := make([]byte, 6000)
	x := &iscsi.Transfer{ITT: 8, Ref: &p.Ref, Unsolicited: 4000, Offset: 4000, Len: 6000, Segs: [][]byte{got[:1], got[1:3000], got[3000:]}}
	if err := r.c.GetData(x); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	if r.up.Completion(t); x.Err != nil || string(got) != string(mem[4000:]) {
		t.Fatalf("%v", x.Err)
	}
	respond(p)
	// READ into the middle.
	p = command(false, [][]byte{mem}, rdma.AccessRemoteWrite)
	x = &iscsi.Transfer{ITT: 8, Ref: &p.Ref, Offset: 100, Len: 50, Segs: [][]byte{make([]byte, 50)}}
	if err := r.c.PutData(x); err != nil {
		t.Fatal(err)
	}
	respond(p)
	if r.up.Completion(t); x.Err != nil || mem[99] != 99 || mem[100] != 0 || mem[149] != 0 || mem[150] != 150 {
		t.Fatalf("%v", x.Err)
	}
	for _, x := range []*iscsi.Transfer{
		{Len: 4, Segs: [][]byte{make([]byte, 4)}}, // no STag
		{Len: 4, Ref: refOf(stags{WriteSTag: 5, ReadSTag: 5}), Unsolicited: 8, Offset: 4, Segs: [][]byte{make([]byte, 4)}},
	} {
		if err := r.c.GetData(x); err == nil {
			t.Errorf("GetData took %+v", x)
		}
	}
}

// An RDMA Read into a mapping that has been truncated fails alone, and so does an
// RDMA Write into one at the initiator.
func TestMemoryFault(t *testing.T) {
	const n = 256 << 10
	mem := faultmap.New(t, n, 0)
	r := newPeer(t, iscsi.RoleTarget, nil)
	src := make([]byte, n)
	w, err := r.pd.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, dst := range [][]byte{mem, make([]byte, n)} {
		stag, base, err := w.Bind(r.qp, [][]byte{src}, rdma.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		var b iscsi.BHS
		b.NewSCSICommand().SetITT(8)
		r.send(control(header{wsv: true, stags: stags{WriteSTag: stag, WriteBase: base}}, &b, nil))
		p := r.up.PDU(t, "command")
		ref := p.Ref
		x := &iscsi.Transfer{ITT: 8, Ref: &ref, Len: n, Segs: [][]byte{dst}}
		p.Release()
		if err := r.c.GetData(x); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		r.up.Completion(t)
		if bad := len(dst) > 0 && &dst[0] == &mem[0]; bad != errors.Is(x.Err, iscsi.ErrMemoryFault) || !bad && x.Err != nil {
			t.Fatalf("%v", x.Err)
		}
	}

	r = newPeer(t, iscsi.RoleInitiator, nil)
	p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{mem}}}
	p.BHS.NewSCSICommand().SetITT(3)
	if err := r.c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	h, _, _, _, err := split(r.recv())
	if err != nil {
		t.Fatal(err)
	}
	r.post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, Remote: rdma.RemoteAddr{STag: h.ReadSTag, TO: h.ReadBase}, SGL: []rdma.SGE{{Mem: src, LKey: r.pd.LocalDMAKey()}}})
	var b iscsi.BHS
	b.NewSCSIResponse().SetITT(3)
	r.send(control(header{}, &b, nil))
	q := r.up.PDU(t, "response")
	if q.BHS.SCSIResponse().Response() != iscsi.ResponseTargetFailure {
		t.Error("lost data was reported as good")
	}
	q.Release()
}

// A peer that serves no RDMA Reads cannot be served.
func TestNoReads(t *testing.T) {
	d := device(t)
	a, b := loopback.Pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	go func() {
		e, err := d.Client(ctx, a, ConnConfig{RDMA: rdma.ConnParams{IRD: -1}})
		if err == nil {
			e.Terminate(errors.New("end of the test"))
		}
	}()
	if _, err := d.Serve(ctx, b, ConnConfig{}); err == nil || !strings.Contains(err.Error(), "IRD") {
		t.Fatalf("%v", err)
	}
}

// More commands than one chunk of receive buffers: the pool grows.
func TestReceivePoolGrows(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	var held []*iscsi.PDU
	for i := range 200 { // a chunk has 64
		var b iscsi.BHS
		b.NewNopOut().SetITT(uint32(i))
		r.send(control(header{}, &b, nil))
		p := r.up.PDU(t, "NOP-Out")
		if p.BHS.ITT() != uint32(i) {
			t.Fatalf("got %d, want %d", p.BHS.ITT(), i)
		}
		held = append(held, p)
	}
	for _, p := range held {
		p.Release()
	}
}

// The port of a listener that is not RDMA.
func TestDialErrors(t *testing.T) {
	d := device(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	go func() {
		c, err := l.Accept()
		if err == nil {
			c.Close()
		}
	}()
	if _, err := d.Dial(ctx, "tcp", addr, ConnConfig{}); err == nil {
		t.Error("connected to a peer that closes")
	}
	l.Close()
	if _, err := d.Dial(ctx, "tcp", addr, ConnConfig{}); err == nil {
		t.Error("connected to nobody")
	}
}
