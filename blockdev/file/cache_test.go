package file

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMountedAgain: the cache of a file is gone with the mounting of its file system,
// whatever mount the file is reached through.
func TestMountedAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting file systems needs root")
	}
	dir, records := t.TempDir(), t.TempDir()
	store, at := filepath.Join(dir, "fs.img"), filepath.Join(dir, "fs")
	if err := os.WriteFile(store, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(store, 16<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", store).CombinedOutput(); err != nil {
		t.Skipf("no ext4 here: %v: %s", err, out)
	}
	out, err := exec.Command("losetup", "--find", "--show", store).CombinedOutput()
	if err != nil {
		t.Skipf("no loop devices here: losetup: %v: %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v: %s", dev, err, out)
		}
	})
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	mount := func(from string, flags uintptr) {
		t.Helper()
		if err := unix.Mount(from, at, "ext4", flags, ""); err != nil {
			t.Skipf("cannot mount an ext4: %v", err)
		}
	}
	unmount := func() {
		t.Helper()
		if err := unix.Unmount(at, 0); err != nil {
			t.Fatal(err)
		}
	}
	mount(dev, 0)
	mounts := 1
	t.Cleanup(func() {
		for range mounts {
			if err := unix.Unmount(at, 0); err != nil {
				t.Error(err)
			}
		}
	})
	path := filepath.Join(at, "disk.img")
	// killed opens the volume in a process that is killed.
	killed := func() string {
		t.Helper()
		cmd := child(t, "cache", path)
		cmd.Env = append(cmd.Env, "FILE_TEST_RECORDS="+records)
		out, err := cmd.Output()
		id, ok := strings.CutPrefix(string(out), "cache ")
		if err == nil || !ok || id == "" {
			t.Fatalf("%q, %v", out, err)
		}
		return id
	}
	first := killed()
	if again := killed(); again != first {
		t.Errorf("killed: %s, then %s", first, again)
	}
	mount(at, unix.MS_BIND) // as a service with a view of its own sees it
	mounts++
	if again := killed(); again != first {
		t.Errorf("through another mount: %s, then %s", first, again)
	}
	unmount()
	unmount()
	mounts = 0
	mount(dev, 0)
	mounts = 1
	if again := killed(); again == first {
		t.Error("mounted again, and the cache is the same")
	}
}
