package initiator

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A silent port is given up soon after it has answered plain iSCSI, and only then.
func TestPortDoubt(t *testing.T) {
	cases := []struct {
		name   string
		speaks bool
		answer time.Duration // when the RDMA start-up ends
		wrong  bool
	}{
		{"quick", true, 10 * time.Millisecond, false},
		{"slow, speaks both", true, portSilence + portGrace - time.Millisecond, false},
		{"silent, speaks iSCSI", true, time.Minute, true},
		{"silent, speaks nothing", false, time.Minute, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := portDoubt{addr: "192.0.2.1:3260", speaks: func(context.Context) bool { return c.speaks }}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				watching, stop := context.WithCancel(ctx)
				begin := time.Now()
				ended := d.watch(watching, cancel)
				pause(ctx, c.answer) // the start-up
				took := time.Since(begin)
				stop()
				<-ended
				_, wrong := errors.AsType[*WrongProtocolError](context.Cause(ctx))
				if wrong != c.wrong {
					t.Errorf("given up: %v", context.Cause(ctx))
				}
				if wrong && took > 3*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A target that is down for a while, so that nothing listens, is found within a
// second of its return.
func TestRestartIsNoticed(t *testing.T) {
	for _, down := range []time.Duration{time.Second, 2600 * time.Millisecond, 7 * time.Second, time.Minute} {
		t.Run(down.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				begin := time.Now()
				ft.mu.Lock()
				ft.dialErr = func(int) error {
					if time.Since(begin) < down {
						return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
					}
					return nil
				}
				ft.mu.Unlock()
				ft.last().cut(errors.New("restarted"))
				if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
					t.Fatal(err)
				}
				if late := time.Since(begin) - down; late > time.Second {
					t.Errorf("found %v after its return", late)
				}
			})
		})
	}
}
