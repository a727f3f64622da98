package memory

import (
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// All pages are there before somebody uses them, and the kernel has been at each.
func TestMap(t *testing.T) {
	const pages = 64
	mem, err := Map(pages * page)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mem)
	if n := resident(t, mem); n != pages {
		t.Errorf("%d of %d pages are there", n, pages)
	}
	if mem[1] != 0 || mem[64] == 0 || mem[page+64] == 0 {
		t.Errorf("bytes %d, %d, %d: want what the kernel has written and then the process", mem[1], mem[64], mem[page+64])
	}
	if _, err := Map(-1); err == nil {
		t.Error("a negative length was mapped")
	}
}

// The kernel's pass is one over all of it.
func TestByKernel(t *testing.T) {
	mem := []byte("something that is not zero")
	if err := byKernel(mem); err != nil {
		t.Fatal(err)
	}
	for i, b := range mem {
		if b != 0 {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
}

// resident counts the pages of mem that are in memory.
func resident(t *testing.T, mem []byte) (n int) {
	vec := make([]byte, len(mem)/page)
	if _, _, e := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), uintptr(unsafe.Pointer(&vec[0]))); e != 0 {
		t.Fatal(e)
	}
	for _, v := range vec {
		n += int(v & 1)
	}
	return n
}

func TestProbe(t *testing.T) {
	got, err := Probe(1 << 20)
	if err != nil || got.Process <= 0 || got.Kernel <= 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFirstTouch(t *testing.T) {
	for _, tc := range []struct {
		t       FirstTouch
		unusual bool
		says    string
	}{
		{FirstTouch{250 * time.Nanosecond, 100 * time.Nanosecond}, false, "0.25 µs a page of 4 KiB, 0.10 µs more by the kernel"},
		{FirstTouch{1500 * time.Nanosecond, 490 * time.Nanosecond}, false, "1.50 µs a page of 4 KiB, 0.49 µs more by the kernel"},
		{FirstTouch{13400 * time.Nanosecond, 9 * time.Microsecond}, true, "13.40 µs a page of 4 KiB, 9.00 µs more by the kernel"},
		{FirstTouch{300 * time.Nanosecond, 9 * time.Microsecond}, true, "0.30 µs a page of 4 KiB, 9.00 µs more by the kernel"},
	} {
		if tc.t.Unusual() != tc.unusual || tc.t.String() != tc.says {
			t.Errorf("%+v: %v, %q", tc.t, tc.t.Unusual(), tc.t)
		}
	}
}
