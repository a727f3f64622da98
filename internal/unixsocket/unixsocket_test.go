package unixsocket

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// leave leaves a socket behind, as a process does that is killed.
func leave(t *testing.T, path string) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
}

func refused(t *testing.T, path, why string) {
	t.Helper()
	ln, err := Listen(path)
	if err == nil {
		ln.Close()
		t.Errorf("%s is opened", path)
	} else if s := err.Error(); !strings.HasPrefix(s, "socket "+path+": ") || !strings.Contains(s, why) {
		t.Errorf("not %q: %v", why, err)
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	leave(t, path)
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	refused(t, path, "another process serves it")

	long := filepath.Join(dir, strings.Repeat("s", MaxPath))
	refused(t, long, "that of a socket has at most 107")
	refused(t, filepath.Join(dir, "nowhere", "s"), "no such file")

	file := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, file, "is not a socket")
	refused(t, filepath.Join(file, "s"), "not a directory")
	if b, err := os.ReadFile(file); err != nil || string(b) != "data" {
		t.Errorf("the file is gone: %v", err)
	}
}

// Of several that want one socket at once, where a dead process has left it, one gets it.
func TestOneOfMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for range 50 {
		leave(t, path)
		got := make(chan net.Listener, 8)
		var all sync.WaitGroup
		for range cap(got) {
			all.Go(func() {
				if ln, err := Listen(path); err == nil {
					got <- ln
				}
			})
		}
		all.Wait()
		close(got)
		if len(got) != 1 {
			t.Errorf("%d have the socket", len(got))
		}
		for ln := range got {
			ln.Close()
		}
	}
}

// A folder that somebody keeps locked is not waited for without an end.
func TestLockedFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := unix.Flock(int(d.Fd()), unix.LOCK_SH); err != nil {
			t.Fatal(err)
		}
		refused(t, filepath.Join(dir, "s"), "keeps the folder "+dir+" locked")
	})
}

// A folder that may not be listed takes sockets all the same.
func TestUnreadableFolder(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads every folder")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o300); err != nil {
		t.Fatal(err)
	}
	ln, err := Listen(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
}
