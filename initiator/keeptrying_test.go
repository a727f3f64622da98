package initiator

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// With KeepTrying a target that stays away fails commands once the replacement
// time-out is over, is looked for as long as it takes, and serves again when it is
// back; one that refuses us is not different, and nothing is told without end.
func TestKeepTrying(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	cases := []struct {
		name  string
		now   bool
		dial  error
		login error
	}{
		{"nobody listens", false, refused, nil},
		{"nobody listens, fail now", true, refused, nil},
		{"refused", false, nil, iscsi.Refuse(iscsi.LoginAuthFailure, "test")},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				var mu sync.Mutex
				told := map[EventKind]int{}
				cfg := ft.config()
				cfg.KeepTrying, cfg.FailNow = true, c.now
				cfg.OnEvent = func(e Event) {
					mu.Lock()
					told[e.Kind]++
					mu.Unlock()
				}
				l := dialLUN(t, cfg)
				s := l.Sessions()[0]
				ft.mu.Lock()
				ft.dialErr = func(int) error { return c.dial }
				ft.loginErr = func(*iscsi.LoginIdentity) error { return c.login }
				ft.mu.Unlock()
				begin := time.Now()
				ft.last().cut(errors.New("gone"))
				if _, err := l.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrSessionLost) {
					t.Fatalf("a command that was waiting: %v", err)
				}
				if took := time.Since(begin); !c.now && c.login == nil && took < s.cfg.ReplacementTimeout || c.now && took > 0 {
					t.Errorf("it failed after %v", took)
				}
				time.Sleep(time.Hour)
				begin = time.Now()
				if _, err := l.WriteAt(make([]byte, 512), 0); !errors.Is(err, ErrSessionLost) || time.Since(begin) > 0 {
					t.Errorf("a command meanwhile: %v after %v", err, time.Since(begin))
				}
				if st, why := s.State(); st != StateDown || why == nil {
					t.Errorf("the session is %v: %v", st, why)
				}
				ft.mu.Lock()
				ft.dialErr, ft.loginErr = nil, nil
				ft.mu.Unlock()
				time.Sleep(2 * maxRetry)
				if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
					t.Errorf("the target is back: %v", err)
				}
				if st, why := s.State(); st != StateActive || why != nil {
					t.Errorf("the session is %v: %v", st, why)
				}
				mu.Lock()
				defer mu.Unlock()
				if told[EventDown] != 1 || told[EventRecovered] != 1 || told[EventFailed] != 0 || told[EventRetry] > 30 {
					t.Errorf("events: %v", told)
				}
			})
		})
	}
}

// A session that is down is closed like any other.
func TestCloseWhileDown(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.KeepTrying, cfg.FailNow = true, true
		l := dialLUN(t, cfg)
		ft.mu.Lock()
		ft.dialErr = func(int) error { return errors.New("away") }
		ft.mu.Unlock()
		ft.last().cut(errors.New("gone"))
		time.Sleep(time.Minute)
		s := l.Sessions()[0]
		begin := time.Now()
		if err := s.Close(); err != nil || time.Since(begin) > 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if st, _ := s.State(); st != StateClosed {
			t.Error(st)
		}
		ft.mu.Lock()
		ft.dialErr = nil
		ft.mu.Unlock()
	})
}

// A LUN that has become another volume is never served, and the right one is again.
func TestKeepTryingKeepsTheVolume(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.KeepTrying = true
		l := dialLUN(t, cfg)
		ft.mu.Lock()
		right := ft.naa
		ft.naa++
		ft.mu.Unlock()
		ft.last().cut(errors.New("gone"))
		if _, err := l.WriteAt(make([]byte, 512), 0); !errors.Is(err, ErrLUNChanged) {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := l.WriteAt(make([]byte, 512), 0); !errors.Is(err, ErrLUNChanged) {
			t.Fatal(err)
		}
		ft.mu.Lock()
		ft.naa = right
		ft.mu.Unlock()
		time.Sleep(2 * maxRetry)
		if _, err := l.WriteAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
	})
}
