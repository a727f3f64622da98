// Package lvmtest has the fault-injecting disk that the tests of the volume
// manager run on.
package lvmtest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"

	"softiser/blockdev"
)

// ErrCut is what a Disk answers once its power is cut.
var ErrCut = errors.New("lvmtest: power is cut")

// Disk is a sparse disk in memory with a volatile write cache. It can lose
// power after any number of writes; Crash then tells what a real disk may hold:
// all that was flushed, and any part of what was not.
type Disk struct {
	Block int // logical block, bytes; 0 is 512

	mu     sync.Mutex
	size   int64
	pages  pages   // what reads see
	stable pages   // what was there at the last flush
	log    []write // since the last flush
	left   int     // writes until the cut; -1 never
	cut    bool
	writes int
	ties   []*Disk
	noLog  bool
	hooks  blockdev.ResizeHooks
}

type write struct {
	off  int64
	data []byte // nil: zeroes of n bytes
	n    int64
}

// New makes a disk of size bytes that never fails.
func New(size int64) *Disk {
	return &Disk{size: size, pages: pages{}, stable: pages{}, left: -1}
}

// Quiet turns the recording of unflushed writes off: for large tests.
func (d *Disk) Quiet() *Disk { d.noLog = true; return d }

// CutAfter lets n more writes (and flushes) succeed.
func (d *Disk) CutAfter(n int) { d.mu.Lock(); d.left, d.cut = n, n == 0; d.mu.Unlock() }

// Tie makes the disks lose power with d. The ties are for one goroutine.
func (d *Disk) Tie(others ...*Disk) { d.ties = append(d.ties, others...) }

// Writes counts writes and flushes so far.
func (d *Disk) Writes() int { d.mu.Lock(); defer d.mu.Unlock(); return d.writes }

// Crash returns a new disk as it may be found after the power cut: each
// unflushed write has happened, has not, or in some of its 512-byte sectors.
func (d *Disk) Crash(r *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := New(d.size)
	n.Block = d.Block
	n.pages = d.stable.clone()
	for _, w := range d.log {
		switch r.IntN(4) {
		case 0: // lost
		case 1, 2:
			n.pages.put(w)
		case 3:
			for o := int64(0); o < w.n; o += 512 {
				if r.IntN(2) == 0 {
					part := write{off: w.off + o, n: min(512, w.n-o)}
					if w.data != nil {
						part.data = w.data[o : o+part.n]
					}
					n.pages.put(part)
				}
			}
		}
	}
	n.stable = n.pages.clone()
	return n
}

// Clone copies the disk as reads see it.
func (d *Disk) Clone() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := New(d.size)
	n.Block, n.noLog = d.Block, d.noLog
	n.pages, n.stable = d.pages.clone(), d.pages.clone()
	return n
}

// Grow changes the size.
func (d *Disk) Grow(size int64) {
	d.mu.Lock()
	d.size = size
	d.mu.Unlock()
	d.hooks.Tell(d.Info)
}

// Info implements blockdev.Device.
func (d *Disk) Info() blockdev.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	bs := d.Block
	if bs == 0 {
		bs = 512
	}
	return blockdev.Info{Size: d.size, BlockSize: bs, PhysBlockSize: 4096, WriteCache: true, Discard: true, ZeroesOnTrim: true, Backend: "lvmtest"}
}

func (d *Disk) check(off, n int64) error {
	i := d.Info()
	return i.Check(off, n)
}

// ReadAt implements blockdev.Device.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if err := d.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cut {
		return 0, ErrCut
	}
	for done := 0; done < len(p); {
		at := off + int64(done)
		k, o := at/pageSize, at%pageSize
		n := min(int(pageSize-o), len(p)-done)
		if q := d.pages[k]; q != nil {
			copy(p[done:done+n], q.data[o:])
		} else {
			clear(p[done : done+n])
		}
		done += n
	}
	return len(p), nil
}

// step counts one write or flush and says whether it still happens.
func (d *Disk) step() error {
	if d.cut {
		return ErrCut
	}
	d.writes++
	if d.left > 0 {
		d.left--
		if d.left == 0 {
			d.cut = true // this one still happens
			for _, o := range d.ties {
				o.mu.Lock()
				o.cut = true
				o.mu.Unlock()
			}
		}
	}
	return nil
}

func (d *Disk) apply(w write) error {
	if err := d.check(w.off, w.n); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step(); err != nil {
		return err
	}
	d.pages.put(w)
	if !d.noLog {
		d.log = append(d.log, w)
	}
	return nil
}

// WriteAt implements blockdev.Device.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	data := p
	if !d.noLog {
		data = bytes.Clone(p)
	}
	return len(p), d.apply(write{off, data, int64(len(p))})
}

// Flush implements blockdev.Device.
func (d *Disk) Flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step(); err != nil {
		return err
	}
	for _, w := range d.log {
		d.stable.put(w)
	}
	d.log = nil
	return nil
}

// Forget is what a flush that fails leaves on Linux: the pages are taken for clean, so what was
// written since the last flush is still read, but never gets to the disk unless it is written again.
func (d *Disk) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = nil
}

// FlushRange implements blockdev.Device; it flushes everything.
func (d *Disk) FlushRange(off, n int64) error { return d.Flush() }

// Discard implements blockdev.Device.
func (d *Disk) Discard(off, n int64) error { return d.apply(write{off, nil, n}) }

// WriteZeroes implements blockdev.Device.
func (d *Disk) WriteZeroes(off, n int64, _ bool) error { return d.apply(write{off, nil, n}) }

// Extents implements blockdev.Device.
func (d *Disk) Extents(off, n int64) ([]blockdev.Extent, error) {
	if err := d.check(off, n); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []blockdev.Extent
	for at := off; at < off+n; {
		end := min((at/pageSize+1)*pageSize, off+n)
		data := d.pages[at/pageSize] != nil
		if k := len(out); k > 0 && out[k-1].Data == data {
			out[k-1].Len += end - at
		} else {
			out = append(out, blockdev.Extent{Off: at, Len: end - at, Data: data})
		}
		at = end
	}
	return out, nil
}

// LeaseRead implements blockdev.Device with pool memory.
func (d *Disk) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.lease(l, off, n, m); err != nil {
		return err
	}
	at := off
	for _, s := range l.Segs {
		if _, err := d.ReadAt(s, at); err != nil {
			l.Release()
			return err
		}
		at += int64(len(s))
	}
	return nil
}

// LeaseWrite implements blockdev.Device with pool memory.
func (d *Disk) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.lease(l, off, n, m); err != nil {
		return err
	}
	l.Write = true
	return nil
}

func (d *Disk) lease(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.check(off, int64(n)); err != nil {
		return err
	}
	var err error
	if l.Segs, err = blockdev.DefaultPool().Get(l.Segs[:0], n, m); err != nil {
		return err
	}
	l.Off, l.Len, l.Write, l.Direct, l.Owner = off, n, false, false, d
	return nil
}

// CommitLease implements blockdev.Lender.
func (d *Disk) CommitLease(l *blockdev.Lease, fua bool) error {
	at := l.Off
	for _, s := range l.Segs {
		if _, err := d.WriteAt(s, at); err != nil {
			return err
		}
		at += int64(len(s))
	}
	if fua {
		return d.Flush()
	}
	return nil
}

// CommitMayBlock implements blockdev.Lender.
func (d *Disk) CommitMayBlock(*blockdev.Lease, bool) bool { return true }

// ReleaseLease implements blockdev.Lender.
func (d *Disk) ReleaseLease(l *blockdev.Lease) {
	blockdev.DefaultPool().Put(l.Segs)
	l.Segs = l.Segs[:0]
}

// OnResize implements blockdev.Device.
func (d *Disk) OnResize(f func(blockdev.Info)) func() { return d.hooks.Add(f) }

// Close implements blockdev.Device; the content stays.
func (d *Disk) Close() error { return nil }
