package file

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/internal/backing"
	"softiser/internal/durable"
)

func TestConformance(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	staged := !fileSystemOf(int(dir.Fd())).inMemory()
	for name, cfg := range map[string]Config{
		"sparse":       {},
		"4096":         {BlockSize: 4096},
		"prealloc":     {Prealloc: true},
		"writethrough": {WriteThrough: true},
	} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Backend{
				Direct: true,
				Staged: staged,
				Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
					cfg := cfg
					cfg.Path, cfg.Size, cfg.Pool = filepath.Join(t.TempDir(), "disk.img"), size, pool
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

// TestNoRoomToReserve: a file system that has less room than is to be reserved says how much, and none of it is gone then.
func TestNoRoomToReserve(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "softiser")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != unix.TMPFS_MAGIC || fs.Blocks == 0 {
		t.Skip("no file system that refuses at once what it can never hold")
	}
	tooMuch := int64(fs.Blocks)*fs.Bsize + 1<<20
	path := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	told := func(err error) {
		t.Helper()
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "the file has 1048576 of them, and its file system has ") || !strings.Contains(err.Error(), " bytes free") {
			t.Error(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Size != 1<<20 || st.Blocks*512 != 1<<20 {
			t.Errorf("the file has %d bytes, %d of them on disk, %v", st.Size, st.Blocks*512, err)
		}
	}
	_, err = Open(Config{Path: path, Size: tooMuch, Prealloc: true})
	told(err)
	d, err := Open(Config{Path: path, Size: 1 << 20, Prealloc: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	told(d.Resize(tooMuch))
}

// TestReservedStaysReserved: a discard takes nothing of a preallocated file's space away.
func TestReservedStaysReserved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	const size = 4 << 20
	d, err := Open(Config{Path: path, Size: size, Prealloc: true})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p := bytes.Repeat([]byte{7}, 1<<20)
	if _, err := d.WriteAt(p, 0); err != nil {
		t.Fatal(err)
	}
	if d.Info().Discard {
		if err := d.Discard(0, size); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Blocks*512 < size {
		t.Errorf("%d bytes are reserved, %v", st.Blocks*512, err)
	}
}

// TestEmptyFile: a file that has no size yet, because whoever has created it has lost it to this process or has
// been killed, has its name made durable before it gets one.
func TestEmptyFile(t *testing.T) {
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20}
	if err := os.WriteFile(cfg.Path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	real, synced := durable.SyncDir, ""
	t.Cleanup(func() { durable.SyncDir = real })
	durable.SyncDir = func(name string) error {
		if st, err := os.Stat(cfg.Path); err != nil || st.Size() != 0 {
			t.Errorf("the file has a size before its name is durable: %v", err)
		}
		synced = name
		return real(name)
	}
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if synced != filepath.Dir(cfg.Path) {
		t.Errorf("the folder that was synced is %q", synced)
	}
}

// TestCloseBesideAFork: a child between fork and exec has the descriptor of a volume that is being closed, and does
// not keep its lock.
func TestCloseBesideAFork(t *testing.T) {
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20}
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(fds, func(name string) bool { to, err := os.Readlink(name); return err == nil && to == cfg.Path })
	if i < 0 {
		t.Fatal("the volume has no descriptor")
	}
	n, err := strconv.Atoi(filepath.Base(fds[i]))
	if err != nil {
		t.Fatal(err)
	}
	child, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	// Whoever has been handed the volume has the lock with it.
	o, err := d.HandOver()
	if err != nil {
		t.Fatal(err)
	}
	back, err := d.HandOver() // who has handed it over goes on if the other one cannot have it
	if err != nil {
		t.Fatal(err)
	}
	defer back.Discard()
	cfg.Opened = &o
	next, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Opened = nil
	for _, d := range []*Device{d, next} {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if d, err := Open(cfg); !errors.Is(err, blockdev.ErrInUse) {
			t.Errorf("what has been handed over is opened: %v", err)
			d.Close()
		}
	}
}

// TestTwoCreators: of two who open a file that was not there, the one who was slower to lock it does not
// take it away from the other, nor serves what has been taken away.
func TestTwoCreators(t *testing.T) {
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20, BlockSize: 512, PhysBlockSize: 4096}
	f, created, err := openFile(cfg)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	other, created2, err := openFile(cfg)
	if err != nil || created2 {
		t.Fatal(created2, err)
	}
	if err := backing.Lock(other, false); err != nil {
		t.Fatal(err)
	}
	if _, err := take(cfg, f, created); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("both have it: %v", err)
	}
	if _, err := os.Stat(cfg.Path); err != nil {
		t.Errorf("the file of the faster one: %v", err)
	}
	other.Close()
	if f, created, err = openFile(cfg); err != nil || created {
		t.Fatal(created, err)
	}
	if err := os.Remove(cfg.Path); err != nil {
		t.Fatal(err)
	}
	if d, err := take(cfg, f, created); err == nil {
		t.Error("a file without a name is served")
		d.Close()
	}
}
