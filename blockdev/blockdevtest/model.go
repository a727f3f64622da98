package blockdevtest

import (
	"math/rand/v2"
	"sync"
	"testing"

	"softiser/blockdev"
)

// testModel compares random operations with a byte array.
func testModel(t *testing.T, b Backend) {
	dev := b.open(t, size)
	m := &model{b: b, dev: dev, want: make([]byte, size), rnd: rand.New(rand.NewPCG(2, 3))}
	m.blocks = func(max int) (int64, int64) {
		bs := int64(dev.Info().BlockSize)
		n := (1 + m.rnd.Int64N(int64(max))) * bs
		return m.rnd.Int64N((size-n)/bs+1) * bs, n
	}
	for range steps(1500) {
		m.step(t)
	}
	b.want(t, dev, m.want, 0)
}

// testConcurrentModel gives every goroutine its own blocks of each page, so
// that neighbours meet in pages, table words and claims but never in bytes.
func testConcurrentModel(t *testing.T, b Backend) {
	const workers = 4
	dev := b.open(t, size)
	var wg sync.WaitGroup
	for g := range workers {
		wg.Go(func() {
			m := &model{b: b, dev: dev, want: make([]byte, size), rnd: rand.New(rand.NewPCG(4, uint64(g)))}
			m.blocks = func(max int) (int64, int64) {
				bs := int64(dev.Info().BlockSize)
				// Stripes of two blocks, each with one owner.
				stripe := m.rnd.Int64N(size/(2*bs*workers))*workers + int64(g)
				if m.rnd.IntN(2) == 0 {
					return stripe * 2 * bs, 2 * bs
				}
				return stripe*2*bs + m.rnd.Int64N(2)*bs, bs
			}
			for i := 0; i < steps(400) && !t.Failed(); i++ {
				m.step(t)
			}
		})
	}
	wg.Wait()
}

// steps shortens long tests where they are asked to be short.
func steps(n int) int {
	if testing.Short() {
		return n / 4
	}
	return n
}

type model struct {
	b      Backend
	dev    blockdev.Device
	want   []byte
	rnd    *rand.Rand
	blocks func(max int) (off, n int64)
	lease  blockdev.Lease
}

// step does one operation. It runs on any goroutine and reports by Errorf.
func (m *model) step(t *testing.T) {
	off, n := m.blocks(64)
	switch op := m.rnd.IntN(10); op {
	case 0, 1:
		p := pattern(byte(m.rnd.Uint32()), int(n))
		if _, err := m.dev.WriteAt(p, off); err != nil {
			t.Errorf("WriteAt(%d, %d): %v", off, n, err)
			return
		}
		m.written(off, p)
	case 2, 3, 4:
		p := pattern(byte(m.rnd.Uint32()), int(n))
		mode := blockdev.Mode(m.rnd.IntN(2))
		err := m.dev.LeaseWrite(&m.lease, off, int(n), mode)
		if err == blockdev.ErrWouldBlock && mode == blockdev.NoWait {
			return
		}
		if err != nil {
			t.Errorf("LeaseWrite(%d, %d): %v", off, n, err)
			return
		}
		k := 0
		for _, s := range m.lease.Segs {
			k += copy(s, p[k:])
		}
		if err := m.lease.Commit(op == 4 && m.rnd.IntN(16) == 0); err != nil {
			t.Errorf("Commit(%d, %d): %v", off, n, err)
		}
		m.lease.Release()
		m.written(off, p)
	case 5:
		if info := m.dev.Info(); !info.Discard || !info.ZeroesOnTrim {
			return
		}
		if err := m.dev.Discard(off, n); err != nil {
			t.Errorf("Discard(%d, %d): %v", off, n, err)
		}
		clear(m.want[off : off+n])
	case 6:
		if err := m.dev.WriteZeroes(off, n, m.rnd.IntN(2) == 0); err != nil {
			t.Errorf("WriteZeroes(%d, %d): %v", off, n, err)
		}
		clear(m.want[off : off+n])
	case 7:
		p := make([]byte, n)
		if _, err := m.dev.ReadAt(p, off); err != nil {
			t.Errorf("ReadAt(%d, %d): %v", off, n, err)
			return
		}
		m.compare(t, "ReadAt", off, p)
	case 8, 9:
		mode := blockdev.Mode(m.rnd.IntN(2))
		err := m.dev.LeaseRead(&m.lease, off, int(n), mode)
		if err == blockdev.ErrWouldBlock && mode == blockdev.NoWait {
			return
		}
		if err != nil {
			t.Errorf("LeaseRead(%d, %d): %v", off, n, err)
			return
		}
		for _, s := range m.lease.Segs {
			m.compare(t, "LeaseRead", off, s)
			off += int64(len(s))
		}
		m.lease.Release()
	}
}

func (m *model) written(off int64, p []byte) {
	if !m.b.Sink {
		copy(m.want[off:], p)
	}
}

func (m *model) compare(t *testing.T, op string, off int64, p []byte) {
	if i := firstDiff(p, m.want[off:off+int64(len(p))]); i >= 0 {
		t.Errorf("%s: byte %d is %#x, want %#x", op, off+int64(i), p[i], m.want[off+int64(i)])
	}
}
