package bench

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// memoryMiB returns the machine's memory; 0: it is not known.
func memoryMiB() int64 {
	var si syscall.Sysinfo_t
	if syscall.Sysinfo(&si) != nil {
		return 0
	}
	return int64(si.Totalram) * int64(si.Unit) >> 20
}

// descriptorsLeft is how many more this process may have; -1: that is not known.
func descriptorsLeft() int {
	var l syscall.Rlimit
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil || syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return -1
	}
	return max(int(min(l.Cur, 1<<30))-len(open), 0)
}

// rusage is what the process has consumed so far.
type rusage struct {
	user, sys  time.Duration
	ctx        int64 // context switches
	majf, minf int64 // page faults
}

func processUsage() rusage {
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) != nil {
		return rusage{}
	}
	return rusage{
		user: time.Duration(ru.Utime.Nano()), sys: time.Duration(ru.Stime.Nano()),
		ctx: ru.Nvcsw + ru.Nivcsw, majf: ru.Majflt, minf: ru.Minflt,
	}
}

func (u rusage) sub(o rusage) rusage {
	return rusage{u.user - o.user, u.sys - o.sys, u.ctx - o.ctx, u.majf - o.majf, u.minf - o.minf}
}

// alignedMemory returns n bytes outside the Go heap: page aligned, never moved,
// zero, and costing memory only where touched.
func alignedMemory(n int) ([]byte, error) {
	mem, err := syscall.Mmap(-1, 0, max(n, 1), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of buffers: %w", n, err)
	}
	return mem[:n], nil
}

const (
	madvPopulateWrite = 23       // MADV_POPULATE_WRITE, which kernels have since 5.14
	populateMost      = 64 << 20 // bytes; who has more in flight may not have memory for all that could be
)

// populate brings the beginning of mem into memory, up to populateMost.
func populate(mem []byte) error {
	return syscall.Madvise(mem[:min(len(mem), populateMost)], madvPopulateWrite)
}

func freeMemory(mem []byte) {
	if cap(mem) > 0 {
		syscall.Munmap(mem[:cap(mem)])
	}
}
