package initiator

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// GOOD without the data is not believed where arriving data is counted.
func TestGoodWithoutData(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			c.status(p, spc.StatusGood, nil, 0)
			return true
		}
		if _, err := l.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrShort) {
			t.Fatal(err)
		}
		letGo(ft)
	})
}

// What no target may send ends the connection, not the process, and the
// session recovers.
func TestHostile(t *testing.T) {
	scsiResp := func(itt uint32, f func(r iscsi.SCSIResponse)) *iscsi.PDU {
		var p iscsi.PDU
		r := p.BHS.NewSCSIResponse()
		p.BHS.SetITT(itt)
		if f != nil {
			f(r)
		}
		return &p
	}
	for name, make := range map[string]func(itt uint32) *iscsi.PDU{
		"unknown tag":    func(itt uint32) *iscsi.PDU { return scsiResp(0x12340099, nil) },
		"old generation": func(itt uint32) *iscsi.PDU { return scsiResp(itt-1<<16, nil) },
		"reserved tag":   func(itt uint32) *iscsi.PDU { return scsiResp(iscsi.ReservedTag, nil) },
		"huge residual": func(itt uint32) *iscsi.PDU {
			return scsiResp(itt, func(r iscsi.SCSIResponse) { r.SetResidual(513, iscsi.ResidualUnderflow) })
		},
		"both residuals":  func(itt uint32) *iscsi.PDU { return scsiResp(itt, func(r iscsi.SCSIResponse) { r.SetResidual(1, 6) }) },
		"login response":  func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewLoginResponse(); return &p },
		"request opcode":  func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewSCSICommand(); return &p },
		"task response":   func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewTaskResponse(0); p.BHS.SetITT(itt); return &p },
		"logout response": func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewLogoutResponse(0); p.BHS.SetITT(itt); return &p },
		"NOP-In":          func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewNopIn(); p.BHS.SetITT(itt); return &p },
		"short reject": func(itt uint32) *iscsi.PDU {
			var p iscsi.PDU
			p.BHS.NewReject(iscsi.RejectProtocol)
			p.Data = []byte{1}
			return &p
		},
		"damaged": func(itt uint32) *iscsi.PDU {
			p := scsiResp(itt, nil)
			p.Bad = &iscsi.ProtocolError{Reason: iscsi.RejectDataDigest, Msg: "data digest"}
			return p
		},
		"text response": func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewTextResponse(); p.BHS.SetITT(itt); return &p },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				done := false
				ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
					if done || spc.Opcode(p.BHS.SCSICommand().CDB()[0]) != spc.OpRead10 {
						return false
					}
					done = true
					c.answer(make(p.BHS.ITT()))
					return true
				}
				if _, err := l.ReadAt([]byte(fmt.Sprintf("%512d", 0)), 0); err != nil {
					t.Fatal(err)
				}
				if st := l.Stats(); st.Losses != 1 || st.Replayed != 1 {
					t.Fatalf("%+v", st)
				}
			})
		})
	}
}

// A ping that is answered with the response to something else breaks the protocol as well.
func TestPingAnsweredByAnother(t *testing.T) {
	for name, answer := range map[string]func(b *iscsi.BHS){
		"SCSI response":   func(b *iscsi.BHS) { b.NewSCSIResponse() },
		"task response":   func(b *iscsi.BHS) { b.NewTaskResponse(iscsi.TaskComplete) },
		"logout response": func(b *iscsi.BHS) { b.NewLogoutResponse(iscsi.LogoutClosed) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				ft.mu.Lock()
				ft.onPing = func(c *fakeDM, p *iscsi.PDU) {
					ft.mu.Lock()
					ft.onPing = nil
					ft.mu.Unlock()
					var r iscsi.PDU
					answer(&r.BHS)
					r.BHS.SetITT(p.BHS.ITT())
					c.answer(&r)
				}
				ft.mu.Unlock()
				time.Sleep(time.Minute)
				if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
					t.Error(err)
				}
				if n := l.Stats().Losses; n != 1 {
					t.Errorf("%d connections were lost, want 1", n)
				}
			})
		})
	}
}
