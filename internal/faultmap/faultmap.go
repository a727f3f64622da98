// Package faultmap gives tests memory whose page faults matter: such as cannot be
// served, as in the mapping of a volume when its file was truncated, its file system
// is full or its disk fails, and such as have not been taken yet.
package faultmap

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// New returns a mapping of n bytes of which the file behind it holds the first
// good, a multiple of the page size; the rest faults (SIGBUS). The test's end
// unmaps it.
func New(t testing.TB, n, good int) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "map"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(good)); err != nil {
		t.Fatal(err)
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	return mem
}

// Untouched returns n bytes of which no page is in memory before somebody touches it.
// The test's end unmaps them.
func Untouched(t testing.TB, n int) []byte {
	t.Helper()
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	_ = syscall.Madvise(mem, syscall.MADV_NOHUGEPAGE) // a kernel without huge pages does not know it
	return mem
}
