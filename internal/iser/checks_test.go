package iser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/faultmap"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/rdma"
)

// start sends a SCSI Command with its buffers and returns what the peer sees of it.
func (r *peer) start(itt uint32, b *iscsi.TaskBuffers) header {
	r.t.Helper()
	p := iscsi.PDU{Bufs: b}
	p.BHS.NewSCSICommand().SetITT(itt)
	if err := r.c.SendControl(&p); err != nil {
		r.t.Fatal(err)
	}
	r.c.Push()
	h, bhs, _, _, err := split(r.recv())
	if err != nil || bhs.Opcode() != iscsi.OpSCSICommand || bhs.ITT() != itt {
		r.t.Fatalf("%v: % x", err, *bhs)
	}
	return h
}

// pdu sends a PDU without data.
func (r *peer) pdu(make func(b *iscsi.BHS)) {
	r.t.Helper()
	var b iscsi.BHS
	make(&b)
	r.send(control(header{}, &b, nil))
}

// open reports whether the target may still write through h's Read STag. If not, the
// connection ends.
func (r *peer) open(h header) bool {
	r.t.Helper()
	r.post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, Remote: rdma.RemoteAddr{STag: h.ReadSTag, TO: h.ReadBase},
		SGL: []rdma.SGE{{Mem: make([]byte, 10), LKey: r.pd.LocalDMAKey()}}})
	before := r.c.Stats().PDUsIn
	r.pdu(func(b *iscsi.BHS) { b.NewNopIn().SetITT(iscsi.ReservedTag) })
	await.True(r.t, "the next PDU comes, or the end", func() bool { return r.c.Stats().PDUsIn > before || len(r.up.Ended) > 0 })
	return r.c.Stats().PDUsIn > before
}

// TestBadCommands: what does not fit the seam is refused, and leaves no task behind.
func TestBadCommands(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	mib := make([]byte, 1<<20)
	var huge [][]byte
	for range 4096 {
		huge = append(huge, mib)
	}
	r.start(1, &iscsi.TaskBuffers{})
	for name, c := range map[string]struct {
		itt  uint32
		bufs iscsi.TaskBuffers
		ahs  int
		data []byte
	}{
		"a tag in use":                         {1, iscsi.TaskBuffers{}, 0, nil},
		"more unsolicited than there is":       {2, iscsi.TaskBuffers{Out: [][]byte{mib[:8]}, Unsolicited: 9}, 0, nil},
		"more immediate than unsolicited":      {2, iscsi.TaskBuffers{Out: [][]byte{mib[:8]}, Unsolicited: 4, Immediate: 5}, 0, nil},
		"more immediate than a message":        {2, iscsi.TaskBuffers{Out: [][]byte{mib}, Unsolicited: RecvDataLen - 3, Immediate: RecvDataLen - 3}, 4, nil},
		"data beside its buffers":              {2, iscsi.TaskBuffers{Out: [][]byte{mib[:8]}}, 0, mib[:1]},
		"more to read than a length can say":   {2, iscsi.TaskBuffers{In: huge}, 0, nil},
		"more to write than a length can say":  {2, iscsi.TaskBuffers{Out: huge}, 0, nil},
		"longer additional header segments":    {2, iscsi.TaskBuffers{}, iscsi.MaxAHSLen + 4, nil},
		"additional header segments of 2":      {2, iscsi.TaskBuffers{}, 2, nil},
		"more data than fits behind the heads": {2, iscsi.TaskBuffers{}, 4, make([]byte, RecvDataLen-3)},
	} {
		p := iscsi.PDU{Bufs: &c.bufs, AHS: make([]byte, c.ahs), Data: c.data}
		p.BHS.NewSCSICommand().SetITT(c.itt)
		if err := r.c.SendControl(&p); err == nil {
			t.Errorf("%s: no error", name)
		}
		if c.itt != 1 && r.c.tasks.find(c.itt) != nil {
			t.Errorf("%s: a task is left", name)
		}
	}
	// The most that fits does.
	p := iscsi.PDU{AHS: make([]byte, 4), Bufs: &iscsi.TaskBuffers{Out: [][]byte{mib}, Unsolicited: RecvDataLen - 4, Immediate: RecvDataLen - 4, InLen: 7}}
	p.BHS.NewSCSICommand().SetITT(2)
	if err := r.c.SendControl(&p); err != nil || p.Bufs.InLen != 0 {
		t.Errorf("%v, %d", err, p.Bufs.InLen)
	}
	text := iscsi.PDU{Data: make([]byte, RecvDataLen)}
	text.BHS.NewTextRequest()
	if err := r.c.SendControl(&text); err != nil {
		t.Error(err)
	}
	text.Data = make([]byte, RecvDataLen+1)
	if err := r.c.SendControl(&text); err == nil {
		t.Error("a PDU that does not fit a message was taken")
	}
	// And a command that moves nothing has no buffers.
	var none iscsi.PDU
	none.BHS.NewSCSICommand().SetITT(3)
	if err := r.c.SendControl(&none); err != nil {
		t.Error(err)
	}
}

// TestTransferChecks: a transfer fits its memory and the 32 bits of an offset.
func TestTransferChecks(t *testing.T) {
	x := &iscsi.Transfer{Len: 16, Segs: [][]byte{make([]byte, 16)}, Offset: ^uint32(0) - 16}
	if err := checkTransfer("", x, 1); err != nil {
		t.Error(err)
	}
	if x.Offset++; checkTransfer("", x, 1) == nil {
		t.Error("beyond the last offset")
	}
	x.Offset = 0
	if x.Len++; checkTransfer("", x, 1) == nil {
		t.Error("beyond its memory")
	}
	if x.Len -= 2; checkTransfer("", x, 1) == nil {
		t.Error("less than its memory")
	}
}

// TestTransfersOfNothing: they are over at once, counted, and carry nothing of their last use.
// One that is over, or aborted, is not aborted again, nor is one of a connection that has ended.
func TestTransfersOfNothing(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	for name, f := range map[string]func(*iscsi.Transfer) error{"PutData": r.c.PutData, "GetData": r.c.GetData} {
		x := &iscsi.Transfer{Err: errors.New("of its last use")}
		x.Own.Aborted = true
		if err := f(x); err != nil {
			t.Fatal(err)
		}
		if n := r.c.Stats().OutstandingTransfers; n != 1 || x.Err != nil || x.Own.Aborted {
			t.Errorf("%s: %d are outstanding, %v", name, n, x.Err)
		}
		r.c.Push()
		if r.up.Completion(t) != x || r.c.Stats().OutstandingTransfers != 0 {
			t.Errorf("%s: another transfer is over", name)
		}
	}
	x := &iscsi.Transfer{Len: 4, Ref: refOf(stags{WriteSTag: 5}), Segs: [][]byte{make([]byte, 4)}}
	if err := r.c.GetData(x); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.c.AbortTransfer(x)
	}
	if r.c.Push(); r.up.Completion(t) != x || x.Err != iscsi.ErrAborted || !x.Own.Aborted {
		t.Errorf("aborted: %v", x.Err)
	}
	r.c.Terminate(errors.New("lost"))
	<-r.c.Ended()
	y := &iscsi.Transfer{}
	if r.c.AbortTransfer(y); y.Own.Aborted {
		t.Error("aborted after the end")
	}
	x.Ref = refOf(stags{ReadSTag: 5, WriteSTag: 5})
	for name, f := range map[string]func(*iscsi.Transfer) error{"PutData": r.c.PutData, "GetData": r.c.GetData} {
		if err := f(x); err == nil || !strings.Contains(err.Error(), "lost") {
			t.Errorf("%s after the end: %v", name, err)
		}
	}
}

// TestStatistics: bytes of SCSI data are counted once, those of other PDUs are not.
func TestStatistics(t *testing.T) {
	in := func(r *peer, what string, want iscsi.DatamoverStats) {
		t.Helper()
		got := r.c.Stats()
		if want.ReceiveCalls, want.SendCalls = got.ReceiveCalls, got.SendCalls; got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	r := newPeer(t, iscsi.RoleTarget, nil)
	in(r, "at first", iscsi.DatamoverStats{})
	var b iscsi.BHS
	b.NewNopOut()
	r.send(control(header{}, &b, make([]byte, 32)))
	r.up.PDU(t, "NOP-Out").Release()
	in(r, "a ping", iscsi.DatamoverStats{PDUsIn: 1})
	b.NewDataOut().SetTTT(iscsi.ReservedTag)
	r.send(control(header{}, &b, make([]byte, 100)))
	p := r.up.PDU(t, "Data-Out")
	if p.Bad != nil {
		t.Error(p.Bad)
	}
	p.Release()
	in(r, "unsolicited data", iscsi.DatamoverStats{PDUsIn: 2, PayloadIn: 100})
	if err := r.c.PutData(&iscsi.Transfer{Len: 50, Ref: refOf(stags{ReadSTag: 5}), Segs: [][]byte{make([]byte, 50)}}); err != nil {
		t.Fatal(err)
	}
	in(r, "data", iscsi.DatamoverStats{PDUsIn: 2, PayloadIn: 100, PayloadOut: 50, OutstandingTransfers: 1})

	r = newPeer(t, iscsi.RoleInitiator, nil)
	respond := func(itt, residual uint32, flags uint8) {
		r.pdu(func(b *iscsi.BHS) {
			s := b.NewSCSIResponse()
			s.SetITT(itt)
			s.SetResidual(residual, flags)
		})
		r.up.PDU(t, "response").Release()
	}
	out := make([]byte, 100)
	r.start(1, &iscsi.TaskBuffers{Out: [][]byte{out}, Immediate: 100, Unsolicited: 100})
	in(r, "a command", iscsi.DatamoverStats{PDUsOut: 1, PayloadOut: 100, PayloadCopied: 100})
	respond(1, 0, 0)
	in(r, "its response", iscsi.DatamoverStats{PDUsOut: 1, PDUsIn: 1, PayloadOut: 100, PayloadCopied: 100})
	want := iscsi.DatamoverStats{PDUsOut: 1, PDUsIn: 1, PayloadOut: 100, PayloadCopied: 100}
	for i, c := range []struct {
		residual uint32
		flags    uint8
		got      uint64
	}{{0, 0, 500}, {100, iscsi.ResidualUnderflow, 400}, {600, iscsi.ResidualUnderflow, 0}, {100, iscsi.ResidualOverflow, 500}} {
		r.start(uint32(2+i), &iscsi.TaskBuffers{In: [][]byte{make([]byte, 500)}})
		respond(uint32(2+i), c.residual, c.flags)
		want.PDUsOut++
		want.PDUsIn++
		want.PayloadIn += c.got
		in(r, "a response to a READ", want)
	}
}

// TestUnknownPDUs: what nobody knows goes up to be rejected.
func TestUnknownPDUs(t *testing.T) {
	for _, role := range []iscsi.Role{iscsi.RoleInitiator, iscsi.RoleTarget} {
		r := newPeer(t, role, nil)
		if role == iscsi.RoleInitiator { // who has accepted may not begin (RFC 5044 §7.1.3)
			r.start(9, &iscsi.TaskBuffers{})
		}
		for _, op := range []byte{0x1d, 0x3e} {
			r.pdu(func(b *iscsi.BHS) { b[0] = op })
			p := r.up.PDU(t, "unknown PDU")
			if p.BHS[0] != op {
				t.Errorf("got %#x, want %#x", p.BHS[0], op)
			}
			p.Release()
		}
		// A PDU that announces data which are not there is malformed, but for the one
		// that libiscsi sends so.
		var b iscsi.BHS
		b[0] = 0x1d
		b.SetDataLen(8)
		r.send(append(header{wsv: true}.bytes(), b[:]...))
		if err := r.up.End(t); !errors.Is(err, errFormat) {
			t.Errorf("%v: ended with %v", role, err)
		}
	}
}

// TestOnlyItsResponseEndsATask: the windows of a task are its own, whichever other PDU names
// it, whichever task shares its place in the table, and however often one is released.
func TestOnlyItsResponseEndsATask(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	bufs := func() *iscsi.TaskBuffers { return &iscsi.TaskBuffers{In: [][]byte{make([]byte, 4096)}} }
	a, b, c := bufs(), bufs(), bufs()
	ha := r.start(1, a)
	hb := r.start(1+taskBuckets, b)
	hc := r.start(1+2*taskBuckets, c)
	r.pdu(func(b *iscsi.BHS) { b.NewNopIn().SetITT(1) })
	r.up.PDU(t, "NOP-In").Release()
	r.pdu(func(b *iscsi.BHS) { b.NewSCSIResponse().SetITT(77) })
	r.up.PDU(t, "response to nobody").Release()
	for _, b := range []*iscsi.TaskBuffers{{Slot: -1}, {Slot: 99}, {}} {
		r.c.ReleaseTask(b)
	}
	r.pdu(func(b *iscsi.BHS) { b.NewSCSIResponse().SetITT(1 + taskBuckets) })
	r.up.PDU(t, "response").Release()
	r.c.ReleaseTask(b)
	r.c.mu.Lock()
	for itt, want := range map[uint32]bool{1: true, 1 + taskBuckets: false, 1 + 2*taskBuckets: true} {
		if got := r.c.tasks.find(itt) != nil; got != want {
			t.Errorf("task %#x is there: %v", itt, got)
		}
	}
	r.c.mu.Unlock()
	d := bufs()
	hd := r.start(7, d) // in b's slot
	r.c.ReleaseTask(b)
	for _, h := range []header{ha, hc, hd} {
		if !r.open(h) {
			t.Fatal("a window was closed that is another's")
		}
		r.up.PDU(t, "NOP-In").Release()
	}
	r.c.ReleaseTask(c)
	if !r.open(ha) {
		t.Fatal("a window was closed that is another's")
	}
	r.up.PDU(t, "NOP-In").Release()
	if r.open(hb) {
		t.Error("the window of a task is open behind its response")
	}
	<-r.c.Ended()
	r.c.ReleaseTask(a)
	r.c.ReleaseTask(d)

	// And a release closes the window of the task that is released, whatever others there are.
	for first := range 2 {
		r = newPeer(t, iscsi.RoleInitiator, nil)
		b := []*iscsi.TaskBuffers{bufs(), bufs()}
		h := []header{r.start(1, b[0]), r.start(2, b[1])}
		r.c.ReleaseTask(b[first])
		if r.open(h[first]) {
			t.Errorf("the window of task %d is open behind its release", 1+first)
		}
	}
}

// TestTasksUseTheirPlacesAgain: one task after another takes one place.
func TestTasksUseTheirPlacesAgain(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	for itt := range uint32(10) {
		r.start(itt, &iscsi.TaskBuffers{In: [][]byte{make([]byte, 512)}})
		r.pdu(func(b *iscsi.BHS) { b.NewSCSIResponse().SetITT(itt) })
		r.up.PDU(t, "response").Release()
	}
	r.c.mu.Lock()
	n := len(r.c.tasks.slots)
	r.c.mu.Unlock()
	if n != 1 {
		t.Errorf("%d places for one task at a time", n)
	}
	for itt := range uint32(2) { // and two have two
		r.start(itt, &iscsi.TaskBuffers{In: [][]byte{make([]byte, 512)}})
	}
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if a, b := r.c.tasks.find(0), r.c.tasks.find(1); a == nil || b == nil || a == b || a.slot == b.slot {
		t.Errorf("two tasks are at %+v and %+v", a, b)
	}
}

// TestFaultOfOneDirection: data that did not arrive are not GOOD because others could be read.
func TestFaultOfOneDirection(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	h := r.start(3, &iscsi.TaskBuffers{In: [][]byte{faultmap.New(t, 8192, 0)}, Out: [][]byte{make([]byte, 8192)}})
	r.post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, Remote: rdma.RemoteAddr{STag: h.ReadSTag, TO: h.ReadBase}, SGL: []rdma.SGE{{Mem: make([]byte, 8192), LKey: r.pd.LocalDMAKey()}}})
	r.pdu(func(b *iscsi.BHS) { b.NewSCSIResponse().SetITT(3) })
	p := r.up.PDU(t, "response")
	if p.BHS.SCSIResponse().Response() != iscsi.ResponseTargetFailure {
		t.Error("lost data was reported as good")
	}
	p.Release()
}

// TestUnsolicitedData: it goes in Data-Outs as long as the target takes, numbered, in order and
// whole, however the buffer is cut (RFC 7145 §7.3.4).
func TestUnsolicitedData(t *testing.T) {
	for _, c := range []struct {
		most uint32
		cuts []uint32 // where PDUs end
	}{
		{2000, []uint32{500, 2500, 4500, 6500, 8500, 10500, 12500, 14500, 16500, 18500, 20000}},
		{1 << 20, []uint32{500, 500 + RecvDataLen, 20000}},
	} {
		r := newPeer(t, iscsi.RoleInitiator, func(p *iscsi.Params) { p.MaxXmitDataSegmentLength = c.most })
		out := make([]byte, 24000)
		for i := range out {
			out[i] = byte(i * 7 >> 3)
		}
		p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{Out: [][]byte{out[:499], out[499:499], out[499:4000], out[4000:]}, Immediate: 500, Unsolicited: 20000}}
		s := p.BHS.NewSCSICommand()
		s.SetITT(3)
		s.SetExpStatSN(17)
		if err := r.c.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		off := uint32(0)
		for i, end := range c.cuts {
			h, bhs, _, data, err := split(r.recv())
			if err != nil || !bytes.Equal(data, out[off:end]) {
				t.Fatalf("PDU %d: %v, %d bytes at %d", i, err, len(data), off)
			}
			if d := bhs.DataOut(); i > 0 && (bhs.Opcode() != iscsi.OpDataOut || d.ITT() != 3 || d.TTT() != iscsi.ReservedTag || d.ExpStatSN() != 17 || d.DataSN() != uint32(i-1) ||
				d.Offset() != off || d.Final() != (end == 20000) || h.wsv || h.rsv) {
				t.Errorf("PDU %d: %+v, % x", i, h, *bhs)
			}
			off = end
		}
	}
}

// TestStartOfTheBuffer: behind the RFC's own start-up the base of a WRITE is the start of the
// whole buffer, unless the other was negotiated (RFC 7145 §6.9), for both sides.
func TestStartOfTheBuffer(t *testing.T) {
	for _, behind := range []bool{false, true} {
		change := func(p *iscsi.Params) { p.TaggedBufferForSolicitedDataOnly = behind }
		out := bytes.Repeat([]byte{1}, 1000)
		copy(out[300:], bytes.Repeat([]byte{2}, 700))
		at := uint64(300)
		if behind {
			at = 0
		}

		r := newPeer(t, iscsi.RoleInitiator, change)
		r.c.cfg.rfc = true
		h := r.start(3, &iscsi.TaskBuffers{Out: [][]byte{out}, Immediate: 300, Unsolicited: 300})
		got := make([]byte, 700)
		r.post(rdma.SendWR{ID: 5, Op: rdma.OpRead, Flags: rdma.FlagSignaled, Remote: rdma.RemoteAddr{STag: h.WriteSTag, TO: h.WriteBase + at},
			SGL: []rdma.SGE{{Mem: got, LKey: r.pd.LocalDMAKey()}}})
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		var wc [1]rdma.WC
		for r.cq.Poll(wc[:]) == 0 {
			if err := r.cq.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if wc[0].ID != 5 || wc[0].Status != rdma.StatusSuccess || !bytes.Equal(got, out[300:]) {
			t.Errorf("solicited data only %v: %+v", behind, wc[0])
		}

		g := newPeer(t, iscsi.RoleTarget, change)
		g.c.cfg.rfc = true
		w, err := g.pd.AllocWindow()
		if err != nil {
			t.Fatal(err)
		}
		stag, base, err := w.Bind(g.qp, [][]byte{out[300:]}, rdma.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		var b iscsi.BHS
		b.NewSCSICommand().SetITT(8)
		g.send(control(header{wsv: true, stags: stags{WriteSTag: stag, WriteBase: base - at}}, &b, nil))
		p := g.up.PDU(t, "command")
		clear(got)
		x := &iscsi.Transfer{ITT: 8, Ref: &p.Ref, Unsolicited: 300, Offset: 300, Len: 700, Segs: [][]byte{got}}
		if err := g.c.GetData(x); err != nil {
			t.Fatal(err)
		}
		g.c.Push()
		if g.up.Completion(t); x.Err != nil || !bytes.Equal(got, out[300:]) {
			t.Errorf("solicited data only %v: %v", behind, x.Err)
		}
		p.Release()
		w.Close()
	}
}

// TestOnlyResponsesInvalidate: no other PDU of a task takes its STag with it.
func TestOnlyResponsesInvalidate(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	w, err := r.pd.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	stag, base, err := w.Bind(r.qp, [][]byte{make([]byte, 8)}, rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	var b iscsi.BHS
	b.NewSCSICommand().SetITT(8)
	r.send(control(header{rsv: true, stags: stags{ReadSTag: stag, ReadBase: base}}, &b, nil))
	p := r.up.PDU(t, "command")
	q := iscsi.PDU{Ref: p.Ref}
	q.BHS.NewNopIn().SetITT(8)
	if err := r.c.SendControl(&q); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	r.recv()
	if !w.Valid() {
		t.Error("a NOP-In has closed the STag of a command")
	}
	p.Release()
}

// TestScarceReceiveBuffers: who keeps more than its share of what all connections receive into
// is left the PDU without its data, and the connection goes on; a short one is left whole.
func TestScarceReceiveBuffers(t *testing.T) {
	d, err := Open(Config{MaxReceives: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { await.True(t, "the device is empty", func() bool { return d.Close() == nil }) })
	i, g := connect(t, device(t), d, ConnConfig{}, ConnConfig{})
	up := datamovertest.NewRecorder()
	enable(t, i, g)
	g.Start(up)
	var held []*iscsi.PDU
	say := func(data string) *iscsi.PDU {
		t.Helper()
		q := iscsi.PDU{Data: []byte(data)}
		q.BHS.NewNopOut().SetITT(uint32(len(held)))
		if err := i.SendControl(&q); err != nil {
			t.Fatal(err)
		}
		i.Push()
		p := up.PDU(t, "NOP-Out")
		if p.BHS.ITT() != uint32(len(held)) {
			t.Fatalf("got %#x, want %#x", p.BHS.ITT(), len(held))
		}
		held = append(held, p)
		return p
	}
	for range 60 {
		if p := say("data"); p.NoRoom {
			if len(p.Data) != 0 || len(held) < 10 {
				t.Errorf("PDU %d has %q", len(held), p.Data)
			}
			break
		} else if string(p.Data) != "data" {
			t.Fatalf("PDU %d has %q", len(held), p.Data)
		}
	}
	if !held[len(held)-1].NoRoom {
		t.Errorf("%d PDUs are held, all with their data", len(held))
	}
	if p := say(""); p.NoRoom {
		t.Error("a PDU without data had no room")
	}
	for _, p := range held {
		p.Release()
	}
	if p := say("data"); p.NoRoom || string(p.Data) != "data" {
		t.Errorf("when all are given back: %q", p.Data)
	}
	held[len(held)-1].Release()
	finish(i, g)
}

// TestScarceElsewhere: what an initiator receives, and what a target does before its session is
// there, is whole however few buffers there are: a PDU without its data would be another one.
func TestScarceElsewhere(t *testing.T) {
	for name, atTarget := range map[string]bool{"an initiator": false, "a target's login": true} {
		t.Run(name, func(t *testing.T) {
			d, err := Open(Config{MaxReceives: 64})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { await.True(t, "the device is empty", func() bool { return d.Close() == nil }) })
			up := datamovertest.NewRecorder()
			var from, to *Conn
			if atTarget {
				from, to = connect(t, device(t), d, ConnConfig{}, ConnConfig{})
				to.Start(up)
			} else {
				to, from = connect(t, d, device(t), ConnConfig{}, ConnConfig{})
				enable(t, to, from)
				to.Start(up)
				from.Start(&counting{Recorder: datamovertest.NewRecorder()})
				var first iscsi.PDU // before which a responder says nothing
				first.BHS.NewNopOut()
				if err := to.SendControl(&first); err != nil {
					t.Fatal(err)
				}
				to.Push()
			}
			for n := range uint32(40) { // half of them would have been left
				q := iscsi.PDU{Data: []byte("data")}
				if atTarget {
					q.BHS.NewNopOut().SetITT(n)
				} else {
					q.BHS.NewNopIn().SetITT(n)
				}
				if err := from.SendControl(&q); err != nil {
					t.Fatal(err)
				}
				from.Push()
				p := up.PDU(t, fmt.Sprint("NOP ", n))
				defer p.Release()
				if p.NoRoom || string(p.Data) != "data" {
					t.Fatalf("PDU %d has %q", n, p.Data)
				}
			}
			finish(from, to)
		})
	}
}

// enable brings connections into the full feature phase.
func enable(t *testing.T, cs ...*Conn) {
	t.Helper()
	p := iscsi.NewNegotiation(iscsi.RoleInitiator, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
	for _, c := range cs {
		c.NoticeKeyValues(&p)
		if err := c.Enable(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUpgradedPassesOn: behind the switch the connection over RDMA does the work, and what it
// refuses is refused.
func TestUpgradedPassesOn(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	u := &Upgraded{role: iscsi.RoleTarget, phase: phaseRDMA, conn: r.c}
	x := &iscsi.Transfer{Len: 4, Segs: [][]byte{make([]byte, 4)}}
	for name, f := range map[string]func(*iscsi.Transfer) error{"PutData": u.PutData, "GetData": u.GetData} {
		if err := f(x); err == nil {
			t.Errorf("%s without a buffer of the initiator", name)
		}
	}
	x.Ref = refOf(stags{WriteSTag: 5})
	if err := u.GetData(x); err != nil {
		t.Fatal(err)
	}
	u.AbortTransfer(x)
	u.Push()
	if r.up.Completion(t); x.Err != iscsi.ErrAborted {
		t.Errorf("aborted: %v", x.Err)
	}

	r = newPeer(t, iscsi.RoleInitiator, nil)
	u = &Upgraded{role: iscsi.RoleInitiator, phase: phaseRDMA, conn: r.c}
	b := &iscsi.TaskBuffers{In: [][]byte{make([]byte, 512)}}
	p := iscsi.PDU{Bufs: b}
	p.BHS.NewSCSICommand().SetITT(1)
	if err := u.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	u.Push()
	h, _, _, _, err := split(r.recv())
	if err != nil {
		t.Fatal(err)
	}
	if err := u.SendControl(&p); err == nil {
		t.Error("two commands have one tag")
	}
	if u.ReleaseTask(b); r.open(h) {
		t.Error("the window of a task is open behind its release")
	}
	u = &Upgraded{phase: phaseSwitch}
	if b := u.Backlog(); b != (iscsi.Backlog{}) {
		t.Errorf("within the switch %+v waits", b)
	}
}

// TestUpgradedKnowsItsLogin: what login has found out holds for the half that follows, and both
// are counted.
func TestUpgradedKnowsItsLogin(t *testing.T) {
	s := datamovertest.Open(t, upgradePair(device(t), false), datamovertest.DefaultOptions())
	if err := s.Initiator.Do(0x28, 0, [][]byte{make([]byte, 100)}, 0, 1); err != nil {
		t.Fatal(err)
	}
	for _, dm := range []iscsi.Datamover{s.Initiator.Datamover(), s.Target.Datamover()} {
		u := dm.(*Upgraded)
		u.mu.Lock()
		c := u.conn
		u.mu.Unlock()
		if c.params != u.params || !c.cfg.rfc {
			t.Errorf("%v: %+v, want %+v", u.role, c.params, u.params)
		}
		tcp, all, now := u.tcp.Stats(), u.Stats(), c.Stats()
		if tcp.PDUsIn == 0 || now.PDUsIn == 0 || all.PDUsIn != tcp.PDUsIn+now.PDUsIn || all.PayloadIn+all.PayloadOut != 100 {
			t.Errorf("%v: %+v", u.role, all)
		}
		if !strings.HasPrefix(u.Describe(), "iSER") || u.Backlog() != c.Backlog() {
			t.Errorf("%v: %s, %+v", u.role, u.Describe(), u.Backlog())
		}
	}
	s.Close()
}
