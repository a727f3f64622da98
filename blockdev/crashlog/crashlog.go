// Package crashlog is a memory device with a volatile write cache that
// records its history and replays every state that a power cut could have
// left. It is how tests judge FUA, SYNCHRONIZE CACHE and write-through.
//
// The page cache survives kill -9, so killing a target proves nothing about its
// flushes. Here only what a completed flush covered is certain to survive. Any
// other sector may be, independently of the rest, in each of the versions that it
// has had since its last flush: writes reach the medium in any order, are lost, or
// are torn between sectors.
//
//	d := crashlog.New(1<<20, 512)
//	… run something on d; note d.Now() when it acknowledges a promise …
//	for img := range d.States(point, 1000, seed) {
//		… img.ReadAt: is everything there that was promised by then? …
//	}
//
// A point is a moment between two events of the history; 0 is before the first,
// d.Now() after the last so far.
package crashlog

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"sort"
	"sync"

	"softiser/blockdev"
)

// event is one step of the history: a write of data, or a flush of a range.
type event struct {
	off, n int64
	data   []byte // of a write, exactly n bytes; nil for a flush
}

// Device is a block device in memory with a history. It lends pool memory for
// writes and copies for reads.
type Device struct {
	info blockdev.Info
	pool *blockdev.Pool

	mu     sync.Mutex // guards what follows
	data   []byte     // what a reader sees
	events []event
	closed bool
}

// New makes a device of zeroes. Info.WriteCache is set.
func New(size int64, blockSize int) (*Device, error) {
	return NewPool(size, blockSize, blockdev.DefaultPool())
}

// NewPool is New with a pool for the leases.
func NewPool(size int64, blockSize int, pool *blockdev.Pool) (*Device, error) {
	if err := blockdev.CheckGeometry(size, blockSize, blockSize); err != nil {
		return nil, fmt.Errorf("crashlog: %w", err)
	}
	return &Device{
		pool: pool,
		data: make([]byte, size),
		info: blockdev.Info{
			BlockSize:     blockSize,
			PhysBlockSize: blockSize,
			WriteCache:    true,
			Discard:       true,
			ZeroesOnTrim:  true,
			Backend:       "crashlog",
			ID:            "crashlog",
		},
	}, nil
}

// Now returns the point after everything that has happened so far.
func (d *Device) Now() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.events)
}

// Image is the content of the device after a crash.
type Image struct {
	data []byte
}

// ReadAt copies from the image.
func (im *Image) ReadAt(p []byte, off int64) (int, error) {
	if err := blockdev.CheckRange(off, int64(len(p)), int64(len(im.data)), 1); err != nil {
		return 0, err
	}
	return copy(p, im.data[off:]), nil
}

// Bytes returns the whole content. It is valid until the next state.
func (im *Image) Bytes() []byte { return im.data }

// sector is one sector with more than one possible content.
type sector struct {
	off      int64
	versions [][]byte // at least two, oldest first
}

// States replays the crash states at a point: all of them where they are no
// more than limit, else limit of them, among which are always the one with
// nothing unflushed, the one with everything, and random ones by the seed.
func (d *Device) States(point, limit int, seed uint64) iter.Seq[*Image] {
	return func(yield func(*Image) bool) {
		durable, open := d.history(point)
		im := &Image{data: make([]byte, len(durable))}
		show := func(choose func(i, versions int) int) bool {
			copy(im.data, durable)
			for i, s := range open {
				copy(im.data[s.off:], s.versions[choose(i, len(s.versions))])
			}
			return yield(im)
		}
		count := 1
		for _, s := range open {
			if count > limit/len(s.versions) {
				count = limit + 1
				break
			}
			count *= len(s.versions)
		}
		if count <= limit {
			for k := range count {
				rest := k
				if !show(func(_, n int) int { v := rest % n; rest /= n; return v }) {
					return
				}
			}
			return
		}
		rnd := rand.New(rand.NewPCG(seed, uint64(point)))
		for k := range limit {
			choose := func(_, n int) int { return rnd.IntN(n) }
			switch k {
			case 0:
				choose = func(int, int) int { return 0 }
			case 1:
				choose = func(_, n int) int { return n - 1 }
			}
			if !show(choose) {
				return
			}
		}
	}
}

// history returns what is certain at a point, and the sectors that are not.
func (d *Device) history(point int) (durable []byte, open []sector) {
	d.mu.Lock()
	defer d.mu.Unlock()
	point = min(point, len(d.events))
	bs := int64(d.info.BlockSize)
	newer := map[int64][][]byte{} // by sector: contents that have not been flushed, oldest first
	durable = make([]byte, len(d.data))
	for _, e := range d.events[:point] {
		for k := int64(0); k < e.n; k += bs {
			off := e.off + k
			switch list := newer[off]; {
			case e.data != nil:
				newer[off] = append(list, e.data[k:k+bs])
			case len(list) > 0:
				copy(durable[off:], list[len(list)-1])
				delete(newer, off)
			}
		}
	}
	for off, list := range newer {
		certain := append([]byte(nil), durable[off:off+bs]...)
		open = append(open, sector{off, append([][]byte{certain}, list...)})
	}
	sort.Slice(open, func(i, j int) bool { return open[i].off < open[j].off })
	return durable, open
}
