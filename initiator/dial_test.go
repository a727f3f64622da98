package initiator

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// A login refused for a reason that stays ends the session with that reason; a
// target that is merely not ready is asked again.
func TestRefusedLogin(t *testing.T) {
	cases := []struct {
		status iscsi.LoginStatus
		stays  bool
	}{
		{iscsi.LoginAuthFailure, true}, {iscsi.LoginForbidden, true}, {iscsi.LoginNotFound, true}, {iscsi.LoginTargetRemoved, true},
		{iscsi.LoginUnavailable, false}, {iscsi.LoginOutOfResources, false}, {iscsi.LoginTooManyConnections, false}, {iscsi.LoginTargetFailure, false},
	}
	for _, c := range cases {
		t.Run(c.status.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				n := 0
				ft.mu.Lock()
				ft.loginErr = func(*iscsi.LoginIdentity) error {
					if n++; n > 3 && !c.stays {
						return nil
					}
					return iscsi.Refuse(c.status, "test")
				}
				ft.mu.Unlock()
				ft.last().cut(errors.New("gone"))
				begin := time.Now()
				_, err := l.ReadAt(make([]byte, 512), 0)
				var le *iscsi.LoginError
				if c.stays {
					if !errors.Is(err, ErrSessionLost) || !errors.As(err, &le) || le.Status != c.status {
						t.Fatalf("%v after %d logins", err, n)
					}
					if took := time.Since(begin); c.status == iscsi.LoginNotFound {
						// May be a target that is not quite up yet.
						if took < startGrace || took > startGrace+2*maxRetry {
							t.Fatalf("believed after %v and %d logins", took, n)
						}
					} else if n != 1 {
						t.Fatalf("%d logins", n)
					}
				} else if err != nil || n != 4 {
					t.Fatalf("%v after %d logins", err, n)
				}
			})
		})
	}
}

func TestDialRefused(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.loginErr = func(*iscsi.LoginIdentity) error { return iscsi.Refuse(iscsi.LoginNotFound, "no such target") }
		_, err := Dial(context.Background(), ft.config())
		var le *iscsi.LoginError
		if !errors.As(err, &le) || le.Status != iscsi.LoginNotFound || !le.Remote {
			t.Fatal(err)
		}
		ft.loginErr = func(*iscsi.LoginIdentity) error { return iscsi.Refuse(iscsi.LoginUnavailable, "not now") }
		if _, err := Dial(context.Background(), ft.config()); err == nil || strings.Contains(err.Error(), "redirection") {
			t.Errorf("a refusal that is no redirection: %v", err)
		}
	})
}

func TestDialTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		// The target takes the login and never answers.
		cfg.dial = func(ctx context.Context, c *Config, addr string) (iscsi.Datamover, error) {
			dm, err := ft.dial(ctx, c, addr)
			d := dm.(*fakeDM)
			d.login = nil
			d.mute = true
			return d, err
		}
		begin := time.Now()
		_, err := Dial(context.Background(), cfg)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 30*time.Second {
			t.Fatalf("%v after %v", err, time.Since(begin))
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		if _, err := Dial(ctx, cfg); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}

// A port that closes the connection without a word may be somebody else's.
func TestDialClosed(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.dial = func(ctx context.Context, c *Config, addr string) (iscsi.Datamover, error) {
			dm, err := ft.dial(ctx, c, addr)
			d := dm.(*fakeDM)
			d.login, d.mute = nil, true
			time.AfterFunc(time.Second, func() { d.cut(io.EOF) })
			return d, err
		}
		if _, err := Dial(context.Background(), cfg); !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "does it speak iSCSI there") {
			t.Error(err)
		}
	})
}

// A portal on a link leads to another one there.
func TestRedirectOnLink(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.Address = "[fe80::1%eth0]:3260"
		ft.loginErr = func(*iscsi.LoginIdentity) error {
			if ft.conns[len(ft.conns)-1].addr == cfg.Address {
				return iscsi.Redirect(false, "[fe80::5]:3261,1")
			}
			return nil
		}
		l := dialLUN(t, cfg)
		if p := l.Sessions()[0].Info().Portal; p != "[fe80::5%eth0]:3261" {
			t.Errorf("portal %s", p)
		}
	})
}

// Redirection is followed, but not for ever, and a reconnect starts at the
// address that was configured.
func TestRedirect(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		ft.loginErr = func(*iscsi.LoginIdentity) error {
			if ft.conns[len(ft.conns)-1].addr == cfg.Address {
				return iscsi.Redirect(false, "[2001:db8::5]:3261,1")
			}
			return nil
		}
		l := dialLUN(t, cfg)
		if p := l.Sessions()[0].Info().Portal; p != "[2001:db8::5]:3261" {
			t.Fatalf("portal %s", p)
		}
		ft.last().cut(errors.New("gone"))
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		var addrs []string
		for _, c := range ft.conns {
			addrs = append(addrs, c.addr)
		}
		if want := []string{cfg.Address, "[2001:db8::5]:3261", cfg.Address, "[2001:db8::5]:3261"}; !slices.Equal(addrs, want) {
			t.Fatalf("asked at %v", addrs)
		}
		ft.mu.Lock()
		ft.loginErr = func(*iscsi.LoginIdentity) error { return iscsi.Redirect(false, "192.0.2.9:3260,1") }
		ft.mu.Unlock()
		before := len(ft.conns)
		if _, err := Dial(context.Background(), cfg); err == nil {
			t.Fatal("an endless redirection was followed")
		}
		if n := len(ft.conns) - before; n != 8 {
			t.Errorf("it was given up after %d hops", n)
		}
	})
}

// With a secret, a target that refuses us is asked once more with MD5 alone, at each attempt:
// it may have been something else that it did not like.
func TestOnlyMD5AtEachAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.Auth = Auth{User: "me", Secret: "a secret of mine"}
		ft.loginErr = func(*iscsi.LoginIdentity) error { return iscsi.Refuse(iscsi.LoginAuthFailure, "test") }
		tr := &transport{cfg: &cfg}
		for i := range 3 {
			if _, err := open(context.Background(), tr, cfg.Address, iscsi.NormalSession, nil); err == nil {
				t.Fatal("not refused")
			}
			if want := 2 * (i + 1); ft.dials != want {
				t.Errorf("%d connections after %d attempts, want %d", ft.dials, i+1, want)
			}
		}
	})
}
