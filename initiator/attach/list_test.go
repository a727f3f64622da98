package attach

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListOfAnUnreadableFolder: where nobody can tell what is attached, nothing is neither listed as such nor
// taken for detached.
func TestListOfAnUnreadableFolder(t *testing.T) {
	top := t.TempDir()
	closed, open, file := filepath.Join(top, "closed"), filepath.Join(top, "open"), filepath.Join(top, "file")
	record := filepath.Join(open, "attach-x.json")
	if err := errors.Join(os.Mkdir(closed, 0o700), os.Mkdir(open, 0o755), os.WriteFile(record, []byte("{}"), 0o600), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	asks := func(dir string, want error) {
		t.Helper()
		if _, err := List(dir); !errors.Is(err, want) {
			t.Errorf("listing %s: %v", dir, err)
		}
		if _, err := Detach(t.Context(), dir, "/dev/nbd0", false); !errors.Is(err, want) {
			t.Errorf("detaching by %s: %v", dir, err)
		}
	}
	asks(filepath.Join(top, "none"), nil)
	asks(file, unix.ENOTDIR)
	if os.Geteuid() == 0 { // who may read everything: of this thread, which ends with the test
		runtime.LockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer unix.Setfsuid(0) //nolint:errcheck // the folders would stay, which fails the test
	} else if err := errors.Join(os.Chmod(closed, 0), os.Chmod(record, 0)); err != nil {
		t.Fatal(err)
	}
	asks(closed, fs.ErrPermission)
	asks(open, fs.ErrPermission)
}

// TestListByAnyName: the name of the folder is no pattern.
func TestListByAnyName(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20)}
	opt := options(t, l)
	opt.Dir = filepath.Join(t.TempDir(), "run[1]*")
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Wait(ctx) }()
	if live, err := List(opt.Dir); err != nil || len(live) != 1 {
		t.Errorf("%d attachments, %v", len(live), err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
