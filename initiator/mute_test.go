package initiator

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// silence makes connection d of the target mute.
func (f *fakeTarget) silence(d *fakeDM) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = func(c *fakeDM, _ *iscsi.PDU) bool { return c == d }
	f.onPing = func(c *fakeDM, p *iscsi.PDU) {
		if c != d {
			var r iscsi.PDU
			r.BHS.NewNopIn()
			r.BHS.SetITT(p.BHS.ITT())
			r.BHS.SetTTT(iscsi.ReservedTag)
			c.answer(&r)
		}
	}
}

// A target that is mute while its address takes logins has been replaced: the session is
// reinstated at once, not when pings are given up. While nobody answers there, it is found
// soon after somebody does.
func TestMuteTargetIsReplaced(t *testing.T) {
	nobody := &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for _, tc := range []struct {
		name  string
		cfg   Config
		after time.Duration // when somebody answers
		least time.Duration
		most  time.Duration
	}{
		{"at once", Config{}, 0, 1250 * time.Millisecond, 2 * time.Second},
		{"after a take-over of 4 s", Config{}, 4 * time.Second, 4 * time.Second, 5 * time.Second},
		{"other times", Config{SilencePing: 2 * time.Second, SilenceProbe: 3 * time.Second}, 0, 3 * time.Second, 5500 * time.Millisecond},
		{"off", Config{SilenceProbe: -1}, 0, 10 * time.Second, 14 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				cfg := ft.config()
				ft.settings.DefaultTime2Wait = 0
				cfg.SilencePing, cfg.SilenceProbe = tc.cfg.SilencePing, tc.cfg.SilenceProbe
				var evs events
				cfg.OnEvent = evs.add
				l := dialLUN(t, cfg)
				if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				ft.silence(ft.last())
				ft.mu.Lock()
				ft.dialErr = func(int) error {
					if time.Since(begin) < tc.after {
						time.Sleep(cfg.SilencePing) // a SYN without an answer; in a bubble
						return nobody
					}
					return nil
				}
				ft.mu.Unlock()
				if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took < tc.least || took > tc.most {
					t.Errorf("it took %v", took)
				}
				if s := l.Stats(); s.Losses != 1 || s.LoginFailures != 0 {
					t.Errorf("%+v", s)
				}
				evs.mu.Lock()
				defer evs.mu.Unlock()
				for _, e := range evs.list {
					if e.Kind == EventLost && strings.Contains(e.Err.Error(), "mute") != (tc.cfg.SilenceProbe >= 0) {
						t.Error(e.Err)
					}
				}
			})
		})
	}
}

// The portal that is asked whether the target has been replaced is the one that the target has moved to.
func TestMuteTargetAfterRedirect(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		const moved = "192.0.2.9:3260"
		cfg := ft.config()
		ft.settings.DefaultTime2Wait = 0
		ft.loginErr = func(*iscsi.LoginIdentity) error {
			if ft.conns[len(ft.conns)-1].addr == cfg.Address {
				return iscsi.Redirect(false, moved+",1")
			}
			return nil
		}
		l := dialLUN(t, cfg)
		ft.silence(ft.last())
		ft.mu.Lock()
		before := len(ft.conns)
		ft.mu.Unlock()
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		ft.mu.Lock()
		defer ft.mu.Unlock()
		if probe := ft.conns[before].addr; probe != moved {
			t.Errorf("asked at %s", probe)
		}
	})
}

// A target that answers pings keeps its session, however long its storage takes; nobody
// connects to it meanwhile.
func TestStalledTargetKeepsSession(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		stalled := make(chan struct{})
		ft.mu.Lock()
		ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
			go func() {
				<-stalled
				d.execute(p)
			}()
			return true
		}
		dials := ft.dials
		ft.mu.Unlock()
		time.AfterFunc(30*time.Second, func() { close(stalled) })
		begin := time.Now()
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != 30*time.Second {
			t.Errorf("it took %v", took)
		}
		s := l.Stats()
		if ft.mu.Lock(); s.Losses != 0 || ft.dials != dials || s.Pings < 20 || s.Pings > 70 {
			t.Errorf("%d losses, %d connections, %d pings", s.Losses, ft.dials-dials, s.Pings)
		}
		ft.mu.Unlock()
	})
}

// A target that was stopped and goes on answers where it was asked first, and keeps its session.
func TestStoppedTargetKeepsSession(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		goOn := make(chan struct{})
		ft.mu.Lock()
		ft.hook = func(d *fakeDM, p *iscsi.PDU) bool { <-goOn; return false }
		ft.loginErr = func(*iscsi.LoginIdentity) error { ft.mu.Unlock(); <-goOn; ft.mu.Lock(); return nil }
		ft.mu.Unlock()
		time.AfterFunc(4*time.Second, func() { close(goOn) })
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // in a bubble
		if s := l.Stats(); s.Losses != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A target that was stopped takes connections, as its kernel goes on, and answers none. Those
// that it took do not keep the initiator from the one that has its address afterwards.
func TestStoppedTargetIsReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		const takeOver = 4100 * time.Millisecond // soon after a probe has begun
		ft.settings.DefaultTime2Wait = 0
		l := dialLUN(t, ft.config())
		begin := time.Now()
		ft.silence(ft.last())
		ft.mu.Lock()
		ft.loginErr = func(*iscsi.LoginIdentity) error {
			if time.Since(begin) < takeOver {
				ft.mu.Unlock()
				time.Sleep(time.Minute) // in a bubble: a login without an answer
				ft.mu.Lock()
			}
			return nil
		}
		ft.mu.Unlock()
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < takeOver || took > takeOver+time.Second {
			t.Errorf("it took %v", took)
		}
		if s := l.Stats(); s.Losses != 1 || s.LoginFailures != 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Minute) // in a bubble: the target's end of those logins
	})
}

// The login after a loss may get as far as a host that is stopped as well, and loses its
// address a while later. The next one comes soon after another has that, long before the
// time-out of the login.
func TestStuckLoginIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		const takeOver = 20100 * time.Millisecond
		ft.settings.DefaultTime2Wait = 0
		l := dialLUN(t, ft.config())
		begin := time.Now()
		ft.mu.Lock()
		ft.loginErr = func(*iscsi.LoginIdentity) error {
			if time.Since(begin) < takeOver {
				ft.mu.Unlock()
				time.Sleep(time.Minute) // in a bubble: a login without an answer
				ft.mu.Lock()
			}
			return nil
		}
		ft.mu.Unlock()
		ft.last().cut(errors.New("cut"))
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < takeOver || took > takeOver+time.Second {
			t.Errorf("it took %v", took)
		}
		if s := l.Stats(); s.Losses != 1 || s.LoginFailures != 1 {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Minute) // in a bubble: the target's end of those logins
	})
}

// Closing ends a probe that is under way.
func TestCloseWhileProbing(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.LogoutTimeout = time.Second
		l := dialLUN(t, cfg)
		ft.silence(ft.last())
		cfg.dial = nil
		ft.mu.Lock()
		ft.dialErr = func(int) error { return errors.New("nobody") }
		ft.mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- l.Do(context.Background(), &Request{Op: OpRead, Buf: make([]byte, 512)}) }()
		time.Sleep(2 * time.Second) // in a bubble
		l.Close()
		if err := <-done; err == nil {
			t.Error("a command was carried out")
		}
	})
}
