package udp

import (
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

var (
	lo4  = netip.MustParseAddr("127.0.0.1")
	lo4b = netip.MustParseAddr("127.0.0.2")
	lo6  = netip.MustParseAddr("::1")
)

// open opens a port for the length of the test.
func open(t testing.TB, cfg Config) *Port {
	t.Helper()
	p, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// noAccess is memory that cannot be read.
func noAccess(t *testing.T) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return unsafe.Slice(unsafe.SliceData(b), 100)
}

// batches returns what waits for packets and hands those of one system call to f.
func batches(r *Receiver, f func(from netip.AddrPort, packet []byte)) func() error {
	r.take, r.end = f, func() {}
	var before uint64
	read := func(fd uintptr) bool {
		r.ready(fd)
		return r.stat.calls.Load() != before
	}
	return func() error {
		before = r.stat.calls.Load()
		if err := r.s.rc.Read(read); err != nil {
			return err
		}
		return r.err
	}
}
