package iscsi

import (
	"errors"
	"testing"

	"softiser/internal/iscsi"
)

// TestResetWaitsForLostCommand: at error recovery level 1 a command may be missing on the
// only connection, because it was damaged and is sent again. An immediate reset that was
// sent behind it waits for it (RFC 7143 §4.2.3.3 b).
func TestResetWaitsForLostCommand(t *testing.T) {
	s := serve(t, level(1))
	r := s.session(append([]string{"ErrorRecoveryLevel=1", "MaxConnections=1", "MaxRecvDataSegmentLength=4096"}, withDigests...)...)
	w := command{cdb: cdbRW10(0x2a, 0, 8), write: true, edtl: 4096, imm: pattern(4096, 1)}
	sn := r.cmdSN
	r.damage = 100
	first := r.command(w)
	if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectDataDigest {
		t.Fatalf("reason %v", p.Reject().Reason())
	}
	reset := r.sendTask(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
	r.expectSilence()
	r.itt = first - 1
	r.at(sn, w)
	r.itt = reset
	for {
		p := r.read()
		if p.Opcode() == iscsi.OpTaskResponse {
			if code := p.TaskResponse().Response(); p.ITT() != reset || code != iscsi.TaskComplete || p.ExpCmdSN() != sn+1 {
				t.Fatalf("response %d for %#x, ExpCmdSN %d", code, p.ITT(), p.ExpCmdSN())
			}
			return
		}
		if p.ITT() != first {
			t.Fatalf("%v for %#x", p.Opcode(), p.ITT())
		}
	}
}

// TestLogoutForRecovery: a connection that is there may be logged out for recovery, by
// itself or from another one: its tasks can be reassigned right away, and nobody is told
// that it was lost. After a plain logout there is nothing to recover.
func TestLogoutForRecovery(t *testing.T) {
	for _, how := range []string{"its own", "from another", "a login with its CID", "plain"} {
		t.Run(how, func(t *testing.T) {
			s := serve(t, level(2))
			a := s.session(atLevel(2)...)
			b := s.another(a, 1)
			release := s.dev.hold()
			defer release()
			if how == "plain" {
				if code := a.logoutReason(iscsi.LogoutConnection, 0); code != iscsi.LogoutClosed {
					t.Errorf("logout: response %d", code)
				}
				a.expectClosed()
				s.connections(t, 1)
				b.expectSilence()
				if code := b.logoutReason(iscsi.LogoutRecovery, 0); code != iscsi.LogoutCIDNotFound {
					t.Errorf("logout for recovery afterwards: response %d", code)
				}
				return
			}
			tag := a.command(command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
			eventually(t, "the read waits", func() bool { return s.dev.held() == 1 })
			b.cmdSN = a.cmdSN
			by := b
			switch how {
			case "its own":
				if code := a.logoutReason(iscsi.LogoutRecovery, 0); code != iscsi.LogoutClosed {
					t.Errorf("response %d", code)
				}
			case "from another":
				var q iscsi.BHS
				l := q.NewLogoutRequest(iscsi.LogoutRecovery)
				l.SetImmediate(true)
				l.SetITT(b.newTag())
				l.SetCmdSN(b.cmdSN)
				b.write(&q, nil)
				if p := b.expect(iscsi.OpLogoutResp); p.LogoutResponse().Response() != iscsi.LogoutClosed {
					t.Errorf("response %d", p.LogoutResponse().Response())
				}
			default:
				by = s.another(a, 0)
				by.itt = a.itt + 0x100
			}
			a.expectClosed()
			eventually(t, "it is lost", func() bool {
				x := s.sessionByTSIH(b.tsih)
				x.mu.Lock()
				defer x.mu.Unlock()
				return x.conns.members.byLostCID(0) != nil
			})
			by.mustReassign(tag, 0)
			release()
			if res := by.finish(tag, nil); res.status != 0 || len(res.data) != 512 {
				t.Errorf("status %#x, %d bytes", res.status, len(res.data))
			}
			b.expectSilence()
		})
	}
}

// TestSecondLogoutForRecovery: one that comes while the first is under way is told that it
// has failed, and the connection is left to the first.
func TestSecondLogoutForRecovery(t *testing.T) {
	s := serve(t, level(2))
	a := s.session(atLevel(2)...)
	b := s.another(a, 1)
	x := s.sessionByTSIH(a.tsih)
	x.mu.Lock()
	x.conns.members.byCID(0).recovering = true
	x.mu.Unlock()
	if code := b.logoutReason(iscsi.LogoutRecovery, 0); code != iscsi.LogoutCleanupFailed {
		t.Errorf("response %d", code)
	}
	a.ready()
}

// TestPlaceForRecovery: at error recovery level 2 a session whose connections are all there
// has a place more for one that logs another out, and no more than that (RFC 7143
// §6.3.4).
func TestPlaceForRecovery(t *testing.T) {
	s := serve(t, level(2))
	a := s.session("ErrorRecoveryLevel=2", "MaxConnections=1", "MaxRecvDataSegmentLength=4096")
	b := s.another(a, 1)
	if _, st := s.tryAnother(a, 2); st != iscsi.LoginTooManyConnections {
		t.Errorf("a third connection of a session with one: status %04x", uint16(st))
	}
	b.logoutReason(iscsi.LogoutRecovery, 0)
	b.ready()
	s = serve(t, level(1))
	a = s.session("ErrorRecoveryLevel=1", "MaxConnections=1", "MaxRecvDataSegmentLength=4096")
	if _, st := s.tryAnother(a, 1); st != iscsi.LoginTooManyConnections {
		t.Errorf("a second connection at level 1: status %04x", uint16(st))
	}
}

// TestFailedReplacementKeepsTasks: a login that was to replace a connection, and fails when that
// has gone, does not end the session at level 2: another one may ask for the tasks.
func TestFailedReplacementKeepsTasks(t *testing.T) {
	s := serve(t, level(2))
	a := s.session(atLevel(2)...)
	a.cut()
	s.connections(t, 0)
	x := s.sessionByTSIH(a.tsih)
	x.conns.orphaned(errors.New("the login has failed"))
	if x.ending() {
		t.Fatal("the session is over")
	}
	b := s.another(a, 0)
	b.ready()
	if st := s.Status(); len(st.Sessions) != 1 || st.Logins != 1 {
		t.Errorf("%d sessions after %d logins", len(st.Sessions), st.Logins)
	}
}
