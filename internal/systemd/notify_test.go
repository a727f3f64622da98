package systemd_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/systemd"
)

// manager is a service manager's socket.
func manager(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func told(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	n, _, err := c.ReadFrom(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	abstract := "softiser-test-" + strconv.Itoa(os.Getpid())
	for name, env := range map[string]string{path: path, "\x00" + abstract: "@" + abstract} {
		c := manager(t, name)
		t.Setenv("NOTIFY_SOCKET", env)
		if err := systemd.Notify(systemd.Ready); err != nil {
			t.Fatal(err)
		}
		if got := told(t, c); got != "READY=1" {
			t.Errorf("%q was told %q", env, got)
		}
	}
	t.Setenv("NOTIFY_SOCKET", path+".none")
	if err := systemd.Notify(systemd.Ready); err == nil {
		t.Error("a socket that is not there takes the message")
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if err := systemd.Notify(systemd.Ready); err != nil {
		t.Errorf("without a manager: %v", err)
	}
}

// Signs of life come as long as the process is well, and only then.
func TestWatchdog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c := manager(t, path)
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", "2000") // asks every millisecond
	ctx, cancel := context.WithCancel(t.Context())
	// The process falls ill by itself: if that were up to who reads below, a full socket could keep
	// the watchdog from asking.
	const well = 3
	var asked atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		systemd.Watchdog(ctx, func(context.Context) error {
			if asked.Add(1) > well {
				return errors.New("ill")
			}
			return nil
		})
	}()
	for range well {
		if got := told(t, c); got != "WATCHDOG=1" {
			t.Fatalf("told %q", got)
		}
	}
	await.True(t, "the ill process is asked again and again", func() bool { return asked.Load() > well+3 })
	if err := systemd.Notify(systemd.Ready); err != nil {
		t.Fatal(err)
	}
	if got := told(t, c); got != "READY=1" {
		t.Errorf("an ill process says %q", got)
	}
	cancel()
	<-ended
}

func TestWatchdogInterval(t *testing.T) {
	for _, tt := range []struct {
		pid, usec string
		want      time.Duration
	}{
		{"", "", 0}, {"", "60000000", time.Minute}, {strconv.Itoa(os.Getpid()), "1000", time.Millisecond},
		{"1", "1000", 0}, {"", "0", 0}, {"", "-5", 0}, {"", "x", 0}, {"", "9223372036854775807", 0},
	} {
		t.Setenv("WATCHDOG_PID", tt.pid)
		t.Setenv("WATCHDOG_USEC", tt.usec)
		if got := systemd.WatchdogInterval(); got != tt.want {
			t.Errorf("WATCHDOG_PID=%q WATCHDOG_USEC=%q: %v, want %v", tt.pid, tt.usec, got, tt.want)
		}
	}
}
