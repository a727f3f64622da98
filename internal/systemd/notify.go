// Package systemd tells the service manager how the process is: sd_notify(3) and its
// watchdog (systemd.service(5)). Without a manager nothing is told.
package systemd

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// What there is to tell; any other assignment of sd_notify(3) will do.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	alive    = "WATCHDOG=1"
)

// notifyPatience is how long a manager may have no room for what it is told: it does not read.
const notifyPatience = 20 * time.Second

// Notify sends a state to the service manager, if there is one. In the name of the socket @
// stands for the zero byte of the abstract name space.
func Notify(state string) error { return notify(state, notifyPatience) }

func notify(state string, patience time.Duration) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	if rest, abstract := strings.CutPrefix(name, "@"); abstract {
		name = "\x00" + rest
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err == nil {
		if err = c.SetWriteDeadline(time.Now().Add(patience)); err == nil {
			_, err = c.Write([]byte(state))
		}
		c.Close()
	}
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return nil
}

// WatchdogInterval is how long the manager waits for a sign of life before it ends the
// process; 0: it does not. A value that was meant for another process is none.
func WatchdogInterval() time.Duration {
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || us <= 0 || us > int64(24*time.Hour/time.Microsecond) {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}

// Watchdog gives signs of life until ctx ends, twice in every interval that the manager
// waits, as long as check finds nothing wrong. It returns at once when nobody waits.
func Watchdog(ctx context.Context, check func(context.Context) error) {
	every := WatchdogInterval() / 2
	if every == 0 {
		return
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		// What cannot be told now is tried again; if it stays so the manager draws its conclusion.
		if check(ctx) == nil {
			_ = Notify(alive)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
