package file

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/internal/await"
)

// store fills a lease from a file by readv, as the receive path does: the
// kernel stores into the mapping, and where it cannot there is an error instead
// of a SIGBUS.
func store(l *blockdev.Lease, p []byte) error {
	fd, err := unix.MemfdCreate("data", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, p); err != nil {
		return err
	}
	_, err = unix.Preadv(fd, l.Segs, 0)
	return err
}

// load copies a lease out by writev, as the transmit path does.
func load(l *blockdev.Lease) ([]byte, error) {
	fd, err := unix.MemfdCreate("data", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if _, err := unix.Pwritev(fd, l.Segs, 0); err != nil {
		return nil, err
	}
	p := make([]byte, l.Len)
	_, err = unix.Pread(fd, p, 0)
	return p, err
}

func mount(t *testing.T, args ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", append(args, dir)...).CombinedOutput(); err != nil {
		t.Skipf("cannot mount here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("umount %s: %v", dir, err)
		}
	})
	return dir
}

// TestFullDisk fills a file system through leases and copies. The command that
// finds it full fails with ErrNoSpace; everything else goes on.
func TestFullDisk(t *testing.T) {
	image := func(t *testing.T, mkfs ...string) string {
		if _, err := exec.LookPath(mkfs[0]); err != nil {
			t.Skip(err)
		}
		img := filepath.Join(t.TempDir(), "fs.img")
		if err := os.WriteFile(img, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(img, 16<<20); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(mkfs[0], append(mkfs[1:], img)...).CombinedOutput(); err != nil {
			t.Skipf("%s: %v: %s", mkfs[0], err, out)
		}
		return img
	}
	for name, dir := range map[string]func(t *testing.T) string{
		"tmpfs": func(t *testing.T) string { return mount(t, "-t", "tmpfs", "-o", "size=2M", "tmpfs") },
		"ext4":  func(t *testing.T) string { return mount(t, "-o", "loop", image(t, "mkfs.ext4", "-q", "-m", "0")) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir(t), "disk.img")
			const size, step = 64 << 20, 64 << 10
			d, err := Open(Config{Path: path, Size: size})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			data := bytes.Repeat([]byte("full"), step/4)
			var l blockdev.Lease
			var full, written int64 = -1, 0
			for off := int64(0); off < size; off += step {
				err := d.LeaseWrite(&l, off, step, blockdev.Wait)
				if errors.Is(err, blockdev.ErrNoSpace) {
					full = off
					break
				}
				if err != nil {
					t.Fatalf("LeaseWrite at %d = %v, want ErrNoSpace when full", off, err)
				}
				if err := store(&l, data); err != nil {
					t.Fatalf("storing at %d: %v (direct %v)", off, err, l.Direct)
				}
				if err := l.Commit(false); errors.Is(err, blockdev.ErrNoSpace) {
					full = off
					l.Release()
					break
				} else if err != nil {
					t.Fatal(err)
				}
				l.Release()
				written = off + step
			}
			if full < 0 {
				t.Fatal("the disk never became full")
			}
			t.Logf("full after %d KiB", full>>10)
			// WriteAt far away.
			if _, err := d.WriteAt(data, size-step); !errors.Is(err, blockdev.ErrNoSpace) {
				t.Errorf("WriteAt = %v, want ErrNoSpace", err)
			}
			// What was written is there; holes read as zeroes and cost nothing.
			for off := int64(0); off < written; off += step {
				if err := d.LeaseRead(&l, off, step, blockdev.Wait); err != nil {
					t.Fatalf("LeaseRead at %d: %v", off, err)
				}
				if p, err := load(&l); err != nil || !bytes.Equal(p, data) {
					t.Fatalf("data at %d: wrong, %v", off, err)
				}
				l.Release()
			}
			if err := d.LeaseRead(&l, size/2, step, blockdev.Wait); err != nil {
				t.Fatal(err)
			}
			if p, err := load(&l); err != nil || !bytes.Equal(p, make([]byte, step)) {
				t.Errorf("a hole on a full disk: %v", err)
			}
			l.Release()
			// Overwriting needs no space.
			if err := d.LeaseWrite(&l, 0, step, blockdev.Wait); err != nil {
				t.Fatalf("overwriting on a full disk: %v", err)
			}
			if err := store(&l, data); err != nil {
				t.Fatal(err)
			}
			l.Release()
			if err := d.Flush(); err != nil {
				t.Errorf("Flush: %v", err)
			}
			// A discard makes room.
			if err := d.Discard(0, written); err != nil {
				t.Fatal(err)
			}
			if err := d.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := d.LeaseWrite(&l, full, step, blockdev.Wait); err != nil {
				t.Fatalf("LeaseWrite after a discard: %v", err)
			}
			if err := store(&l, data); err != nil {
				t.Fatal(err)
			}
			l.Release()
		})
	}
}

// TestTruncated: somebody shortens the file while it is served.
func TestTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	d, err := Open(Config{Path: path, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.WriteAt(bytes.Repeat([]byte{7}, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	var l blockdev.Lease
	if err := d.LeaseRead(&l, 512<<10, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 256<<10); err != nil {
		t.Fatal(err)
	}
	// The lease was lent before: using it is an error, not the end.
	if _, err := load(&l); !errors.Is(err, unix.EFAULT) {
		t.Errorf("using lost memory = %v, want EFAULT", err)
	}
	l.Release()
	if _, err := d.ReadAt(make([]byte, 4096), 512<<10); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("ReadAt = %v, want ErrMedium", err)
	}
	// The read has noticed: now leases fail as well, also those without a wait.
	if err := d.LeaseRead(&l, 768<<10, 4096, blockdev.NoWait); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("LeaseRead NoWait = %v, want ErrWouldBlock", err)
	}
	if err := d.LeaseRead(&l, 768<<10, 4096, blockdev.Wait); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("LeaseRead = %v, want ErrMedium", err)
	}
	if err := d.LeaseWrite(&l, 768<<10, 512, blockdev.Probe); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("LeaseWrite that probes = %v, want ErrWouldBlock", err)
	}
	err = d.LeaseWrite(&l, 768<<10, 512, blockdev.Wait)
	if err == nil {
		err = l.Commit(false)
		l.Release()
	}
	if !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("LeaseWrite, or its commit = %v, want ErrMedium", err)
	}
	// Nothing makes the file longer again: what was lost would read as zeroes.
	_, err = d.WriteAt(make([]byte, 512), 768<<10)
	for what, err := range map[string]error{"WriteAt": err, "WriteZeroes": d.WriteZeroes(768<<10, 4096, false), "Discard": d.Discard(768<<10, 4096)} {
		if !errors.Is(err, blockdev.ErrMedium) || !strings.Contains(err.Error(), "only 262144 bytes long") {
			t.Errorf("%s = %v, want ErrMedium and the length", what, err)
		}
	}
	if _, err := d.WriteAt(make([]byte, 512), 256<<10-512); err != nil {
		t.Errorf("WriteAt of what is left = %v", err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() != 256<<10 {
		t.Errorf("the file has %d bytes, %v", fi.Size(), err)
	}
	if err := d.Flush(); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("Flush = %v, want ErrMedium: acknowledged data is gone", err)
	}
	if err := d.FlushRange(0, 4096); err != nil {
		t.Errorf("FlushRange of what is left = %v", err)
	}
	if err := d.LeaseRead(&l, 0, 4096, blockdev.Wait); err != nil {
		t.Errorf("LeaseRead of what is left = %v", err)
	}
	l.Release()
	if got := d.Info().Size; got != 1<<20 {
		t.Errorf("the volume shrank to %d by itself", got)
	}
	// The operator repairs it.
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := d.LeaseRead(&l, 768<<10, 4096, blockdev.Wait); err != nil {
		t.Fatalf("LeaseRead after the repair: %v", err)
	}
	if p, err := load(&l); err != nil || !bytes.Equal(p, make([]byte, 4096)) {
		t.Errorf("content after the repair: %v", err)
	}
	l.Release()
}

// TestTruncationIsNoticed: the watcher alone finds out.
func TestTruncationIsNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	d, err := Open(Config{Path: path, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.WriteAt(bytes.Repeat([]byte{7}, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	var l blockdev.Lease
	await.True(t, "a truncated page is no longer lent", func() bool {
		err := d.LeaseRead(&l, 512<<10, 4096, blockdev.NoWait)
		if err == nil {
			l.Release()
		}
		return errors.Is(err, blockdev.ErrWouldBlock)
	})
}

// TestGrowth: a volume without a stated size follows its file.
func TestGrowth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, make([]byte, 8192+100), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if got := d.Info().Size; got != 8192 {
		t.Fatalf("size = %d, want whole blocks", got)
	}
	sizes := make(chan int64, 4)
	defer d.OnResize(func(i blockdev.Info) { sizes <- i.Size })()
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-sizes:
		if n != 1<<20 {
			t.Errorf("grown to %d", n)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("growth was not noticed")
	}
	if _, err := d.WriteAt(make([]byte, 512), 1<<20-512); err != nil {
		t.Error(err)
	}
	if err := d.Resize(1 << 50); err == nil {
		t.Error("growing beyond the room for it was accepted")
	}
}

// TestSparse: an enormous volume is mapped without using memory or disk.
func TestSparse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	const size = 8 << 40
	d, err := Open(Config{Path: path, Size: size})
	if errors.Is(err, unix.EFBIG) {
		t.Skip("this file system has no files of 8 TiB")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var l blockdev.Lease
	for _, off := range []int64{0, size / 3 &^ 4095, size - 1<<20} {
		if err := d.LeaseRead(&l, off, 1<<20, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		l.Release()
		if _, err := d.WriteAt(make([]byte, 512), off); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 > 1<<20 {
		t.Errorf("the file uses %d bytes", st.Blocks*512)
	}
}

// TestUnlinked: a file that was removed is served to the end.
func TestUnlinked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	d, err := Open(Config{Path: path, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	p := bytes.Repeat([]byte{3}, 4096)
	if _, err := d.WriteAt(p, 8192); err != nil {
		t.Fatal(err)
	}
	var l blockdev.Lease
	if err := d.LeaseRead(&l, 8192, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	if got, err := load(&l); err != nil || !bytes.Equal(got, p) {
		t.Errorf("content: %v", err)
	}
	l.Release()
	if err := d.Flush(); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, 16384), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	small := filepath.Join(dir, "small")
	if err := os.WriteFile(small, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Path: filepath.Join(dir, "missing")}, "state a size to create it"},
		{Config{Path: filepath.Join(dir, "missing"), ReadOnly: true, Size: 4096}, "no such file"},
		{Config{Path: filepath.Join(dir, "no/such/folder"), Size: 4096}, "no such file"},
		{Config{Path: filepath.Join(dir, "new"), Size: 1000}, "multiple of the block size"},
		{Config{Path: filepath.Join(dir, "new"), Size: 4096, BlockSize: 1024}, "must be 512 or 4096"},
		{Config{Path: filepath.Join(dir, "new"), Size: 4096, PhysBlockSize: 1000}, "power of two"},
		{Config{Path: big, Size: 8192}, "raise the size"},
		{Config{Path: big, Size: 32768, ReadOnly: true}, "the volume is read-only"},
		{Config{Path: empty}, "the file is empty"},
		{Config{Path: small}, "the file has 100 bytes, which is less than a block of 512"},
		{Config{Path: fifo, Size: 4096}, "not a regular file"},
		{Config{Path: "/dev/null", Size: 4096}, "not a regular file"},
		{Config{Path: dir, Size: 4096}, "directory"},
	} {
		d, err := Open(c.cfg)
		if err == nil {
			d.Close()
			t.Errorf("Open(%+v) succeeded, want %q", c.cfg, c.want)
		} else if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.cfg.Path) {
			t.Errorf("Open(%+v) = %v, want it to name the path and %q", c.cfg, err, c.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a refused volume left its file behind")
	}
}

func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, bytes.Repeat([]byte{9}, 16384), 0o400); err != nil {
		t.Fatal(err)
	}
	d, err := Open(Config{Path: path, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	// Readers share.
	d2, err := Open(Config{Path: path, ReadOnly: true})
	if err != nil {
		t.Fatalf("second reader: %v", err)
	}
	defer d2.Close()
	var l blockdev.Lease
	if err := d.LeaseRead(&l, 0, 8192, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	if p, err := load(&l); err != nil || p[100] != 9 {
		t.Error(err)
	}
	l.Release()
	_, werr := d.WriteAt(make([]byte, 512), 0)
	for name, err := range map[string]error{
		"WriteAt":     werr,
		"LeaseWrite":  d.LeaseWrite(&l, 0, 512, blockdev.Wait),
		"Discard":     d.Discard(0, 4096),
		"WriteZeroes": d.WriteZeroes(0, 4096, true),
		"Resize":      d.Resize(1 << 20),
	} {
		if !errors.Is(err, blockdev.ErrReadOnly) {
			t.Errorf("%s = %v, want ErrReadOnly", name, err)
		}
	}
	if err := d.Flush(); err != nil {
		t.Errorf("Flush: %v", err)
	}
}

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	d, err := Open(Config{Path: path, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, ro := range []bool{false, true} {
		_, err := Open(Config{Path: path, ReadOnly: ro})
		if !errors.Is(err, blockdev.ErrInUse) || !strings.Contains(err.Error(), "locked by this process, for another volume") {
			t.Errorf("second Open (read-only %v) = %v, want ErrInUse and that the lock is our own", ro, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = Open(Config{Path: path}); err != nil {
		t.Fatalf("Open after Close: %v", err)
	}
	d.Close()
}

// TestMadeAtOnce: of several that open a file which is missing, one has it, and the others are told that it
// is in use.
func TestMadeAtOnce(t *testing.T) {
	const openers = 4
	for range 100 {
		path := filepath.Join(t.TempDir(), "disk.img")
		begin, opened := make(chan struct{}), make(chan *Device, openers)
		var wg sync.WaitGroup
		for range openers {
			wg.Go(func() {
				<-begin
				d, err := Open(Config{Path: path, Size: 1 << 20})
				switch {
				case err == nil:
					opened <- d
				case !errors.Is(err, blockdev.ErrInUse):
					t.Error(err)
				}
			})
		}
		close(begin)
		wg.Wait()
		if n := len(opened); n != 1 {
			t.Fatalf("%d have it", n)
		}
		if err := (<-opened).Close(); err != nil {
			t.Error(err)
		}
	}
}
