package memory

import (
	"fmt"
	"syscall"
	"time"
)

// FirstTouch is how long the first access to a page takes, on average.
type FirstTouch struct {
	Process time.Duration // by the process that maps it
	Kernel  time.Duration // by the kernel then, in that process's place
}

const (
	page  = 4096
	usual = 2 * time.Microsecond // for both; usual machines have some 0.25 to 0.5 µs
)

// Probe touches n bytes of new memory, whole pages.
func Probe(n int) (t FirstTouch, err error) {
	mem, err := reserve(n)
	if err != nil {
		return t, err
	}
	defer syscall.Munmap(mem)
	pages := time.Duration(n / page)
	began := time.Now()
	for i := 0; i < n; i += page {
		mem[i] = 1
	}
	touched := time.Now()
	err = byKernel(mem)
	return FirstTouch{touched.Sub(began) / pages, time.Since(touched) / pages}, err
}

// String is for people.
func (t FirstTouch) String() string {
	return fmt.Sprintf("%.2f µs a page of 4 KiB, %.2f µs more by the kernel", micros(t.Process), micros(t.Kernel))
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Unusual reports whether memory comes far more slowly than elsewhere.
func (t FirstTouch) Unusual() bool { return t.Process+t.Kernel > usual }
