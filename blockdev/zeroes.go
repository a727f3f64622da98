package blockdev

import (
	"fmt"
	"sync"
	"syscall"

	"softiser/internal/resident"
)

// zeroSize is the length of the shared zero region. Longer holes are lent as
// several slices of it.
const zeroSize = 2 << 20

// zeroRegion is mapped without write permission: whoever tries to store into a
// lent hole gets EFAULT, and reading it never allocates, because every page of
// it is the kernel's one zero page.
var zeroRegion = sync.OnceValue(func() []byte {
	mem, err := syscall.Mmap(-1, 0, zeroSize, syscall.PROT_READ, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		panic(fmt.Sprintf("blockdev: mapping %d bytes of zeroes: %v", zeroSize, err))
	}
	resident.Add(mem) // for good
	return mem
})

// Zeroes appends slices of n zero bytes in all to dst. They are shared and must
// not be written to.
func Zeroes(dst [][]byte, n int64) [][]byte {
	z := zeroRegion()
	for n > 0 {
		k := min(n, int64(len(z)))
		dst = append(dst, z[:k:k])
		n -= k
	}
	return dst
}
