package blockdev

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"softiser/internal/resident"
)

// Pool is the staging memory of leases that are not direct: page-aligned
// buffers of 4 KiB to 1 MiB, cut (buddies) from one mapping that the garbage collector
// never sees and that grows to its bound only as it is used.
//
// Memory that lies elsewhere, but that peers can make the process hold as well,
// counts against the same bound (Reserve).
//
// Every byte that is out is counted; a test that ends with Out() != 0 leaks.
type Pool struct {
	mem    []byte
	notRAM func()       // takes mem out of the memory that no call waits for
	out    atomic.Int64 // bytes of buffers, and reserved

	mu    sync.Mutex    // guards what follows
	kept  int64         // of out: reserved
	units buddies       // of mem
	queue []*poolWaiter // who waits in Get, in order
	puts  uint64        // how often memory came back
	short bool          // somebody got none, and less than a quarter has become free since
}

// poolWaiter is a Get that waits. Who has taken it out of the queue has given it its buffers.
type poolWaiter struct {
	bufs  [][]byte // what Get appends to, then the result
	n     int
	ready chan struct{} // closed with the result
}

const (
	// MaxBuffer is the largest buffer of a Pool, bytes.
	MaxBuffer = 1 << (unitShift + maxOrder)
	// DefaultPoolSize bounds the shared pool, bytes.
	DefaultPoolSize = 256 << 20
	// PoolPatience is how long Get waits in Wait mode without anything being given back. Staging
	// memory is held by leases, and leases by peers, so the wait is bounded.
	PoolPatience = time.Second
)

// NewPool returns a pool of at most limit bytes (at least MaxBuffer, rounded
// up to a multiple of it).
func NewPool(limit int64) (*Pool, error) {
	if limit < MaxBuffer {
		limit = MaxBuffer
	}
	limit = (limit + MaxBuffer - 1) &^ (MaxBuffer - 1)
	if limit>>unitShift > 1<<30 {
		return nil, fmt.Errorf("blockdev: a pool of %d bytes is too large", limit)
	}
	// Only address space is taken here, for the most the pool may use; pages are allocated when they are touched.
	mem, err := syscall.Mmap(-1, 0, int(limit), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("blockdev: mapping %d bytes of staging memory: %w", limit, err)
	}
	return &Pool{mem: mem, notRAM: resident.Add(mem), units: newBuddies(int(limit >> unitShift))}, nil
}

// DefaultPool is the pool of every device that was not given one.
var DefaultPool = sync.OnceValue(func() *Pool {
	p, err := NewPool(DefaultPoolSize)
	if err != nil {
		// Address space is so short (RLIMIT_AS) that a small one has to do.
		if p, err = NewPool(DefaultPoolSize / 16); err != nil {
			panic(err)
		}
	}
	return p
})

// Out returns how many bytes are out: of buffers, and reserved.
func (p *Pool) Out() int64 { return p.out.Load() }

// Reserve counts n bytes of memory that its caller holds elsewhere against the
// bound of the pool, or reports that they are too many. At most half of a pool can
// be reserved: what peers leave lying about never takes the last buffer from those
// who are about to read or write.
func (p *Pool) Reserve(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept+int64(n) > int64(len(p.mem)/2) || p.out.Load()+int64(n) > int64(len(p.mem)) {
		return false
	}
	p.kept += int64(n)
	p.out.Add(int64(n))
	return true
}

// Unreserve takes n bytes that Reserve has counted off again.
func (p *Pool) Unreserve(n int) {
	if n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if int64(n) > p.kept {
		panic("blockdev: more staging memory was given back than had been reserved")
	}
	p.kept -= int64(n)
	p.out.Add(int64(-n))
	p.cameBackLocked()
}

// Reserved returns how many of the bytes that are out are not buffers of the pool.
func (p *Pool) Reserved() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept
}

// Cap returns the bound of the pool, bytes.
func (p *Pool) Cap() int64 { return int64(len(p.mem)) }

// Get appends buffers of n bytes in all to dst. Contents are undefined, and
// lengths add up to exactly n. If the pool is exhausted it fails with
// ErrWouldBlock: in Wait mode after PoolPatience in which nothing came back, else at once. Those who
// wait are served in order, before anybody else. Others may be on their way here behind one to whom memory was
// refused (the queue of a volume's workers), so nobody gets any in passing until a quarter is free.
func (p *Pool) Get(dst [][]byte, n int, m Mode) ([][]byte, error) {
	if n < 0 || n > len(p.mem) {
		return dst, fmt.Errorf("blockdev: %d bytes of staging memory wanted, the pool has %d: %w", n, len(p.mem), ErrNoSpace)
	}
	p.mu.Lock()
	if len(p.queue) == 0 && (m == Wait || !p.short) {
		if got, ok := p.getLocked(dst, n); ok {
			p.mu.Unlock()
			return got, nil
		}
	}
	p.short = true
	if m != Wait {
		p.mu.Unlock()
		return dst, ErrWouldBlock
	}
	w := &poolWaiter{bufs: dst, n: n, ready: make(chan struct{})}
	p.queue = append(p.queue, w)
	seen := p.puts
	p.mu.Unlock()

	timer := time.NewTimer(PoolPatience)
	defer timer.Stop()
	for {
		select {
		case <-w.ready:
			return w.bufs, nil
		case <-timer.C:
		}
		p.mu.Lock()
		i := slices.Index(p.queue, w)
		if i >= 0 && p.puts == seen {
			p.queue = slices.Delete(p.queue, i, i+1)
			p.serveLocked() // those behind may want less
			p.mu.Unlock()
			return dst, fmt.Errorf("blockdev: %d bytes of staging memory were not free, and none were given back within %v (%d of %d are out): %w",
				n, PoolPatience, p.Out(), len(p.mem), ErrWouldBlock)
		}
		seen = p.puts
		p.mu.Unlock()
		timer.Reset(PoolPatience)
	}
}

// Put gives buffers back. They are the ones that Get returned, each whole.
func (p *Pool) Put(bufs [][]byte) {
	if len(bufs) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, b := range bufs {
		p.putBufLocked(b)
		bufs[i] = nil
	}
	p.cameBackLocked()
}

// Lend makes l a lease of pool memory for the n bytes of owner from off, whose contents are
// undefined. It fails as Get does, and then leaves l free. The owner's ReleaseLease calls
// TakeBack.
func (p *Pool) Lend(l *Lease, owner Lender, off int64, n int, write bool, m Mode) error {
	bufs, err := p.Get(l.Priv.Pool[:0], n, m)
	if err != nil {
		return err
	}
	l.Priv.Pool = bufs
	l.Off, l.Len, l.Write, l.Direct, l.Owner = off, n, write, false, owner
	l.Segs = append(l.Segs[:0], bufs...)
	return nil
}

// TakeBack gives the memory of a lease that Lend has made back to the pool.
func (p *Pool) TakeBack(l *Lease) {
	p.Put(l.Priv.Pool)
	l.Priv.Pool, l.Segs = l.Priv.Pool[:0], l.Segs[:0]
}

// cameBackLocked notes that memory has come back, which those who wait get.
func (p *Pool) cameBackLocked() {
	p.puts++
	p.serveLocked()
	if len(p.queue) == 0 && p.out.Load() <= int64(len(p.mem)/4*3) {
		p.short = false
	}
}

// serveLocked gives those who wait their buffers, as far as there are any.
func (p *Pool) serveLocked() {
	k := 0
	for ; k < len(p.queue); k++ {
		w := p.queue[k]
		bufs, ok := p.getLocked(w.bufs, w.n)
		if !ok {
			break
		}
		w.bufs = bufs
		close(w.ready)
	}
	p.queue = slices.Delete(p.queue, 0, k)
}

// Close gives the memory back. Every buffer must have been returned.
func (p *Pool) Close() error {
	if n := p.Out(); n != 0 {
		return fmt.Errorf("blockdev: %d bytes of staging memory are still out", n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return errors.New("blockdev: pool closed twice")
	}
	mem := p.mem
	p.mem = nil
	p.notRAM()
	return syscall.Munmap(mem)
}

// getLocked takes all or nothing.
func (p *Pool) getLocked(dst [][]byte, n int) ([][]byte, bool) {
	base := len(dst)
	for n > 0 {
		o := orderOf(n)
		u, ok := p.takeLocked(o)
		for !ok && o > 0 {
			// No piece of this size is free, or most is reserved: take several smaller ones.
			o--
			u, ok = p.takeLocked(o)
		}
		if !ok {
			for _, b := range dst[base:] {
				p.putBufLocked(b)
			}
			return dst[:base], false
		}
		size := 1 << (unitShift + o)
		off := int(u) << unitShift
		use := min(size, n)
		// The capacity tells Put the size of the buffer.
		dst = append(dst, p.mem[off:off+use:off+size])
		p.out.Add(int64(size))
		n -= use
	}
	return dst, true
}

// takeLocked takes a buffer of order o, unless all free memory is reserved for others.
func (p *Pool) takeLocked(o int) (unit int32, ok bool) {
	if p.out.Load()+1<<(unitShift+o) > int64(len(p.mem)) {
		return 0, false
	}
	return p.units.take(o)
}

func (p *Pool) putBufLocked(b []byte) {
	o := orderOf(cap(b))
	if cap(b) != 1<<(unitShift+o) || !p.units.put(p.unitOf(b), o) {
		panic("blockdev: a buffer was given back twice, or is not the pool's")
	}
	p.out.Add(-int64(cap(b)))
}

// unitOf returns the index of a buffer's first unit.
func (p *Pool) unitOf(b []byte) int32 {
	off := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(p.mem)))
	if off >= uintptr(len(p.mem)) || off&(1<<unitShift-1) != 0 {
		panic("blockdev: a buffer was given back that is not the pool's")
	}
	return int32(off >> unitShift)
}
