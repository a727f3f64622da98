package attach

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A socket whose process does not come to accepting, so that its queue is full, is not removed.
func TestBusySocketStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if l, err := listenUnix("NBD", path, "--socket"); err == nil {
		l.Close()
		t.Error("the socket was taken for a dead one")
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// Of several that want one socket at once, where a dead process has left it, one gets it: it is not removed under
// who has it already.
func TestSocketOfOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for range 50 {
		left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		left.SetUnlinkOnClose(false)
		left.Close()
		got := make(chan net.Listener, 8)
		var all sync.WaitGroup
		for range cap(got) {
			all.Go(func() {
				if l, err := listenUnix("NBD", path, "--socket"); err == nil {
					got <- l
				}
			})
		}
		all.Wait()
		close(got)
		if len(got) != 1 {
			t.Errorf("%d have the socket", len(got))
		}
		for l := range got {
			l.Close()
		}
	}
}
