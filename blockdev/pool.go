package blockdev

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"softiser/internal/resident"
)

// Pool is the staging memory of leases that are not direct: page-aligned
// buffers of 4 KiB to 1 MiB, cut from one mapping that the garbage collector
// never sees and that grows to its bound only as it is used. It is a buddy
// allocator: a buffer is a power of two of 4 KiB units, split from a larger one
// when needed and joined with its other half when both are free.
//
//	order  0     1     2    …    8
//	bytes  4 Ki  8 Ki  16 Ki …   1 Mi
//
// Memory that lies elsewhere, but that peers can make the process hold as well,
// counts against the same bound (Reserve).
//
// Every byte that is out is counted; a test that ends with Out() != 0 leaks.
type Pool struct {
	mem    []byte
	notRAM func()       // takes mem out of the memory that no call waits for
	out    atomic.Int64 // bytes of buffers, and reserved

	mu    sync.Mutex          // guards what follows
	kept  int64               // of out: reserved
	free  [maxOrder + 1]int32 // first free unit of each order, none when empty
	next  []int32             // by first unit of a free buffer
	prev  []int32             // likewise
	state []uint8             // by first unit: order, and inUse
	queue []*poolWaiter       // who waits in Get, in order
	puts  uint64              // how often memory came back
	short bool                // somebody got none, and less than a quarter has become free since
}

// poolWaiter is a Get that waits. Who has taken it out of the queue has given it its buffers.
type poolWaiter struct {
	bufs  [][]byte // what Get appends to, then the result
	n     int
	ready chan struct{} // closed with the result
}

const (
	unitShift = 12
	maxOrder  = 8
	// MaxBuffer is the largest buffer of a Pool, bytes.
	MaxBuffer = 1 << (unitShift + maxOrder)
	// DefaultPoolSize bounds the shared pool, bytes.
	DefaultPoolSize = 256 << 20
	// PoolPatience is how long Get waits in Wait mode without anything being given back. Staging
	// memory is held by leases, and leases by peers, so the wait is bounded.
	PoolPatience = time.Second

	none   = -1
	inUse  = 0x80
	inside = 0xff // not the first unit of a buffer
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
	units := int(limit >> unitShift)
	p := &Pool{mem: mem, notRAM: resident.Add(mem), next: make([]int32, units), prev: make([]int32, units), state: make([]uint8, units)}
	for o := range p.free {
		p.free[o] = none
	}
	for u := units - 1<<maxOrder; u >= 0; u -= 1 << maxOrder {
		for i := range 1 << maxOrder {
			p.state[u+i] = inside
		}
		p.putLocked(int32(u), maxOrder)
	}
	return p, nil
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

func orderOf(n int) int {
	if n >= MaxBuffer {
		return maxOrder
	}
	return bits.Len(uint(n-1) >> unitShift)
}

// takeLocked removes a buffer of order o from the free lists, splitting a
// larger one if need be.
func (p *Pool) takeLocked(o int) (int32, bool) {
	if p.out.Load()+1<<(unitShift+o) > int64(len(p.mem)) {
		return 0, false // all free memory is reserved for others
	}
	from := o
	for from <= maxOrder && p.free[from] == none {
		from++
	}
	if from > maxOrder {
		return 0, false
	}
	u := p.free[from]
	p.unlinkLocked(u, from)
	for ; from > o; from-- {
		p.linkLocked(u+1<<(from-1), from-1)
	}
	p.state[u] = uint8(o) | inUse
	return u, true
}

func (p *Pool) putBufLocked(b []byte) {
	u := p.unitOf(b)
	o := int(p.state[u] &^ inUse)
	if p.state[u]&inUse == 0 || p.state[u] == inside || cap(b) != 1<<(unitShift+o) {
		panic("blockdev: a buffer was given back twice, or is not the pool's")
	}
	p.out.Add(-int64(cap(b)))
	p.putLocked(u, o)
}

// putLocked frees a buffer and joins it with its buddy as far as that goes.
func (p *Pool) putLocked(u int32, o int) {
	for o < maxOrder {
		buddy := u ^ 1<<o
		if p.state[buddy] != uint8(o) {
			break
		}
		p.unlinkLocked(buddy, o)
		p.state[max(u, buddy)] = inside
		u = min(u, buddy)
		o++
	}
	p.linkLocked(u, o)
}

func (p *Pool) linkLocked(u int32, o int) {
	p.state[u] = uint8(o)
	head := p.free[o]
	p.next[u], p.prev[u] = head, none
	if head != none {
		p.prev[head] = u
	}
	p.free[o] = u
}

func (p *Pool) unlinkLocked(u int32, o int) {
	if p.prev[u] != none {
		p.next[p.prev[u]] = p.next[u]
	} else {
		p.free[o] = p.next[u]
	}
	if p.next[u] != none {
		p.prev[p.next[u]] = p.prev[u]
	}
}

// unitOf returns the index of a buffer's first unit.
func (p *Pool) unitOf(b []byte) int32 {
	off := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(p.mem)))
	if off >= uintptr(len(p.mem)) || off&(1<<unitShift-1) != 0 {
		panic("blockdev: a buffer was given back that is not the pool's")
	}
	return int32(off >> unitShift)
}
