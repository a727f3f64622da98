// Package memory provides memory for measurements, already touched, and measures how fast this
// machine provides it.
//
// Where a hypervisor backs memory page by page, reclaims what is free and shadows page tables, the
// first access to a page costs tens of times what it costs elsewhere, and costs it twice: once to
// the process, and once to the kernel when it copies for the process.
package memory

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// Map returns n bytes, private and page-aligned, that this process and the kernel in its place have
// touched. The caller unmaps them (syscall.Munmap).
func Map(n int) ([]byte, error) {
	mem, err := reserve(n)
	if err != nil {
		return nil, err
	}
	if err := byKernel(mem); err != nil {
		syscall.Munmap(mem)
		return nil, err
	}
	for i := 0; i < len(mem); i += 64 {
		mem[i] = byte(i >> 6) // lines that differ
	}
	return mem, nil
}

// reserve maps n bytes that nobody has touched.
func reserve(n int) ([]byte, error) {
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return mem, nil
}

// byKernel has the kernel write zeroes over mem.
func byKernel(mem []byte) error {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		return err
	}
	defer zero.Close()
	_, err = io.ReadFull(zero, mem)
	return err
}
