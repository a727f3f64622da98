package lvm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/internal/durable"
)

// TestNamesAreDurable: a file that is made for a group is in its folder after a
// power cut, and one whose name cannot be made durable is not used.
func TestNamesAreDurable(t *testing.T) {
	dir := t.TempDir()
	var synced []string
	real := durable.SyncDir
	t.Cleanup(func() { durable.SyncDir = real })
	durable.SyncDir = func(d string) error { synced = append(synced, d); return real(d) }
	path := filepath.Join(dir, "disk")
	must(t, makeFile(path, 1<<20))
	if fi, err := os.Stat(path); err != nil || fi.Size() != 1<<20 {
		t.Error(err)
	}
	if len(synced) != 1 || synced[0] != dir {
		t.Errorf("synced %v", synced)
	}
	must(t, os.WriteFile(path, []byte("x"), 0o600))
	must(t, makeFile(path, 1<<20)) // stays as it is
	if b, err := os.ReadFile(path); err != nil || string(b) != "x" {
		t.Error("the file has changed", err)
	}
	broken := errors.New("broken")
	durable.SyncDir = func(string) error { return broken }
	if err := makeFile(filepath.Join(dir, "other"), 1<<20); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "other")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the file is there", err)
	}
	durable.SyncDir = func(d string) error { return &os.PathError{Op: "sync", Path: d, Err: unix.EINVAL} } // CIFS cannot
	must(t, makeFile(filepath.Join(dir, "third"), 1<<20))
	if _, err := os.Stat(filepath.Join(dir, "third")); err != nil {
		t.Error(err)
	}
}
