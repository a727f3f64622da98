package initiator

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// The target asks for a logout: what is outstanding ends, then the session
// logs out, comes back and goes on.
func TestAsyncLogout(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		d := ft.last()
		var p iscsi.PDU
		a := p.BHS.NewAsync(iscsi.AsyncLogout)
		a.SetParams(0, 0, 3)
		d.answer(&p)
		synctest.Wait()
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		if st := l.Stats(); st.Logins != 2 {
			t.Fatalf("%+v", st)
		}
		if !slices.Contains(d.logouts, iscsi.LogoutSession) {
			t.Fatal("no logout although the target asked for it")
		}
	})
}

// Who does not wait for the target learns that it is draining, and what to do.
func TestAsyncLogoutIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.FailNow = true
		l := dialLUN(t, cfg)
		var p iscsi.PDU
		p.BHS.NewAsync(iscsi.AsyncLogout).SetParams(0, 0, 3)
		ft.last().answer(&p)
		synctest.Wait()
		_, err := l.ReadAt(make([]byte, 512), 0)
		if !errors.Is(err, ErrSessionLost) || !strings.Contains(err.Error(), "asked for a logout") || !strings.Contains(err.Error(), "try again") {
			t.Errorf("%v", err)
		}
	})
}

// How long to wait after such a logout is what the Logout Response says, be it
// more or less than what was negotiated (RFC 7143 §11.15.3).
func TestLogoutTime2Wait(t *testing.T) {
	for _, c := range []struct{ negotiated, told uint16 }{{0, 5}, {7, 0}, {7, 2}} {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			ft.settings.DefaultTime2Wait, ft.wait = uint32(c.negotiated), c.told
			l := dialLUN(t, ft.config())
			var p iscsi.PDU
			p.BHS.NewAsync(iscsi.AsyncLogout).SetParams(0, 0, 3)
			ft.last().answer(&p)
			synctest.Wait()
			begin := time.Now()
			if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
			told := time.Duration(c.told) * time.Second
			if took := time.Since(begin); took < told || took > told+time.Second {
				t.Errorf("negotiated %d s, told %d s: back after %v", c.negotiated, c.told, took)
			}
		})
	}
}

// The target announces that it drops the connection and when it may be tried
// again (Time2Wait).
func TestAsyncDrop(t *testing.T) {
	for _, e := range []iscsi.AsyncEvent{iscsi.AsyncConnectionDrop, iscsi.AsyncSessionDrop} {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			var p iscsi.PDU
			a := p.BHS.NewAsync(e)
			a.SetParams(0, 7, 0)
			ft.last().answer(&p)
			synctest.Wait()
			begin := time.Now()
			if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took < 7*time.Second || took > 10*time.Second {
				t.Fatalf("event %d: back after %v, the target said 7 s", e, took)
			}
		})
	}
}

// A rejected command ends with the reason, and nothing else suffers.
func TestReject(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			var r iscsi.PDU
			r.BHS.NewReject(iscsi.RejectInvalidField)
			r.Data = p.BHS[:]
			c.answer(&r)
			return true
		}
		err := l.Do(context.Background(), &Request{Op: OpRead, Buf: make([]byte, 512)})
		if err == nil || !strings.Contains(err.Error(), "invalid PDU field") {
			t.Fatal(err)
		}
		letGo(ft)
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		if st := l.Stats(); st.Losses != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

// TestRejectOfDamaged: a command whose immediate data was damaged on its way has not been carried
// out: it is no error of the caller's request, but sent again over a new connection.
func TestRejectOfDamaged(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		damaged := false
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			if damaged || spc.Opcode(p.BHS.SCSICommand().CDB()[0]) != spc.OpWrite10 {
				return false
			}
			damaged = true
			var r iscsi.PDU
			r.BHS.NewReject(iscsi.RejectDataDigest)
			r.Data = p.BHS[:]
			c.answer(&r)
			return true
		}
		want := bytes.Repeat([]byte("rejected"), 64)
		if _, err := l.WriteAt(want, 512); err != nil || !damaged {
			t.Fatal(err, damaged)
		}
		if !bytes.Equal(ft.disk[512:1024], want) {
			t.Error("the target's disk does not hold what was written")
		}
		if st := l.Stats(); st.Losses != 1 {
			t.Errorf("%d connections were lost", st.Losses)
		}
	})
}
