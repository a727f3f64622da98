package backing

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/internal/alloctest"
)

// A short read of data that is not in memory copies what it needs and no more; a long one asks for what it needs
// before it faults; one that goes on behind others leaves it to the fault, which reads a window around it. Of a hole
// nothing is read. What is known, or in memory for who may not wait, is lent from the mapping.
func TestBrought(t *testing.T) {
	if unix.Getpagesize() != 4096 {
		t.Skip("the ranges are for pages of 4 KiB")
	}
	var calls []string
	k := linux
	k.pread = func(fd int, p []byte, off int64) (int, error) {
		calls = append(calls, "pread")
		return linux.pread(fd, p, off)
	}
	k.madvise = func(p []byte, advice int) error {
		if advice == unix.MADV_POPULATE_READ {
			calls = append(calls, "populate")
		}
		return linux.madvise(p, advice)
	}
	k.fadvise = func(fd int, off, n int64, advice int) error {
		calls = append(calls, "announce")
		return linux.fadvise(fd, off, n, advice)
	}
	inMemory := false
	k.preadCached = func(int, [][]byte, int64) (int, error) { return 0, unix.EOPNOTSUPP }
	k.mincore = func(_, vec []byte) error {
		for i := range vec {
			vec[i] = 0
			if inMemory {
				vec[i] = 1
			}
		}
		return nil
	}
	v, path := openFile(t, 8<<20, k, func(c *Config) { c.Local, c.Info.InPlace = true, false })
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	content := make([]byte, 4<<20)
	for i := range content {
		content[i] = byte(i>>9) | 1
	}
	if _, err := unix.Pwrite(fd, content, 0); err != nil {
		t.Fatal(err)
	}
	content = append(content, make([]byte, 4<<20)...)
	for _, c := range []struct {
		what string
		off  int64
		n    int
		want []string
	}{
		{"4 KiB", 4096, 4096, []string{"pread"}},
		{"the same again", 4096, 4096, nil},
		{"512 bytes of another page", 65536 + 512, 512, []string{"pread"}},
		{"what follows", 65536 + 4096, 4096, []string{"pread"}},
		{"256 KiB", 256 << 10, 256 << 10, []string{"announce", "populate"}},
		{"what follows", 512 << 10, 4096, []string{"pread"}},
		{"as much as makes a stream", 1 << 20, 1 << 20, []string{"announce", "populate"}},
		{"what follows so much", 2 << 20, 4096, []string{"populate"}},
		{"a long read behind as much", 2<<20 + 4096, 256 << 10, []string{"populate"}},
		{"a hole", 6 << 20, 4096, nil},
		{"what is in memory", 768 << 10, 4096, nil},
		{"a page that is in memory, for who may wait", 832 << 10, 4096, []string{"pread"}},
		{"the same page again", 832 << 10, 4096, nil},
	} {
		mode := blockdev.Wait
		calls, inMemory = nil, strings.Contains(c.what, "in memory")
		switch {
		case c.what == "what is in memory":
			mode = blockdev.NoWait
		case inMemory && !v.inMemory(c.off, int64(c.n)):
			t.Errorf("%s: it is said to be not", c.what)
		}
		var l blockdev.Lease
		if err := v.LeaseRead(&l, c.off, c.n, mode); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if copied := slices.Contains(c.want, "pread"); l.Direct == copied || !bytes.Equal(bytes.Join(l.Segs, nil), content[c.off:c.off+int64(c.n)]) {
			t.Errorf("%s: lent from the mapping %v, or other data", c.what, l.Direct)
		}
		l.Release()
		if !slices.Equal(calls, c.want) {
			t.Errorf("%s: calls %v, want %v", c.what, calls, c.want)
		}
	}
}

// A lease of what is in memory is a copy by one call where a lease that may wait would be one, and asks
// where that call does not exist. What is not in memory, or only in part, or written to by somebody, is
// not had, and nothing of the pool is kept for it.
func TestLeaseCached(t *testing.T) {
	if unix.Getpagesize() != 4096 {
		t.Skip("the ranges are for pages of 4 KiB")
	}
	var calls []string
	var answer error
	most := 1 << 20 // bytes that the call copies
	inMemory := false
	k := linux
	k.preadCached = func(fd int, bufs [][]byte, off int64) (int, error) {
		calls = append(calls, "copy")
		if answer != nil {
			return 0, answer
		}
		n := min(most, len(bufs[0]))
		return linux.pread(fd, bufs[0][:n], off)
	}
	k.pread = func(fd int, p []byte, off int64) (int, error) {
		calls = append(calls, "pread")
		return linux.pread(fd, p, off)
	}
	k.mincore = func(_, vec []byte) error {
		calls = append(calls, "ask")
		for i := range vec {
			vec[i] = 0
			if inMemory {
				vec[i] = 1
			}
		}
		return nil
	}
	pool, err := blockdev.NewPool(2 * blockdev.MaxBuffer)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	v, path := openFile(t, 4<<20, k, func(c *Config) { c.Local, c.Pool = true, pool })
	content := make([]byte, 4<<20)
	for i := range content {
		content[i] = byte(i>>9) | 1
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	const page = 4096
	lease := func(what string, off int64, n int, want error, direct bool, made ...string) {
		t.Helper()
		calls = nil
		var l blockdev.Lease
		if err := v.LeaseCached(&l, off, n); !errors.Is(err, want) || err == nil && (l.Direct != direct || !bytes.Equal(bytes.Join(l.Segs, nil), content[off:off+int64(n)])) {
			t.Errorf("%s: %v, from the mapping %v, or other data", what, err, l.Direct)
		}
		if (l.Owner == nil) != (want != nil) {
			t.Errorf("%s: the owner is %v", what, l.Owner)
		}
		l.Release()
		if !slices.Equal(calls, made) || v.pool.Out() != 0 || v.ranges.Open() != 0 {
			t.Errorf("%s: calls %v, want %v; %d bytes of the pool and %d ranges are out", what, calls, made, v.pool.Out(), v.ranges.Open())
		}
	}
	lease("before anything is known", 0, page, blockdev.ErrWouldBlock, false, "ask")
	v.Announce(0, page) // finds no hole
	lease("in memory", 2*page, page, nil, false, "copy")
	lease("again", 2*page, page, nil, true)
	lease("beside it, half of it known", page, 2*page, blockdev.ErrWouldBlock, false, "ask")
	answer = unix.EAGAIN
	lease("not in memory", 4*page, page, blockdev.ErrWouldBlock, false, "copy")
	answer = unix.EIO
	lease("unreadable", 4*page, page, blockdev.ErrWouldBlock, false, "copy")
	answer, most = nil, page
	lease("in memory in part", 4*page, 2*page, blockdev.ErrWouldBlock, false, "copy")
	most = 1 << 20
	claim := v.exclusive(8*page, page)
	calls = nil
	var l blockdev.Lease
	if err := v.LeaseCached(&l, 8*page, page); !errors.Is(err, blockdev.ErrWouldBlock) || len(calls) > 0 {
		t.Errorf("beside a write: %v, calls %v", err, calls)
	}
	claim.end()
	lease("after the write", 8*page, page, nil, false, "copy")
	lease("behind the end", 4<<20, page, blockdev.ErrOutOfRange, false)
	lease("nothing", 0, 0, blockdev.ErrWouldBlock, false)
	answer = unix.EOPNOTSUPP
	lease("a file system without the call", 16*page, page, blockdev.ErrWouldBlock, false, "copy")
	answer, inMemory = nil, true
	lease("there, what is in memory", 16*page, page, nil, false, "ask", "pread")
	calls = nil
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if err := v.LeaseCached(&l, 32*page, page); err == nil {
		t.Error("lent by a closed volume")
	}
}

// The kernel's own call copies what is in memory, and nothing is allocated for it.
func TestCopiedAtOnce(t *testing.T) {
	var read int
	k := linux
	k.preadCached = func(fd int, bufs [][]byte, off int64) (n int, err error) {
		n, err = preadCached(fd, bufs, off)
		read = n
		return n, err
	}
	v, path := openFile(t, 4<<20, k, func(c *Config) { c.Local = true })
	content := bytes.Repeat([]byte("softiser"), 4<<20/8)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	v.Announce(0, 4096) // finds no hole
	var l blockdev.Lease
	lend := func() error {
		v.pages.clear(0, 1<<20, pageUnknown)
		err := v.LeaseCached(&l, 8192, 8192)
		if err == nil && !bytes.Equal(bytes.Join(l.Segs, nil), content[8192:16384]) {
			t.Error("other data")
		}
		return err
	}
	if err := lend(); err != nil || read != 8192 {
		t.Skipf("not here, %d bytes: %v", read, err) // file systems without such a call; what is in memory is the kernel's affair
	}
	l.Release()
	n := alloctest.PerRun(100, func() {
		v.pages.clear(0, 1<<20, pageUnknown)
		if v.LeaseCached(&l, 8192, 8192) == nil {
			l.Release()
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for a lease", n)
	}
}

// Short reads leave half of the pool to those who cannot do without it: what they have is in the hands of
// peers. Beyond that they are lent from the mapping.
func TestCopiesLeaveHalfOfThePool(t *testing.T) {
	if unix.Getpagesize() != 4096 {
		t.Skip("the ranges are for pages of 4 KiB")
	}
	pool, err := blockdev.NewPool(2 * blockdev.MaxBuffer)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	v, path := openFile(t, 8<<20, linux, func(c *Config) { c.Local, c.Pool = true, pool })
	if err := os.WriteFile(path, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	const n = 16 << 10
	most := int(pool.Cap() / 2 / n)
	leases := make([]blockdev.Lease, 2*most)
	for i := range leases {
		l := &leases[i]
		if err := v.LeaseRead(l, int64(i)*2*n, n, blockdev.Wait); err != nil { // not one behind the other
			t.Fatal(err)
		}
		defer l.Release()
		if l.Direct != (i >= most) {
			t.Fatalf("lease %d of %d: lent from the mapping %v", i, most, l.Direct)
		}
	}
}

// Where the kernel cannot populate, pages are read through memory that is nobody else's: while a
// range is lent its holder does not wait for the pool, whose memory may be with those who wait for
// the range.
func TestReadThroughNeedsNoPool(t *testing.T) {
	var v *Volume
	k := linux
	k.madvise = func(p []byte, advice int) error {
		if advice == unix.MADV_POPULATE_READ || advice == unix.MADV_POPULATE_WRITE {
			return unix.EINVAL
		}
		return linux.madvise(p, advice)
	}
	k.mincore = func(p, vec []byte) error {
		if off := int64(cap(v.mem) - cap(p)); off < 1<<20 {
			return cold(p, vec)
		}
		return linux.mincore(p, vec)
	}
	var read int
	k.pread = func(fd int, p []byte, off int64) (int, error) {
		n, err := linux.pread(fd, p, off)
		read += max(n, 0)
		return n, err
	}
	pool, err := blockdev.NewPool(blockdev.MaxBuffer)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	all, err := pool.Get(nil, blockdev.MaxBuffer, blockdev.NoWait)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Put(all)
	v, path := openFile(t, 2<<20, k, func(c *Config) { c.Pool = pool })
	if err := os.WriteFile(path, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	const n = 128 << 10 // whole pages of any size
	for _, c := range []struct {
		what  string
		lease func(*blockdev.Lease) error
	}{
		{"reading", func(l *blockdev.Lease) error { return v.LeaseRead(l, 0, n, blockdev.Wait) }},
		{"writing", func(l *blockdev.Lease) error { return v.LeaseWrite(l, 1<<20, n, blockdev.Wait) }},
	} {
		read = 0
		var l blockdev.Lease
		if err := c.lease(&l); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if !l.Direct || read != n {
			t.Errorf("%s: direct %v, %d bytes read through, want %d", c.what, l.Direct, read, n)
		}
		l.Release()
	}
}
