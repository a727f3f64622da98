package iser

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/iscsitcp"
	"softiser/internal/loopback"
)

// switching is a target whose stream login has just ended with
// RDMAExtensions=Yes, and the raw other end of its connection.
type switching struct {
	*datamovertest.Recorder
	t     *testing.T
	dm    *Upgraded
	nc    net.Conn
	login *iscsi.LoginTarget
}

func (s *switching) ControlNotify(p *iscsi.PDU) {
	var resp iscsi.PDU
	done, err := s.login.Handle(p, &resp)
	p.Release()
	if err != nil {
		s.t.Error(err)
	}
	if done {
		s.dm.NoticeKeyValues(&s.login.Result().Params)
		if err := s.dm.Enable(); err != nil {
			s.t.Error(err)
		}
	}
	if err := s.dm.SendControl(&resp); err != nil {
		s.t.Error(err)
	}
}

// newSwitching logs in; behind follows the Login Request in the same write.
func newSwitching(t *testing.T, behind []byte) *switching {
	t.Helper()
	a, b := loopback.Pair(t)
	dm, err := device(t).Upgrade(b, iscsi.RoleTarget, iscsitcp.Config{}, ConnConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := &switching{Recorder: datamovertest.NewRecorder(), t: t, dm: dm, nc: a}
	s.login = iscsi.NewLoginTarget(iscsi.LoginTargetConfig{
		Profile: dm.KeyProfile(),
		Admit: func(*iscsi.LoginIdentity) (*iscsi.LoginGrant, error) {
			return &iscsi.LoginGrant{Settings: iscsi.DefaultSettings()}, nil
		},
		Bind: func(r *iscsi.LoginResult) (iscsi.LoginBinding, error) { return iscsi.LoginBinding{TSIH: 1}, nil },
	})
	dm.Start(s)
	t.Cleanup(func() { a.Close() })
	var req iscsi.PDU
	iscsi.NewLoginInitiator(iscsi.LoginInitiatorConfig{InitiatorName: "iqn.2026-11.softiser:i", TargetName: "iqn.2026-11.softiser:t",
		Settings: iscsi.DefaultSettings(), Profile: iscsi.KeyProfile{RDMA: iscsi.RDMAOptional}}).Start(&req)
	out := append(req.BHS[:], req.Data...)
	out = append(out, make([]byte, iscsi.PadLen(len(req.Data)))...)
	if _, err := a.Write(append(out, behind...)); err != nil {
		t.Fatal(err)
	}
	var resp iscsi.BHS
	a.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(a, resp[:]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, a, int64(resp.DataLen()+iscsi.PadLen(resp.DataLen()))); err != nil {
		t.Fatal(err)
	}
	if r := resp.LoginResponse(); r.Status() != iscsi.LoginSuccess || r.NSG() != iscsi.StageFullFeature {
		t.Fatalf("login answered % x", resp)
	}
	return s
}

// newUnswitched is a target whose stream login is over but for its last PDU, which waits for
// that to be sent.
func newUnswitched(t *testing.T) *switching {
	t.Helper()
	a, b := loopback.Pair(t)
	dm, err := device(t).Upgrade(b, iscsi.RoleTarget, iscsitcp.Config{Linger: time.Millisecond}, ConnConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := &switching{Recorder: datamovertest.NewRecorder(), t: t, dm: dm, nc: a}
	t.Cleanup(func() { a.Close() })
	p := iscsi.NewNegotiation(iscsi.RoleTarget, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
	p.RDMAExtensions = true
	dm.NoticeKeyValues(&p)
	if err := dm.Enable(); err != nil {
		t.Fatal(err)
	}
	dm.Start(s.Recorder)
	return s
}

func (s *switching) phase() phase {
	s.dm.mu.Lock()
	defer s.dm.mu.Unlock()
	return s.dm.phase
}

// Bytes of the next protocol that come before the final Login Response has been
// sent are still there for it: nothing of them is swallowed.
func TestSwitchOnTheRightByte(t *testing.T) {
	// A peer in a hurry: MPA Request right behind the Login Request. Nobody has read
	// it by then, and it is answered.
	req := append([]byte("MPA ID Req Frame"), 0x50, 2, 0, 8, 0, 16, 0, 1, 0x80, 0, 0, 0)
	s := newSwitching(t, req)
	var rep [20]byte
	if _, err := io.ReadFull(s.nc, rep[:]); err != nil {
		t.Fatal(err)
	}
	if string(rep[:16]) != "MPA ID Rep Frame" {
		t.Fatalf("answered %q", rep)
	}
	s.dm.Terminate(errors.New("end of the test"))
	s.End(t)
}

// The end of the connection while the stream changes, from either side and for
// whatever reason, is told once.
func TestSwitchEnds(t *testing.T) {
	reason := errors.New("the reason")
	for _, c := range []struct {
		name string
		do   func(*switching)
		good func(error) bool
	}{
		{"Terminate", func(s *switching) { s.dm.Terminate(reason) }, func(err error) bool { return errors.Is(err, reason) }},
		{"graceful", func(s *switching) { s.dm.Terminate(nil); s.dm.Terminate(nil) }, func(err error) bool { return err == nil }},
		{"graceful, then given up", func(s *switching) { s.dm.Terminate(nil); s.dm.Terminate(reason) }, func(err error) bool { return err == nil || errors.Is(err, reason) }},
		{"peer closes", func(s *switching) { s.nc.Close() }, func(err error) bool { return err != nil }},
		{"garbage", func(s *switching) { s.nc.Write(make([]byte, 100)) }, func(err error) bool { return err != nil }},
		{"iSCSI goes on", func(s *switching) {
			var b iscsi.BHS
			b.NewNopOut()
			s.nc.Write(b[:])
		}, func(err error) bool { return err != nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSwitching(t, nil)
			if d := s.dm.Describe(); d != "iSCSI over TCP, changing to iSER" {
				t.Errorf("described as %q", d)
			}
			if l := s.dm.Limits(); !l.QuietUntilFirstCommand {
				t.Errorf("%+v", l)
			}
			if err := s.dm.PutData(&iscsi.Transfer{}); err == nil {
				t.Error("PutData works without a transport")
			}
			if err := s.dm.GetData(&iscsi.Transfer{}); err == nil {
				t.Error("GetData works without a transport")
			}
			s.dm.AbortTransfer(&iscsi.Transfer{})
			var p iscsi.PDU
			p.BHS.NewNopIn()
			if err := s.dm.SendControl(&p); err != nil {
				t.Errorf("a PDU for later: %v", err)
			}
			s.dm.Push()
			c.do(s)
			if err := s.End(t); !c.good(err) {
				t.Errorf("ended with %v", err)
			}
			if err := s.dm.SendControl(&p); err == nil {
				t.Error("SendControl works after the end")
			}
			select {
			case err := <-s.Ended:
				t.Errorf("ended twice: %v", err)
			default:
			}
		})
	}
}

// connectRaw is the peer's part of the switch, without private data.
func (s *switching) connectRaw() {
	s.t.Helper()
	if _, err := s.nc.Write(append([]byte("MPA ID Req Frame"), 0x40, 1, 0, 0)); err != nil {
		s.t.Fatal(err)
	}
	var rep [20]byte
	if _, err := io.ReadFull(s.nc, rep[:]); err != nil || string(rep[:16]) != "MPA ID Rep Frame" || rep[16]&0x20 != 0 {
		s.t.Fatalf("answered %q, %v", rep, err)
	}
}

// TestEndAsItConnects: the end that is asked for when the peer has been answered, but nobody here
// has seen that yet, is that of the new connection.
func TestEndAsItConnects(t *testing.T) {
	for _, reason := range []error{nil, errors.New("the reason")} {
		s := newSwitching(t, nil)
		s.dm.mu.Lock() // it cannot be seen
		s.connectRaw()
		s.dm.ended, s.dm.reason, s.dm.grace = true, reason, reason == nil
		s.dm.mu.Unlock()
		if _, err := io.Copy(io.Discard, s.nc); err != nil {
			t.Errorf("the peer is not told: %v", err)
		}
		s.nc.Close()
		if err := s.End(t); err != reason {
			t.Errorf("ended with %v, want %v", err, reason)
		}
		if ph := s.phase(); ph != phaseDead || len(s.Ended) != 0 {
			t.Errorf("%v, told %d times more", ph, len(s.Ended))
		}
	}
}

// TestWaitingPDUIsRefused: what waited for the switch and cannot be sent behind it ends the
// connection, whatever waits behind it.
func TestWaitingPDUIsRefused(t *testing.T) {
	s := newSwitching(t, nil)
	var bad, good iscsi.PDU
	bad.BHS.NewNopIn()
	bad.AHS = []byte("odd")
	good.BHS.NewNopIn()
	for _, p := range []*iscsi.PDU{&bad, &good} {
		if err := s.dm.SendControl(p); err != nil {
			t.Fatal(err)
		}
	}
	s.connectRaw()
	if err := s.End(t); err == nil || !strings.Contains(err.Error(), "does not fit a message") {
		t.Errorf("ended with %v", err)
	}
}
