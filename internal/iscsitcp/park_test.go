package iscsitcp

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"softiser/internal/await"
	"softiser/internal/handover/handovertest"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/pdustream"
)

func nopOut(itt uint32) (b iscsi.BHS) {
	b.NewNopOut().SetITT(itt)
	return b
}

// crossed goes on with a parked connection as another process does.
func (r *peer) crossed() {
	r.t.Helper()
	k, nc := handovertest.Crossed(r.t, r.c.Carry)
	old := r.c
	old.Terminate(errors.New("the old process ends"))
	<-old.Ended()
	r.up.Release()
	r.up = datamovertest.NewRecorder()
	r.up.Numbers = iscsi.Sequence{StatSN: 7, ExpCmdSN: 8, MaxCmdSN: 9}
	var err error
	if r.c, err = Restore(nc, Config{}, &r.p, &k); err != nil {
		r.t.Fatal(err)
	}
	c, up := r.c, r.up
	r.t.Cleanup(func() {
		c.Terminate(errors.New("end of the test"))
		<-c.Ended()
		up.Release()
	})
	c.Start(up)
}

// TestPark: a parked connection stops between PDUs wherever the stream is cut, and what was
// read and not seen, however little, reaches whoever goes on: the same process, or the next.
func TestPark(t *testing.T) {
	for _, next := range []bool{false, true} {
		for _, cut := range []int{0, 1, 47, 48, 50, 52, 60, 52 + 600 + 4, 52 + 600 + 4 + 20} {
			r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) {
				p.HeaderDigest, p.DataDigest = iscsi.DigestCRC32C, iscsi.DigestCRC32C
			})
			data := bytes.Repeat([]byte("ping"), 150)
			stream := slices.Concat(r.frame(nopOut(1), nil, data), r.frame(nopOut(2), nil, data))
			r.send(stream[:cut])
			var asked atomic.Int64
			if !r.c.Park(func() bool { asked.Add(1); return true }, func() {}) {
				t.Fatal("it cannot be parked")
			}
			rest := stream[cut:]
			if cut >= 52 && cut < 52+600+4 { // within data, or in front of it: if that has begun, it is read to its end
				n := 52 + 600 + 4 - cut
				r.send(rest[:n])
				rest = rest[n:]
			}
			await.True(t, "it stands", func() bool { r.c.Nudge(); return r.c.Still() })
			seen := r.c.Stats().PDUsIn
			if asked.Load() == 0 || seen != uint64(cut/(52+600+4)) && cut < 52 {
				t.Fatalf("cut at %d: %d PDUs were taken, asked %d times", cut, seen, asked.Load())
			}
			for range seen {
				r.up.PDU(t, "NOP-Out").Release()
			}
			var out iscsi.PDU
			out.BHS.NewNopIn().SetITT(9)
			if next {
				r.crossed()
			} else {
				if err := r.c.SendControl(&out); err != nil {
					t.Fatal(err)
				}
				r.c.Push()
				if n := r.c.Stats().PDUsOut; n != 0 {
					t.Fatalf("a silent connection has sent %d PDUs", n)
				}
				r.c.Unpark()
				if b, _ := r.recv(); b.ITT() != 9 {
					t.Fatalf("%v", b.Opcode())
				}
			}
			r.send(rest)
			for itt := uint32(seen) + 1; itt <= 2; itt++ {
				p := r.up.PDU(t, "NOP-Out")
				if p.BHS.ITT() != itt || !bytes.Equal(p.Data, data) || p.Bad != nil {
					t.Fatalf("cut at %d: %d bytes for %d, %v", cut, len(p.Data), p.BHS.ITT(), p.Bad)
				}
				p.Release()
			}
			if err := r.c.SendControl(&out); err != nil {
				t.Fatal(err)
			}
			r.c.Push()
			if b, _ := r.recv(); b.ITT() != 9 {
				t.Fatalf("%v", b.Opcode())
			}
		}
	}
}

// TestParkWhenAllowed: it goes on as long as it is told, and stops when it is nudged.
func TestParkWhenAllowed(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	var allowed atomic.Bool
	r.c.Park(allowed.Load, func() {})
	if r.c.Park(allowed.Load, func() {}) {
		t.Fatal("it can be parked twice")
	}
	for itt := range uint32(3) {
		r.send(r.frame(nopOut(itt), nil, nil))
		r.up.PDU(t, "NOP-Out").Release()
	}
	if _, _, err := r.c.Carry(); err == nil || r.c.Still() {
		t.Fatal("it is parked")
	}
	allowed.Store(true)
	r.c.Nudge()
	await.True(t, "it stands", r.c.Still)
	r.send(r.frame(nopOut(7), nil, nil))
	r.c.Unpark()
	r.up.PDU(t, "NOP-Out").Release()
	// One that ends while it is parked ends all the same.
	r.c.Park(allowed.Load, func() {})
	await.True(t, "it stands", r.c.Still)
	r.c.Terminate(errors.New("over"))
	<-r.c.Ended()
}

// TestParkNobodyElse: a login and a connection that keeps for recovery stay.
func TestParkNobodyElse(t *testing.T) {
	no := func(c *Conn) {
		t.Helper()
		if c.Park(func() bool { return true }, func() {}) {
			t.Error("it can be parked")
		}
	}
	login := loginPeer(t, iscsi.RoleTarget, Config{})
	login.c.Start(login.up)
	no(login.c)
	no(newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.ErrorRecoveryLevel = 1 }).c)
}

// TestParkTags: data for R2Ts that were given up is dropped by the next process as well, and
// tags are not used twice.
func TestParkTags(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	mem := make([]byte, 512)
	x, q := r.getData(512, 0, mem)
	ttt := q.TTT()
	r.c.AbortTransfer(x)
	r.c.Push()
	if r.up.Done != nil {
		<-r.up.Done
	}
	r.c.Park(func() bool { return true }, func() {})
	await.True(t, "it stands", r.c.Still)
	r.crossed()
	late := dataOut(ttt, 5, 0, 0, true)
	r.send(r.frame(late, nil, bytes.Repeat([]byte("old!"), 128)))
	_, q = r.getData(512, 0, mem)
	if q.TTT() == ttt {
		t.Fatal("the tag is used again")
	}
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, bytes.Repeat([]byte("new!"), 128)))
	<-r.up.Done
	if !bytes.Equal(mem, bytes.Repeat([]byte("new!"), 128)) {
		t.Fatalf("%q", mem[:8])
	}
}

// TestRestoreRefuses: what no process of ours carries is refused.
func TestRestoreRefuses(t *testing.T) {
	for name, k := range map[string]Carried{
		"unread":     {Unread: make([]byte, pdustream.DeepReadAhead+1)},
		"tags":       {Tags: make([]uint32, 1<<16+1)},
		"generation": {Tags: []uint32{maxGen + 1}},
		"bits":       {Tags: []uint32{1 << 17}},
	} {
		if k.Check() == nil {
			t.Errorf("%s: taken", name)
		}
		if _, err := Restore(nil, Config{}, &iscsi.Params{}, &k); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
	if err := (&Carried{Tags: []uint32{0, 1, maxGen, allGens | 7}}).Check(); err != nil {
		t.Error(err)
	}
}
