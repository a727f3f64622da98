package thin

import (
	"errors"
	"sync"

	"softiser/blockdev"
)

// cell is a block of a device.
type cell struct{ dev, block uint64 }

// filling are the blocks that are being provisioned. The pool's mu guards it.
type filling struct {
	mu     *sync.RWMutex          // the pool's
	cells  map[cell]chan struct{} // closed when a cell is mapped, or will not be
	blocks map[uint64]bool        // data blocks being filled: allocated, in no tree yet
}

// begin notes that c gets the data block b.
func (f *filling) begin(c cell, b uint64) {
	f.cells[c] = make(chan struct{})
	f.blocks[b] = true
}

// await returns when nobody provisions c; mu is given up while it waits.
func (f *filling) await(c cell) {
	for f.cells[c] != nil {
		ch := f.cells[c]
		f.mu.Unlock()
		<-ch
		f.mu.Lock()
	}
}

// end lets those go on that wait for c.
func (f *filling) end(c cell) {
	close(f.cells[c])
	delete(f.cells, c)
}

// provision gives a virtual block a data block of its own and writes n bytes,
// which are in ps, into it at offset in. The data is complete before the mapping
// exists, so what the block held before never shows. done is false when the
// block has changed in the meantime: look again.
func (d *Device) provision(vb uint64, in int64, ps [][]byte, n int64, stop blockdev.Stop) (done bool, err error) {
	pool := d.p
	c := cell{d.id, vb}
	old, fresh, err := pool.claim(d, c, stop)
	if err != nil || fresh == nil {
		return false, err
	}
	at := int64(*fresh) * pool.chunk
	err = d.fill(at, old, in, ps, n)
	pool.gens.leave(old.gen)
	pool.mu.Lock()
	defer pool.mu.Unlock()
	defer pool.filling.end(c)
	if err == nil {
		err = d.roomToMapLocked(vb, reserve/2)
	}
	delete(pool.filling.blocks, *fresh)
	if err == nil {
		err = d.setLocked(vb, *fresh)
	}
	if err != nil {
		pool.data.counts.giveBack(*fresh)
		pool.use.follow()
		return false, err
	}
	return true, nil
}

// fill writes a whole new block: ps at offset in, the old content or zeroes
// around it. What ps covers is neither read nor zeroed.
func (d *Device) fill(at int64, old mapping, in int64, ps [][]byte, n int64) error {
	p := d.p
	rest := [2][2]int64{{0, in}, {in + n, p.chunk}}
	switch {
	case n == p.chunk || !old.ok && !p.cfg.Zero: // with -Zn the rest of the block is not zeroed
		return writeAll(p.cfg.Data, at+in, ps)
	case p.chunk <= copySize:
		return d.fillAtOnce(at, old, in, ps, rest)
	}
	for _, r := range rest {
		if r[0] == r[1] {
			continue
		}
		var err error
		if old.ok {
			err = copyData(p.cfg.Data, int64(old.data)*p.chunk+r[0], at+r[0], r[1]-r[0])
		} else {
			err = p.cfg.Data.WriteZeroes(at+r[0], r[1]-r[0], false)
		}
		if err != nil {
			return err
		}
	}
	return writeAll(p.cfg.Data, at+in, ps)
}

// fillAtOnce puts a block together in memory: one write for all of it.
func (d *Device) fillAtOnce(at int64, old mapping, in int64, ps [][]byte, rest [2][2]int64) error {
	buf := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(buf)
	b := (*buf)[:d.p.chunk]
	for _, r := range rest {
		if !old.ok {
			clear(b[r[0]:r[1]])
		} else if r[0] < r[1] {
			if _, err := d.p.cfg.Data.ReadAt(b[r[0]:r[1]], int64(old.data)*d.p.chunk+r[0]); err != nil {
				return err
			}
		}
	}
	for _, p := range ps {
		in += int64(copy(b[in:], p))
	}
	_, err := d.p.cfg.Data.WriteAt(b, at)
	return err
}

func copyData(dev blockdev.Device, from, to, n int64) error {
	buf := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(buf)
	for n > 0 {
		p := (*buf)[:min(int64(len(*buf)), n)]
		if _, err := dev.ReadAt(p, from); err != nil {
			return err
		}
		if _, err := dev.WriteAt(p, to); err != nil {
			return err
		}
		from, to, n = from+int64(len(p)), to+int64(len(p)), n-int64(len(p))
	}
	return nil
}

// claim waits until nobody else provisions the block, and allocates a data
// block for it. fresh is nil if it needs none any more. stop may be nil.
func (p *Pool) claim(d *Device, c cell, stop blockdev.Stop) (old mapping, fresh *uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.filling.await(c); p.cond.failed != nil {
			return old, nil, p.cond.failed
		}
		if old, err = d.lookupLocked(c.block); err != nil || old.ok && !old.shared {
			return old, nil, err
		}
		if err = d.roomToMapLocked(c.block, reserve); err == nil {
			var b uint64
			var ok bool
			if b, ok, err = p.allocLocked(); ok && err == nil {
				p.filling.begin(c, b)
				p.cond.roomy()
				p.alarms.levels(p.data.counts, p.meta.counts)
				p.use.follow()
				old.gen = p.gens.enter() // keeps the old block from being reused while it is copied
				return old, &b, nil
			}
			if err == nil {
				err = &blockdev.Error{Op: "allocate", Store: "thin pool", Off: int64(c.block) * p.chunk, Len: p.chunk, Kind: blockdev.ErrNoSpace}
			}
		}
		if !errors.Is(err, blockdev.ErrNoSpace) {
			return old, nil, err
		}
		if !p.cfg.ErrorWhenFull {
			if err = p.cond.waitSpace(p.cfg.FullWait, err, stop); err == nil {
				continue
			}
		}
		if !errors.Is(err, blockdev.ErrStopped) {
			p.full.Add(1)
		}
		return old, nil, err
	}
}

// copyCostLocked is how many metadata blocks the next cut takes at most because a change of block vb of a tree of
// mappings copies nodes that are shared: all that these refer to gets another reference, and what has more than
// two may be in any leaf of the tree of such counts.
func (p *Pool) copyCostLocked(root, vb uint64) (uint64, error) {
	var data, meta, refs uint64
	shared := false
	for range maxHeight {
		n, err := p.maps.read(root)
		if err != nil {
			return 0, err
		}
		shared = shared || p.meta.counts.get(root) > 1
		for i := 0; shared && i < n.len(); i++ {
			switch {
			case !n.leaf():
				if p.meta.counts.get(n.child(i)) >= 2 {
					meta++
				}
			default:
				refs++
				if b, _ := unpack(le.Uint64(n.value(i))); p.data.counts.get(b) >= 2 {
					data++
				}
			}
		}
		if n.leaf() {
			break
		}
		root = n.child(n.descend(vb))
	}
	return p.data.largeCost(data) + p.meta.largeCost(meta) + 2*min(refs, uint64(len(p.data.index))), nil
}

// roomToMapLocked is roomLocked for a change of block vb of a volume.
func (d *volume) roomToMapLocked(vb, extra uint64) error {
	cost, err := d.p.copyCostLocked(d.root, vb)
	if err != nil {
		return err
	}
	return d.p.roomLocked(extra + cost)
}

// Discard implements blockdev.Device: whole blocks are unmapped, and the ends
// zeroed.
func (d *Device) Discard(off, n int64) error { return d.DiscardUntil(off, n, nil) }

// DiscardUntil implements blockdev.SpaceWaiter: the ends of the range may lie in
// shared blocks, which take space to be zeroed.
func (d *Device) DiscardUntil(off, n int64, stop blockdev.Stop) error {
	if err := d.checkWrite(off, n); err != nil {
		return err
	}
	if d.p.cfg.NoDiscard {
		return blockdev.ErrNotSupported
	}
	return d.zero(off, n, true, stop)
}

// WriteZeroes implements blockdev.Device. What is not mapped reads as zeroes
// already; mayUnmap false still leaves mapped blocks mapped. In a pool that does
// not zero new blocks, zeroes are written.
func (d *Device) WriteZeroes(off, n int64, mayUnmap bool) error {
	return d.WriteZeroesUntil(off, n, mayUnmap, nil)
}

// WriteZeroesUntil implements blockdev.SpaceWaiter.
func (d *Device) WriteZeroesUntil(off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	if err := d.checkWrite(off, n); err != nil {
		return err
	}
	if !d.p.cfg.Zero {
		// Zeroes have to be written here: if the block were unmapped, a later write to a
		// part of it would map a block that still holds its last owner's data.
		return d.each(off, n, func(vb uint64, in, _, n int64) error { return d.zeroIn(vb, in, n, stop) })
	}
	return d.zero(off, n, mayUnmap && !d.p.cfg.NoDiscard, stop)
}

func (d *Device) zero(off, n int64, unmap bool, stop blockdev.Stop) error {
	es, err := d.Extents(off, n)
	if err != nil {
		return err
	}
	for _, e := range es {
		if !e.Data {
			continue
		}
		err := d.each(e.Off, e.Len, func(vb uint64, in, at, n int64) error {
			// The last block of a volume may be a short one.
			if unmap && in == 0 && (n == d.p.chunk || e.Off+at+n == d.size) {
				return d.unmap(vb)
			}
			return d.zeroIn(vb, in, n, stop)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// zeroIn zeroes a part of a block, which stays mapped, or all of it.
func (d *Device) zeroIn(vb uint64, in, n int64, stop blockdev.Stop) error {
	m, err := d.lookup(vb)
	if err != nil || !m.ok && d.p.cfg.Zero {
		return err
	}
	if m.ok && !m.shared {
		if own, err := d.zeroOwn(vb, in, n); own || err != nil {
			return err
		}
	}
	_, err = d.writeBlock(vb, in, blockdev.Zeroes(nil, n), n, stop)
	return err
}

// zeroOwn zeroes a part of a block that belongs to this device alone.
func (d *Device) zeroOwn(vb uint64, in, n int64) (own bool, err error) {
	g := d.p.gens.enter()
	defer d.p.gens.leave(g)
	m, err := d.lookup(vb)
	if err != nil || !m.ok || m.shared {
		return false, err
	}
	return true, d.p.cfg.Data.WriteZeroes(int64(m.data)*d.p.chunk+in, n, false)
}

// unmap takes a block out of the device.
func (d *Device) unmap(vb uint64) error {
	p := d.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filling.await(cell{d.id, vb}); p.cond.failed != nil {
		return p.cond.failed
	}
	m, err := d.lookupLocked(vb)
	if err != nil || !m.ok {
		return err
	}
	if err := d.roomToMapLocked(vb, 0); err != nil {
		return err
	}
	p.changed = true
	root, _, err := p.maps.remove(d.root, vb)
	if err != nil {
		p.cond.fail(err)
		return err
	}
	d.det.mapped--
	d.since[vb] = struct{}{}
	p.freedLocked()
	return d.rootLocked(root)
}
