package iscsi

import (
	"math/rand/v2"
	"testing"
)

// The windows agree with a model that counts in 64 bits, across every wrap.
func TestWindowsModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1982, 2))
	for _, start := range []uint64{1<<32 - 500, 2<<32 - 3, 1<<31 - 500, 7} {
		size := 1 + rng.IntN(64)
		w := NewCommandWindow(uint32(start), size)
		s := SenderWindow{CmdSN: uint32(start), ExpCmdSN: uint32(start), MaxCmdSN: uint32(start) + uint32(size) - 1}
		exp, most, next := start, start+uint64(size)-1, start
		var old []Sequence
		for range 3000 {
			switch rng.IntN(4) {
			case 0:
				if got, want := s.CanSend(), next <= most; got != want {
					t.Fatalf("%#x of %#x: CanSend is %v", next, most, got)
				}
				if next <= most {
					if s.Next() != uint32(next) {
						t.Fatal("wrong number")
					}
					next++
				}
			case 1:
				if exp < next {
					w.Advance()
					exp++
				}
			case 2:
				free := rng.IntN(size + 1)
				w.Open(free)
				most = max(most, exp+uint64(free)-1)
			case 3:
				if len(old) > 0 && rng.IntN(2) == 0 {
					was := s
					if s.Update(old[rng.IntN(len(old))]); s != was {
						t.Fatalf("a delayed PDU made %+v of %+v", s, was)
					}
				}
			}
			seq := Sequence{ExpCmdSN: w.ExpCmdSN, MaxCmdSN: w.MaxCmdSN}
			old = append(old, seq)
			s.Update(seq)
			if w.ExpCmdSN != uint32(exp) || w.MaxCmdSN != uint32(most) || s.ExpCmdSN != uint32(exp) || s.MaxCmdSN != uint32(most) || w.Size() != int(most-exp+1) {
				t.Fatalf("target %+v, initiator %+v, model %#x to %#x", w, s, exp, most)
			}
			for d := int64(-70); d <= 70; d++ {
				sn := uint64(int64(exp) + d)
				if got, want := w.Accepts(uint32(sn)), sn >= exp && sn <= most; got != want {
					t.Fatalf("window %#x to %#x: %#x is accepted: %v", exp, most, sn, got)
				}
			}
		}
	}
}

// StatSN of a login wraps.
func TestLoginStatSNWrap(t *testing.T) {
	p := newLoginPair()
	p.i.CmdSN = 0xffffffff
	i := NewLoginInitiator(p.i)
	i.expStatSN = 0xffffffff
	tgt := NewLoginTarget(p.t)
	var req, resp PDU
	i.Start(&req)
	for range 10 {
		done, err := tgt.Handle(&PDU{BHS: req.BHS, Data: append([]byte(nil), req.Data...)}, &resp)
		if err != nil {
			t.Fatal(err)
		}
		idone, err := i.Next(&PDU{BHS: resp.BHS, Data: append([]byte(nil), resp.Data...)}, &req)
		if err != nil || idone != done {
			t.Fatalf("%v, %v", idone, err)
		}
		if done {
			if tgt.Result().StatSN > 10 || i.Result().StatSN != tgt.Result().StatSN || tgt.Result().ExpCmdSN != 0xffffffff {
				t.Errorf("target %+v, initiator %+v", tgt.Result(), i.Result())
			}
			return
		}
	}
	t.Fatal("login does not end")
}

// What must hold at the end of login holds also when the target's last text takes
// several PDUs, so that the request that ends the stage carries none.
func TestLoginFinishAfterLongText(t *testing.T) {
	p := newLoginPair()
	p.t.Profile = KeyProfile{RDMA: RDMARequired, NoDigests: true}
	tgt := NewLoginTarget(p.t)
	data := []byte("InitiatorName=i\x00SessionType=Normal\x00TargetName=" + testTarget + "\x00")
	for i := range 800 {
		data = AppendKey(data, "X-k"+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676)), "1")
	}
	var resp PDU
	request := func(transit bool, data []byte) (bool, error) {
		var q PDU
		nsg := Stage(0)
		if transit {
			nsg = StageFullFeature
		}
		q.BHS.NewLoginRequest().SetStages(transit, false, StageOperational, nsg)
		q.Data = data
		return tgt.Handle(&q, &resp)
	}
	if _, err := request(false, data); err != nil || !resp.BHS.LoginResponse().Continue() {
		t.Fatalf("the answer is not long enough: %v", err)
	}
	for range 10 {
		done, err := request(true, nil)
		if err != nil {
			if status(err) != LoginInitiatorFailure {
				t.Fatal(err)
			}
			return
		}
		if done {
			t.Fatal("a session without RDMAExtensions on an RDMA connection")
		}
	}
	t.Fatal("login does not end")
}

// FuzzTargets reads SendTargets answers; what was read survives being written.
func FuzzTargets(f *testing.F) {
	f.Add([]byte("TargetName=iqn.2026-11.a:b\x00TargetAddress=[::1]:3260,1\x00TargetAddress=host\x00"))
	f.Add([]byte("TargetName=x\x00TargetAlias=y\x00TargetAddress=:,1\x00"))
	f.Add([]byte("TargetAddress=1.2.3.4\x00"))
	f.Add([]byte("TargetName=x\x00TargetAddress=]:1\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		ts, err := ParseTargets(text)
		if err != nil {
			return
		}
		var b []byte
		for i := range ts {
			b = AppendTarget(b, &ts[i])
		}
		again, err := ParseTargets(b)
		if err != nil || len(again) != len(ts) {
			t.Fatalf("%q became %q: %v", text, b, err)
		}
		for i := range ts {
			if again[i].Name != ts[i].Name || len(again[i].Portals) != len(ts[i].Portals) {
				t.Fatalf("%+v became %+v", ts[i], again[i])
			}
			for j := range ts[i].Portals {
				if again[i].Portals[j] != ts[i].Portals[j] {
					t.Fatalf("%+v became %+v", ts[i].Portals[j], again[i].Portals[j])
				}
			}
		}
	})
}

// FuzzNegotiation gives both roles any text in any stage; the outcome stays within
// the limits of the keys.
func FuzzNegotiation(f *testing.F) {
	f.Add([]byte("HeaderDigest=CRC32C,None\x00MaxBurstLength=512\x00FirstBurstLength=600\x00"), uint8(0))
	f.Add([]byte("RDMAExtensions=Yes\x00InitiatorRecvDataSegmentLength=512\x00MaxAHSLength=0\x00"), uint8(5))
	f.Add([]byte("MaxRecvDataSegmentLength=Reject\x00ErrorRecoveryLevel=Irrelevant\x00"), uint8(2))
	f.Add([]byte("MaxConnections=0x10000\x00IFMarkInt=1~2\x00"), uint8(8))
	f.Fuzz(func(t *testing.T, text []byte, how uint8) {
		kvs, err := ParseText(text)
		if err != nil {
			return
		}
		n := NewNegotiation(Role(how&1), DefaultSettings(), KeyProfile{RDMA: RDMAMode(how >> 2 % 3)}, how&16 == 0)
		if how&2 != 0 {
			n.Offer(nil)
		}
		stage := []Stage{StageOperational, StageSecurity, StageFullFeature}[how>>5%3]
		for range 2 {
			reply, err := n.Receive(nil, kvs, stage)
			if err != nil {
				break
			}
			if _, err := ParseText(reply); err != nil {
				t.Fatalf("%q was answered with %q: %v", text, reply, err)
			}
		}
		p := n.Params()
		for _, v := range []uint32{p.MaxRecvDataSegmentLength, p.MaxXmitDataSegmentLength, p.MaxBurstLength, p.FirstBurstLength} {
			if v < 512 || v > max24 {
				t.Fatalf("%q led to %+v", text, p)
			}
		}
		if p.FirstBurstLength > p.MaxBurstLength || p.MaxConnections != 1 || p.MaxOutstandingR2T != 1 || p.ErrorRecoveryLevel != 0 {
			t.Fatalf("%q led to %+v", text, p)
		}
		if n.digestsOff() && (p.HeaderDigest != DigestNone || p.DataDigest != DigestNone) {
			t.Fatalf("digests over RDMA after %q", text)
		}
	})
}
