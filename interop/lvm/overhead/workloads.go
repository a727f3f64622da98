package main

import (
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
)

const (
	rounds  = 7
	regions = 4 // of a volume in each round: workloads that need fresh places use one of their own
	size    = 4096
	block   = 64 << 10 // of the thin pool; the snapshot's chunks are 4 KiB
)

// buffer returns page-aligned memory that is not zero.
func buffer(n int) []byte {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		panic(err) // no memory
	}
	for i := range b {
		b[i] = byte(i>>9) | 1
	}
	return b
}

// workload is operations on the places of one region, each once, in a random
// order.
type workload struct {
	name, base string // base: what it is compared with
	volume     string
	read       bool
	step       int64 // distance of the places
	region     int
	depth      int // operations at a time
}

const (
	plain = "write, linear"
	many  = "write, linear, 16 at once"
	reads = "read, linear"
)

// In each round region 0 is written one at a time and region 1 sixteen at a
// time; the snapshot writes region 2, and nobody writes region 3.
var workloads = []workload{
	{plain, plain, "lin", false, size, 0, 1},
	{"origin: first write of a chunk, which is copied out", plain, "org", false, size, 0, 1},
	{"origin: second write", plain, "org", false, size, 0, 1},
	{"snapshot: first write of a chunk", plain, "snp", false, size, 2, 1},
	{"snapshot: second write", plain, "snp", false, size, 2, 1},
	{"thin: first write of a block", plain, "thin", false, block, 0, 1},
	{"thin: second write", plain, "thin", false, block, 0, 1},
	{"thin: first write of a shared block", plain, "tsn", false, block, 0, 1},
	{"thin: second write after that", plain, "tsn", false, block, 0, 1},
	{many, many, "lin", false, size, 1, 16},
	{"origin: first write, 16 at once", many, "org", false, size, 1, 16},
	{"origin: random writes, 16 at once", many, "org", false, size, 1, 16},
	{"thin: first write, 16 at once", many, "thin", false, block, 1, 16},
	{"thin: random writes, 16 at once", many, "thin", false, block, 1, 16},
	{reads, reads, "lin", true, size, 0, 1},
	{"origin: read of what is unmodified", reads, "org", true, size, 3, 1},
	{"snapshot: read of what the origin holds", reads, "snp", true, size, 3, 1},
	{"snapshot: read of what was copied", reads, "snp", true, size, 0, 1},
	{"thin: read", reads, "tsn", true, size, 0, 1},
	{"thin snapshot: read of what is shared", reads, "tss", true, size, 3, 1},
}

// measure returns the time of one operation.
func (w *workload) measure(s side, round int) (time.Duration, error) {
	n := 256
	if w.step == block {
		n = 32
	}
	part := int64(n) * w.step
	start := int64(round*regions+w.region) * part
	order := rand.New(rand.NewPCG(uint64(round), 1)).Perm(n)
	if w.read {
		// Pages that were never touched would cost our mapping a fault each.
		if err := w.pass(s, start, order); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	err := w.pass(s, start, order)
	return time.Since(began) / time.Duration(n), err
}

// pass does every operation once.
func (w *workload) pass(s side, start int64, order []int) error {
	var wg sync.WaitGroup
	errs := make([]error, w.depth)
	for d := range w.depth {
		wg.Go(func() {
			p := buffer(size)
			defer syscall.Munmap(p)
			for i := d; i < len(order) && errs[d] == nil; i += w.depth {
				off := start + int64(order[i])*w.step
				if w.read {
					errs[d] = s.read(w.volume, p, off)
				} else {
					errs[d] = s.write(w.volume, p, off)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
