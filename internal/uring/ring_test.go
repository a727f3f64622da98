package uring

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// The kernel's structures, byte by byte.
func TestLayout(t *testing.T) {
	e := Entry{Op: OpCmd, FD: 3, CmdOp: 0x0102030405060708, Addr: 0x11, Len: 0x22, OpFlags: 0x33, UserData: 0x44}
	e.Cmd[0], e.Cmd[79] = 0x55, 0x66
	b := unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e))
	want := make([]byte, 128)
	for at, v := range map[int]byte{0: 46, 4: 3, 8: 8, 9: 7, 10: 6, 11: 5, 12: 4, 13: 3, 14: 2, 15: 1, 16: 0x11, 24: 0x22, 28: 0x33, 32: 0x44, 48: 0x55, 127: 0x66} {
		want[at] = v
	}
	if !bytes.Equal(b, want) {
		t.Errorf("entry\n%x, want\n%x", b, want)
	}
	if n := unsafe.Sizeof(Completion{}); n != 16 {
		t.Errorf("completion of %d bytes", n)
	}
	if n := unsafe.Sizeof(params{}); n != 120 {
		t.Errorf("params of %d bytes", n)
	}
}

func newRing(t *testing.T, n int) *Ring {
	r, err := New(n)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// wait enters until n completions have been taken.
func (r *Ring) wait(t *testing.T, n int) []Completion {
	t.Helper()
	got := make([]Completion, 0, n)
	for len(got) < n {
		if err := r.Enter(1); err != nil {
			t.Fatal(err)
		}
		k := r.Take(got[len(got):n])
		got = got[:len(got)+k]
	}
	return got
}

func TestRounds(t *testing.T) {
	r := newRing(t, 4)
	next := uint64(0)
	for round := range 100 { // the counters pass the ring's end
		n := round%4 + 1
		for i := range n {
			e := r.Next()
			e.Op, e.UserData = OpNop, next+uint64(i)
		}
		for _, c := range r.wait(t, n) {
			if c.UserData != next || c.Res != 0 {
				t.Fatalf("round %d: %+v, want %d", round, c, next)
			}
			next++
		}
	}
}

func TestFull(t *testing.T) {
	r := newRing(t, 2)
	for range 2 {
		if r.Next() == nil {
			t.Fatal("full too soon")
		}
	}
	if r.Next() != nil {
		t.Error("more entries than the ring has")
	}
	if got := r.wait(t, 2); len(got) != 2 || r.Next() == nil {
		t.Errorf("%d completions; still full", len(got))
	}
}

// A read of an event counter ends Enter when another thread writes to it.
func TestWake(t *testing.T) {
	r := newRing(t, 2)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "eventfd")
	defer f.Close()
	buf, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(buf)
	e := r.Next()
	e.Op, e.FD, e.Addr, e.Len, e.UserData = OpRead, int32(fd), uint64(uintptr(unsafe.Pointer(&buf[0]))), 8, 7
	if err := r.Enter(0); err != nil {
		t.Fatal(err)
	}
	var one [1]Completion
	if r.Take(one[:]) != 0 {
		t.Fatal("the read ended before anything was written")
	}
	go f.Write([]byte{5, 0, 0, 0, 0, 0, 0, 0})
	if got := r.wait(t, 1)[0]; got.UserData != 7 || got.Res != 8 || buf[0] != 5 {
		t.Errorf("%+v, counter %d", got, buf[0])
	}
}

// What the kernel refuses comes as the result of the entry.
func TestRefused(t *testing.T) {
	r := newRing(t, 2)
	e := r.Next()
	e.Op, e.FD = OpCmd, -1
	if got := r.wait(t, 1)[0]; got.Res != -int32(unix.EBADF) {
		t.Errorf("command to no file: %d", got.Res)
	}
}
