package systemd

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A manager that does not read holds nobody up for ever.
func TestNotifyUnread(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	for err == nil { // until its queue is full
		err = notify(alive, time.Millisecond)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}
