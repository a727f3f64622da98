package iser

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"softiser/internal/await"
	"softiser/internal/handover/handovertest"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/rdma"
)

func always() bool { return true }

// park waits until the connection stands.
func (r *peer) park() {
	r.t.Helper()
	if !r.c.Parking().Park(always, func() {}) {
		r.t.Fatal("it cannot be parked")
	}
	await.True(r.t, "it stands", func() bool { r.c.Parking().Nudge(); return r.c.Parking().Still() })
}

// crossed goes on with a parked connection as another process does, under p. The old one
// stays as it is until the end of the test.
func (r *peer) crossed(p *iscsi.Params) {
	r.t.Helper()
	k, nc := handovertest.Crossed(r.t, r.c.Parking().Carry)
	end := func(c *Conn, up *datamovertest.Recorder) func() {
		return func() {
			c.Terminate(errors.New("end of the test"))
			<-c.Ended()
			up.Release()
		}
	}
	r.t.Cleanup(end(r.c, r.up))
	d := device(r.t)
	r.up = datamovertest.NewRecorder()
	restore := d.Restore
	if r.c.role == iscsi.RoleInitiator {
		restore = d.RestoreInitiator
	}
	var err error
	if r.c, err = restore(nc, ConnConfig{}, p, &k); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(end(r.c, r.up))
}

// moves has the target write to the initiator's memory and read from it, and answer: that
// closes the memory.
func (r *peer) moves(itt uint32) {
	t := r.t
	t.Helper()
	ask := bytes.Repeat([]byte{byte(itt)}, 3000)
	in, out := make([]byte, 3000), bytes.Clone(ask)
	open := func(mem []byte, a rdma.Access) (stag uint32, base uint64) {
		w, err := r.pd.AllocWindow()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		if stag, base, err = w.Bind(r.qp, [][]byte{mem}, a|rdma.AccessLocalWrite); err != nil {
			t.Fatal(err)
		}
		return stag, base
	}
	h := header{wsv: true, rsv: true}
	h.ReadSTag, h.ReadBase = open(in, rdma.AccessRemoteWrite)
	h.WriteSTag, h.WriteBase = open(out, rdma.AccessRemoteRead)
	var cmd iscsi.BHS
	cmd.NewSCSICommand().SetITT(itt)
	r.send(control(h, &cmd, nil))
	p := r.up.PDU(t, "SCSI Command")
	ref := p.Ref
	p.Release()
	got := make([]byte, len(out))
	for _, move := range []func() error{
		func() error { return r.c.GetData(&iscsi.Transfer{Len: 3000, Ref: &ref, Segs: [][]byte{got}}) },
		func() error { return r.c.PutData(&iscsi.Transfer{Len: 3000, Ref: &ref, Segs: [][]byte{ask}}) },
	} {
		if err := move(); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		if x := r.up.Completion(t); x.Err != nil {
			t.Fatal(x.Err)
		}
	}
	var resp iscsi.PDU
	resp.BHS.NewSCSIResponse().SetITT(itt)
	resp.Ref = ref
	if err := r.c.SendControl(&resp); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	if _, bhs, _, _, err := split(r.recv()); err != nil || bhs.ITT() != itt || r.last.InvSTag != h.ReadSTag {
		t.Fatalf("%v, %v closes %#x, want %#x", err, bhs.Opcode(), r.last.InvSTag, h.ReadSTag)
	}
	if !bytes.Equal(in, ask) || !bytes.Equal(got, out) {
		t.Fatal("wrong data")
	}
}

// TestPark: a parked connection is silent, and goes on here or in the next process, and from
// there in the one after that, with everything that was agreed on.
func TestPark(t *testing.T) {
	for _, helloed := range []bool{false, true} {
		var agreed iscsi.Params
		r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.ISERHelloRequired = helloed; agreed = *p })
		r.c.cfg.rfc = helloed
		if helloed {
			if r.c.Parking().Park(always, func() {}) {
				t.Fatal("it can be parked before the Hello")
			}
			r.send((&hello{maxVer: Version, ver: Version, depth: 4}).append(nil))
			r.recv()
		}
		r.moves(1)
		r.park()
		if r.c.Parking().Park(always, func() {}) {
			t.Fatal("it can be parked twice")
		}
		var ping iscsi.PDU
		ping.BHS.NewNopIn().SetITT(9)
		before := r.c.QP().Stats().SendsOut
		if err := r.c.SendControl(&ping); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		if n := r.c.QP().Stats().SendsOut; n != before {
			t.Fatalf("a silent connection has sent %d PDUs", n-before)
		}
		r.c.Parking().Unpark()
		if _, bhs, _, _, err := split(r.recv()); err != nil || bhs.ITT() != 9 {
			t.Fatal(err)
		}
		for itt := uint32(2); itt < 5; itt++ {
			r.moves(itt)
			r.park()
			r.pdu(func(b *iscsi.BHS) { b.NewNopOut().SetITT(100 + itt) }) // for the next process
			r.crossed(&agreed)
			if r.c.cfg.rfc != helloed {
				t.Errorf("the peer followed RFC 7145 to the letter: %v, and does so now: %v", helloed, r.c.cfg.rfc)
			}
			r.c.Start(r.up)
			p := r.up.PDU(t, "NOP-Out")
			if p.BHS.ITT() != 100+itt {
				t.Fatal(p.BHS.ITT())
			}
			p.Release()
			if l := r.c.Limits(); l.QuietUntilFirstCommand || l.MaxControlData != linuxControlData {
				t.Errorf("%+v", l)
			}
		}
		if helloed {
			r.send((&hello{maxVer: Version, ver: Version}).append(nil))
			if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "unexpected Hello") {
				t.Errorf("a second Hello: %v", err)
			}
		}
	}
}

// TestParkQuiet: what must not be said before the initiator has said something is not said by
// the next process, either; one that never starts ends.
func TestParkQuiet(t *testing.T) {
	var agreed iscsi.Params
	r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { agreed = *p })
	// The queue pair has heard its peer once; the layer above has not.
	r.post(rdma.SendWR{ID: 1, Op: rdma.OpWrite})
	r.park()
	r.crossed(&agreed)
	if !r.c.Limits().QuietUntilFirstCommand {
		t.Error("it may speak")
	}
}

// TestParkWhenAllowed: it goes on as long as it is told, while data is fetched as well, and
// stops when it is nudged.
func TestParkWhenAllowed(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	var allowed atomic.Bool
	var told atomic.Int64
	if !r.c.Parking().Park(allowed.Load, func() { told.Add(1) }) {
		t.Fatal("it cannot be parked")
	}
	r.moves(1)
	if _, _, err := r.c.Parking().Carry(); err == nil || r.c.Parking().Still() {
		t.Fatal("it is parked")
	}
	allowed.Store(true)
	r.c.Parking().Nudge()
	await.True(t, "it stands", r.c.Parking().Still)
	if told.Load() == 0 {
		t.Error("nobody was told")
	}
	r.c.Terminate(errors.New("over")) // one that ends while it is parked ends all the same
	<-r.c.Ended()
	if r.c.Parking().Park(always, func() {}) {
		t.Error("it can be parked at its end")
	}
	r.c.Parking().Unpark()
}

// TestParkInitiator: the connection of an initiator goes from process to process, with what the
// target has said meanwhile; the Hello is said once.
func TestParkInitiator(t *testing.T) {
	for _, helloed := range []bool{false, true} {
		var agreed iscsi.Params
		r := newPeer(t, iscsi.RoleInitiator, func(p *iscsi.Params) { p.ISERHelloRequired = helloed; agreed = *p })
		if helloed {
			r.c.Push()
			r.recv()
			if r.c.Parking().Park(always, func() {}) {
				t.Fatal("it can be parked before the reply to its Hello")
			}
			r.send((&hello{reply: true, maxVer: Version, ver: Version, depth: 4}).append(nil))
			await.True(t, "the exchange is over", func() bool {
				r.c.mu.Lock()
				defer r.c.mu.Unlock()
				return r.c.hello.state == helloDone
			})
		}
		for itt := uint32(2); itt < 5; itt++ {
			var ping iscsi.PDU
			ping.BHS.NewNopOut().SetITT(itt)
			if err := r.c.SendControl(&ping); err != nil {
				t.Fatal(err)
			}
			r.c.Push()
			if _, bhs, _, _, err := split(r.recv()); err != nil || bhs.ITT() != itt {
				t.Fatal(err)
			}
			r.pdu(func(b *iscsi.BHS) { b.NewNopIn().SetITT(itt) })
			p := r.up.PDU(t, "NOP-In")
			p.Release()
			r.park()
			r.pdu(func(b *iscsi.BHS) { b.NewNopIn().SetITT(100 + itt) }) // for the next process
			r.crossed(&agreed)
			r.c.Start(r.up)
			if p = r.up.PDU(t, "NOP-In"); p.BHS.ITT() != 100+itt {
				t.Fatal(p.BHS.ITT())
			}
			p.Release()
		}
	}
}

// TestRestoreRefuses: what no process of ours carries is refused.
func TestRestoreRefuses(t *testing.T) {
	d := device(t)
	good := Carried{QP: rdma.Carried{Rev: 2, IRD: 1, ORD: 8, FPDUSize: 1500}, Hello: true}
	if err := d.CheckCarried(&good, &iscsi.Params{ISERHelloRequired: true}); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Carried, *iscsi.Params){
		"initiator": func(k *Carried, _ *iscsi.Params) { k.QP.Initiator = true },
		"no reads":  func(k *Carried, _ *iscsi.Params) { k.QP.ORD = 0 },
		"hello":     func(k *Carried, p *iscsi.Params) { k.Hello, p.ISERHelloRequired = false, true },
		"segments":  func(_ *Carried, p *iscsi.Params) { p.MaxRecvDataSegmentLength = RecvDataLen + 1 },
		"queues":    func(k *Carried, _ *iscsi.Params) { k.QP.IRD = 1 << 13 },
		"unread":    func(k *Carried, _ *iscsi.Params) { k.QP.Unread = make([]byte, 1<<20) },
	} {
		k, p := good, iscsi.Params{}
		spoil(&k, &p)
		if d.CheckCarried(&k, &p) == nil {
			t.Errorf("%s: taken", name)
		}
		if _, err := d.Restore(nil, ConnConfig{}, &p, &k); err == nil {
			t.Errorf("%s: restored", name)
		}
		k.QP.Initiator, k.QP.IRD = !k.QP.Initiator, k.QP.ORD
		if _, err := d.RestoreInitiator(nil, ConnConfig{}, &p, &k); err == nil {
			t.Errorf("%s: restored as an initiator", name)
		}
	}
}
