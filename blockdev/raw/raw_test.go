package raw

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
)

// loop makes a loop device over a file of the test and returns both paths.
func loop(t *testing.T, size int64, args ...string) (dev, file string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	file = filepath.Join(t.TempDir(), "loop.img")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	dev, detach := attach(t, file, args...)
	t.Cleanup(detach)
	return dev, file
}

// attach makes a loop device over a file.
func attach(t *testing.T, file string, args ...string) (dev string, detach func()) {
	t.Helper()
	out, err := exec.Command("losetup", append([]string{"--find", "--show", file}, args...)...).CombinedOutput()
	if err != nil {
		t.Skipf("no loop devices here: losetup: %v: %s", err, out)
	}
	dev = strings.TrimSpace(string(out))
	return dev, func() {
		t.Helper()
		if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v: %s", dev, err, out)
		}
	}
}

// TestDiskReplaced: a disk that comes back under the same name has another cache.
func TestDiskReplaced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	records, file := t.TempDir(), filepath.Join(t.TempDir(), "loop.img")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	dev, detach := attach(t, file)
	ours := true
	defer func() {
		if ours {
			detach()
		}
	}()
	opened := func() string {
		t.Helper()
		d, err := Open(Config{Path: dev, EpochDir: records})
		if err != nil {
			t.Fatal(err)
		}
		// As after kill -9: the record that an orderly end leaves is put aside.
		before, err := os.ReadDir(records)
		if err != nil || len(before) != 1 {
			t.Fatalf("%v, %v", before, err)
		}
		name := filepath.Join(records, before[0].Name())
		record, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		id := d.Info().CacheID
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, record, 0o600); err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := opened()
	if first == "" {
		t.Skip("this kernel does not number disks (before 5.15): no cache of a disk has a name")
	}
	if again := opened(); again != first {
		t.Errorf("killed: %s, then %s", first, again)
	}
	detach()
	if out, err := exec.Command("losetup", dev, file).CombinedOutput(); err != nil {
		ours = false
		t.Skipf("somebody else has taken %s: %v: %s", dev, err, out)
	}
	if again := opened(); again == first {
		t.Error("another disk has the cache of the first")
	}
}

func TestConformance(t *testing.T) {
	for name, cfg := range map[string]Config{"plain": {}, "4096": {BlockSize: 4096}, "writethrough": {WriteThrough: true}} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Backend{
				Direct: true,
				Staged: true,
				Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
					cfg := cfg
					cfg.Path, _ = loop(t, size)
					cfg.Pool = pool
					d, err := Open(cfg)
					if err != nil {
						t.Fatal(err)
					}
					return d
				},
			})
		})
	}
}

func TestExclusive(t *testing.T) {
	path, _ := loop(t, 1<<20)
	d, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Path: path}); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("second Open = %v, want ErrInUse", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, err = Open(Config{Path: path})
	if err != nil {
		t.Fatalf("Open after Close: %v", err)
	}
	d.Close()
}

// TestOpenBesideAFork: a device that a child between fork and exec has open yet is in use for that moment alone.
func TestOpenBesideAFork(t *testing.T) {
	dev, _ := loop(t, 1<<20)
	const flags = unix.O_RDWR | unix.O_EXCL | unix.O_CLOEXEC
	child, err := unix.Open(dev, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	pauses := 0
	fd, err := openPatiently(dev, flags, func() {
		if pauses++; pauses == 1 {
			unix.Close(child)
		}
	})
	if err != nil || pauses != 1 {
		t.Fatalf("%v after %d pauses", err, pauses)
	}
	defer unix.Close(fd)
	if _, err := openPatiently(dev, flags, func() {}); !errors.Is(err, unix.EBUSY) {
		t.Errorf("what stays in use: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	path, file := loop(t, 1<<20, "--sector-size", "4096")
	for name, cfg := range map[string]Config{
		"regular file":        {Path: file},
		"character device":    {Path: "/dev/null"},
		"larger than it is":   {Path: path, Size: 2 << 20},
		"block below its own": {Path: path, BlockSize: 512},
		"missing":             {Path: path + "x"},
	} {
		if d, err := Open(cfg); err == nil {
			d.Close()
			t.Errorf("%s was accepted", name)
		}
	}
	d, err := Open(Config{Path: path, Size: 512 << 10, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if i := d.Info(); i.BlockSize != 4096 || i.Size != 512<<10 || !i.ReadOnly {
		t.Errorf("Info = %+v", i)
	}
	if _, err := d.WriteAt(make([]byte, 4096), 0); !errors.Is(err, blockdev.ErrReadOnly) {
		t.Errorf("WriteAt = %v", err)
	}
	if err := d.Resize(1 << 20); !errors.Is(err, blockdev.ErrNotSupported) {
		t.Errorf("Resize = %v", err)
	}
}

// TestGrow: an enlarged device enlarges the volume.
func TestGrow(t *testing.T) {
	path, file := loop(t, 1<<20)
	d, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	grown := make(chan int64, 1)
	defer d.OnResize(func(i blockdev.Info) { grown <- i.Size })()
	if err := os.Truncate(file, 2<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("losetup", "--set-capacity", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	select {
	case n := <-grown:
		if n != 2<<20 {
			t.Errorf("grown to %d", n)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("growth was not noticed")
	}
	p := make([]byte, 4096)
	p[17] = 4
	if _, err := d.WriteAt(p, 2<<20-4096); err != nil {
		t.Fatal(err)
	}
}

// TestFailingDevice: the medium under the loop device goes away.
func TestFailingDevice(t *testing.T) {
	path, file := loop(t, 1<<20)
	d, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	var l blockdev.Lease
	if err := d.LeaseRead(&l, 512<<10, 4096, blockdev.Wait); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("LeaseRead of a lost sector = %v, want ErrMedium", err)
	}
	l.Release()
	if _, err := d.ReadAt(make([]byte, 4096), 768<<10); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("ReadAt of a lost sector = %v, want ErrMedium", err)
	}
}
