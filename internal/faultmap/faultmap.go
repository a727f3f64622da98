// Package faultmap gives tests memory that faults when it is touched, as the
// mapping of a volume does when its file was truncated, its file system is full
// or its disk fails.
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
