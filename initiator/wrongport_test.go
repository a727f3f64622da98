package initiator

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

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
