package datamovertest

import (
	"bytes"
	"errors"
	"testing"

	"softiser/internal/iscsi"
)

// What is queued before Terminate(nil) arrives; then both ends end.
func testTerminateGraceful(t *testing.T, pair Pair, o Options) {
	s := Open(t, pair, o)
	mem, data := make([]byte, 4096), bytes.Repeat([]byte{7}, 4096)
	c, in := s.hold(t, false, [][]byte{mem})
	_, out := s.hold(t, true, [][]byte{make([]byte, 4096)})
	ofIn, ofOut := in.Ref, out.Ref
	put := &iscsi.Transfer{ITT: in.BHS.ITT(), LUN: in.BHS.LUN(), Ref: &ofIn, Len: 4096, Segs: [][]byte{data}, Final: true}
	get := &iscsi.Transfer{ITT: out.BHS.ITT(), LUN: out.BHS.LUN(), Ref: &ofOut, Len: 4096, Segs: [][]byte{make([]byte, 4096)}}
	s.Target.outstanding.Add(1)
	if err := s.Target.dm.PutData(put); err != nil {
		t.Fatal(err)
	}
	s.Target.mu.Lock()
	r := iscsi.PDU{Ref: ofIn}
	b := r.BHS.NewSCSIResponse()
	b.SetITT(in.BHS.ITT())
	b.SetSequence(s.Target.nextSequence())
	if err := s.Target.dm.SendControl(&r); err != nil {
		t.Fatal(err)
	}
	s.Target.mu.Unlock()
	in.Release()
	out.Release()
	s.Target.dm.Terminate(nil)
	if err := c.Wait(); err != nil {
		t.Fatalf("the response did not arrive: %v", err)
	}
	if !bytes.Equal(mem, data) {
		t.Error("the data did not arrive")
	}
	if err := s.Initiator.end.wait(t, "initiator"); err == nil {
		t.Error("the initiator was told nil, but it did not ask for the end")
	}
	if err := s.Target.end.wait(t, "target"); err != nil {
		t.Errorf("the target was told %v after a graceful end", err)
	}
	recv(t, "completion", s.Target.Done)
	var p iscsi.PDU
	p.BHS.NewNopOut()
	if err := s.Initiator.dm.SendControl(&p); err == nil {
		t.Error("SendControl works after the end")
	}
	p.BHS.NewNopIn()
	ended := s.Target.dm.SendControl(&p)
	if ended == nil {
		t.Fatal("the target's SendControl works after the end")
	}
	// Transfers of known commands, which nothing but the end refuses.
	for name, err := range map[string]error{"PutData": s.Target.dm.PutData(put), "GetData": s.Target.dm.GetData(get)} {
		if err == nil || err.Error() != ended.Error() {
			t.Errorf("%s after the end: %v, want %v", name, err, ended)
		}
	}
	for _, dm := range []iscsi.Datamover{s.Initiator.dm, s.Target.dm} {
		if n := dm.Stats().OutstandingTransfers; n != 0 {
			t.Errorf("%d transfers count as begun after the end", n)
		}
	}
	s.Target.dm.Terminate(nil)
	s.Initiator.dm.Terminate(errors.New("again"))
	s.Initiator.dm.Push()
}

// Terminate with a reason ends everything at once, whatever is going on; every
// transfer completes with an error.
func testTerminateAbrupt(t *testing.T, pair Pair, o Options) {
	for _, who := range []string{"initiator", "target"} {
		s := Open(t, pair, o)
		const n = 1 << 20
		_, cmd := s.hold(t, true, [][]byte{make([]byte, n)})
		_, idle := s.hold(t, true, [][]byte{make([]byte, n)})
		x := &iscsi.Transfer{ITT: cmd.BHS.ITT(), LUN: cmd.BHS.LUN(), Ref: &cmd.Ref, Len: n, Segs: [][]byte{make([]byte, n)}}
		s.Target.outstanding.Add(1)
		if err := s.Target.dm.GetData(x); err != nil {
			t.Fatal(err)
		}
		reason := errors.New("the reason")
		dm := s.Initiator.dm
		if who == "target" {
			dm = s.Target.dm // not pushed: nothing can have arrived
		} else {
			s.Target.dm.Push()
		}
		dm.Terminate(reason)
		ierr, terr := s.Initiator.end.wait(t, "initiator"), s.Target.end.wait(t, "target")
		ours := ierr
		if who == "target" {
			ours = terr
		}
		if !errors.Is(ours, reason) {
			t.Errorf("%s: told %v, expected the reason", who, ours)
		}
		if ierr == nil || terr == nil {
			t.Errorf("ended with %v and %v", ierr, terr)
		}
		recv(t, "completion", s.Target.Done)
		if k := s.Target.outstanding.Load(); k != 0 {
			t.Errorf("%d transfers are left", k)
		}
		cmd.Release()
		idle.Release()
	}
}

// Terminate before Start and during login.
func testTerminateEarly(t *testing.T, pair Pair, o Options) {
	i, g := pair(t)
	i.Terminate(nil)
	g.Terminate(errors.New("not wanted"))

	idm, tdm := pair(t)
	ini, tgt := newInitiator(t, idm, o.Initiator), newTarget(t, tdm, o.Target)
	tdm.Start(tgt)
	idm.Start(ini)
	tdm.Terminate(nil)
	ini.end.wait(t, "initiator")
	tgt.end.wait(t, "target")

	// Who starts a connection is told of its end, also where somebody else has given it up before.
	idm, tdm = pair(t)
	ini, tgt = newInitiator(t, idm, o.Initiator), newTarget(t, tdm, o.Target)
	tdm.Terminate(errors.New("evicted"))
	idm.Start(ini)
	ini.end.wait(t, "initiator")
	tdm.Start(tgt)
	tgt.end.wait(t, "target")
}
