package unixsocket

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The socket's name has its mode from the moment it is there: nothing changes it
// afterwards, whatever the umask lets through.
func TestSocketIsNeverOpenToOthers(t *testing.T) {
	dir := t.TempDir()
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Skipf("inotify: %v", err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_CREATE|unix.IN_ATTRIB); err != nil {
		t.Skipf("inotify: %v", err)
	}
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(dir, "s")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := fi.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %v", mode)
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(watch, buf)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	created := false
	for b := buf[:max(n, 0)]; len(b) >= unix.SizeofInotifyEvent; {
		mask, name := binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[12:])
		created = created || mask&unix.IN_CREATE != 0
		if mask&unix.IN_ATTRIB != 0 {
			t.Error("its mode was changed after it had been made")
		}
		b = b[unix.SizeofInotifyEvent+int(name):]
	}
	if !created {
		t.Error("inotify has not seen the socket: the test is blind")
	}
}

// A socket whose process does not come to accepting, so that its queue is full, is not taken for
// one that a dead process has left.
func TestBusySocketStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			unix.Close(fd)
		}
	}()
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
	was, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if ln, err := Listen(path); err == nil {
		ln.Close()
		t.Error("the socket was taken for a stale one")
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(was, now) {
		t.Fatalf("the socket has been replaced (%v)", err)
	}
	closed = true
	if err := unix.Close(fd); err != nil { // its process is dead
		t.Fatal(err)
	}
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
}
