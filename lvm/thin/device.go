package thin

import (
	"slices"
	"sync"

	"softiser/blockdev"
)

// Device is an open thin volume. Its size is the caller's business, as with
// dm-thin: the pool only knows which blocks are mapped.
type Device struct {
	*volume
	size int64
}

// volume is what a Device and those that it was resized to have in common: calls
// and leases that began before a resize must find the blocks that are mapped now,
// not those of a tree whose nodes have been used for something else since.
type volume struct {
	p    *Pool
	id   uint64
	name string
	ro   bool

	// Guarded by the pool's mu.
	root    uint64
	det     details
	changed bool

	// Virtual blocks that were mapped or unmapped since the last cut, and in
	// the transaction that is being stored.
	since, stored map[uint64]struct{}
}

// Device opens a volume of size bytes.
func (p *Pool) Device(id uint64, size int64, name string, readOnly bool) (*Device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.devs[id] != nil {
		return nil, blockdev.ErrInUse
	}
	v, err := p.top.lookup(p.sb.mapping, id)
	if err != nil || v == nil {
		return nil, orNoDevice(err, id)
	}
	d := &volume{p: p, id: id, name: name, ro: readOnly, root: le.Uint64(v),
		since: map[uint64]struct{}{}, stored: map[uint64]struct{}{}}
	if d.det, err = p.detailsLocked(id); err != nil {
		return nil, err
	}
	p.devs[id] = d
	return &Device{d, size}, nil
}

// Resized is the same volume with another size. Either closes both.
func (d *Device) Resized(size int64) *Device { return &Device{d.volume, size} }

// Close makes the device's mappings durable and closes it.
func (d *Device) Close() error {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if d.p.devs[d.id] != d.volume {
		return blockdev.ErrClosed
	}
	err := d.p.commitLocked()
	delete(d.p.devs, d.id)
	return err
}

// Info implements blockdev.Device.
func (d *Device) Info() blockdev.Info {
	i := d.p.cfg.Data.Info()
	// Without zeroing, what is not mapped reads as zeroes only until something
	// beside it is written.
	zeroes := !d.p.cfg.NoDiscard && d.p.cfg.Zero
	return blockdev.Info{Size: d.size, BlockSize: i.BlockSize, PhysBlockSize: i.PhysBlockSize, ReadOnly: d.ro || i.ReadOnly,
		WriteCache: true, Discard: !d.p.cfg.NoDiscard, DiscardAlign: int(d.p.chunk), ZeroesOnTrim: zeroes,
		Thin: true, Rotational: i.Rotational, Backend: "lvm", ID: d.name}
}

func (d *Device) check(off, n int64) error {
	return blockdev.CheckRange(off, n, d.size, d.p.cfg.Data.Info().BlockSize)
}

func (d *Device) checkWrite(off, n int64) error {
	if err := d.check(off, n); err != nil {
		return err
	}
	if d.ro || d.p.cfg.Data.Info().ReadOnly {
		return blockdev.ErrReadOnly
	}
	return nil
}

// mapping is what a virtual block is.
type mapping struct {
	data   uint64 // data block
	ok     bool   // mapped
	shared bool   // must be copied before it is written
	gen    uint64 // entered by claim
}

// A mapping on disk has the data block above 24 bits of the time at which it was
// made; the pool's time never exceeds them.
func pack(data uint64, at uint32) uint64       { return data<<24 | uint64(at) }
func unpack(m uint64) (data uint64, at uint32) { return m >> 24, uint32(m & maxTime) }

// lookupLocked finds a virtual block; the pool's mu is held.
func (d *volume) lookupLocked(vb uint64) (mapping, error) {
	return d.findLocked(vb, blockdev.Wait)
}

// findLocked is lookupLocked; with NoWait it is ErrWouldBlock where metadata would have
// to be read.
func (d *volume) findLocked(vb uint64, m blockdev.Mode) (mapping, error) {
	v, err := d.p.maps.find(d.root, vb, m)
	if err != nil || v == nil {
		return mapping{}, err
	}
	data, at := unpack(le.Uint64(v))
	if data >= d.p.data.counts.n {
		return mapping{}, ErrCorrupt
	}
	// A block is shared if it was mapped before the last snapshot. Damaged metadata may
	// also map one block twice, which only the reference count shows.
	return mapping{data: data, ok: true, shared: d.det.snapped > at || d.p.data.counts.get(data) > 1}, nil
}

func (d *volume) lookup(vb uint64) (mapping, error) { return d.find(vb, blockdev.Wait) }

// find is lookup; with NoWait it waits neither for storage, nor for a holder of the pool's lock
// that waits for storage.
func (d *volume) find(vb uint64, m blockdev.Mode) (mapping, error) {
	if err := d.p.rlock(m); err != nil {
		return mapping{}, err
	}
	defer d.p.mu.RUnlock()
	return d.findLocked(vb, m)
}

// rlock takes the pool's mu shared.
func (p *Pool) rlock(m blockdev.Mode) error {
	if m != blockdev.Wait {
		if !p.mu.TryRLock() {
			return blockdev.ErrWouldBlock
		}
		return nil
	}
	p.mu.RLock()
	return nil
}

// setLocked maps a virtual block and drops what was there.
func (d *volume) setLocked(vb, data uint64) error {
	had, err := d.lookupLocked(vb)
	if err != nil {
		return err
	}
	d.p.changed = true
	root, err := d.p.maps.insert(d.root, vb, u64(pack(data, d.p.sb.time)))
	if err != nil {
		d.p.cond.fail(err)
		return err
	}
	if !had.ok {
		d.det.mapped++
	}
	d.since[vb] = struct{}{}
	return d.rootLocked(root)
}

// rootLocked records a new root of the device's tree. The reference to the old
// one went to the new one when it was copied, so the value is replaced without
// dropping it.
func (d *volume) rootLocked(root uint64) error {
	d.changed = true
	if root == d.root {
		return nil
	}
	plain := tree{blocks: d.p.blocks, valueSize: 8, inc: d.p.top.inc}
	top, err := plain.insert(d.p.sb.mapping, d.id, u64(root))
	if err != nil {
		d.p.cond.fail(err)
		return err
	}
	d.p.sb.mapping, d.root = top, root
	return nil
}

// each calls f for every piece of the range that lies in one block.
func (d *Device) each(off, n int64, f func(vb uint64, in, at, n int64) error) error {
	for done := int64(0); done < n; {
		at := off + done
		in := at % d.p.chunk
		k := min(d.p.chunk-in, n-done)
		if err := f(uint64(at/d.p.chunk), in, done, k); err != nil {
			return err
		}
		done += k
	}
	return nil
}

// ReadAt implements blockdev.Device.
func (d *Device) ReadAt(p []byte, off int64) (int, error) {
	if err := d.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	g := d.p.gens.enter()
	defer d.p.gens.leave(g)
	err := d.each(off, int64(len(p)), func(vb uint64, in, at, n int64) error {
		m, err := d.lookup(vb)
		if err != nil {
			return err
		}
		if !m.ok {
			clear(p[at : at+n])
			return nil
		}
		_, err = d.p.cfg.Data.ReadAt(p[at:at+n], int64(m.data)*d.p.chunk+in)
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt implements blockdev.Device.
func (d *Device) WriteAt(p []byte, off int64) (int, error) { return d.WriteAtUntil(p, off, nil) }

// WriteAtUntil implements blockdev.SpaceWaiter.
func (d *Device) WriteAtUntil(p []byte, off int64, stop blockdev.Stop) (int, error) {
	if err := d.checkWrite(off, int64(len(p))); err != nil {
		return 0, err
	}
	err := d.each(off, int64(len(p)), func(vb uint64, in, at, n int64) error {
		one := [1][]byte{p[at : at+n]}
		_, err := d.writeBlock(vb, in, one[:], n, stop)
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// writeBlock writes n bytes, which are in ps, to a virtual block at offset in;
// fresh means that it got a new data block for that. stop may be nil.
func (d *Device) writeBlock(vb uint64, in int64, ps [][]byte, n int64, stop blockdev.Stop) (fresh bool, err error) {
	for {
		own, err := d.writeOwn(vb, in, ps)
		if own || err != nil {
			return false, err
		}
		if done, err := d.provision(vb, in, ps, n, stop); done || err != nil {
			return true, err
		}
	}
}

// writeOwn writes to a block that belongs to this device alone.
func (d *Device) writeOwn(vb uint64, in int64, ps [][]byte) (own bool, err error) {
	g := d.p.gens.enter()
	defer d.p.gens.leave(g)
	m, err := d.lookup(vb)
	if err != nil || !m.ok || m.shared {
		return false, err
	}
	return true, writeAll(d.p.cfg.Data, int64(m.data)*d.p.chunk+in, ps)
}

// writeAll writes buffers one behind the other.
func writeAll(dev blockdev.Device, at int64, ps [][]byte) error {
	for _, p := range ps {
		if _, err := dev.WriteAt(p, at); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}

// Flush implements blockdev.Device.
func (d *Device) Flush() error {
	p := d.p
	p.mu.RLock()
	begun, failed := p.begun.Load(), p.cond.failed
	// Only this volume's own mappings need a commit; one for other volumes could be
	// waiting for storage.
	changed, under := len(d.since) > 0, len(d.stored) > 0
	p.mu.RUnlock()
	if err := d.flushMapping(begun, changed, under, failed); err != nil || changed {
		return err
	}
	return p.cfg.Data.Flush()
}

// FlushRange implements blockdev.Device. It commits only if the mapping of the
// range is not on disk yet.
func (d *Device) FlushRange(off, n int64) error {
	if err := d.check(off, n); err != nil {
		return err
	}
	return d.flushRange(off, n, false)
}

// flushRange is FlushRange. fresh says that the caller has given new data blocks
// to all of the range: whichever commit made that durable has flushed the data.
func (d *Device) flushRange(off, n int64, fresh bool) error {
	p := d.p
	var changed, under bool
	p.mu.RLock()
	begun, failed := p.begun.Load(), p.cond.failed
	for vb := uint64(off / p.chunk); n > 0 && vb <= uint64((off+n-1)/p.chunk) && !changed && len(d.since)+len(d.stored) > 0; vb++ {
		_, now := d.since[vb]
		_, before := d.stored[vb]
		changed, under = changed || now, under || before
	}
	p.mu.RUnlock()
	if err := d.flushMapping(begun, changed, under, failed); err != nil || changed || fresh {
		return err
	}
	g := p.gens.enter()
	defer p.gens.leave(g)
	return d.each(off, n, func(vb uint64, in, _, n int64) error {
		m, err := d.lookup(vb)
		if err != nil || !m.ok {
			return err
		}
		return p.cfg.Data.FlushRange(int64(m.data)*p.chunk+in, n)
	})
}

// flushMapping makes mappings durable: those that have changed since begun
// transactions were cut, with all data that was written before, or those of the
// last one of them, which is being stored. That one's flush of the data may have
// come before what was written last.
func (d *Device) flushMapping(begun uint64, changed, under bool, failed error) error {
	switch {
	case failed != nil:
		return &blockdev.Error{Op: "flush", Store: d.name, Kind: blockdev.ErrPoisoned, Cause: failed}
	case changed:
		return d.p.commitSince(begun)
	case under:
		return d.p.commitSince(begun - 1)
	}
	return nil
}

// Extents implements blockdev.Device.
func (d *Device) Extents(off, n int64) ([]blockdev.Extent, error) {
	if err := d.check(off, n); err != nil {
		return nil, err
	}
	if n == 0 {
		return []blockdev.Extent{{Off: off, Data: true}}, nil
	}
	d.p.mu.RLock()
	defer d.p.mu.RUnlock()
	return d.p.extentsLocked(d.root, off, n)
}

// Content is Extents of a device that need not be open.
func (p *Pool) Content(dev uint64, off, n int64) ([]blockdev.Extent, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	v, err := p.top.lookup(p.sb.mapping, dev)
	if err != nil || v == nil {
		return nil, orNoDevice(err, dev)
	}
	return p.extentsLocked(le.Uint64(v), off, n)
}

// extentsLocked says which parts of [off, off+n) a mapping tree maps.
func (p *Pool) extentsLocked(root uint64, off, n int64) ([]blockdev.Extent, error) {
	var out []blockdev.Extent
	add := func(at, to int64, data bool) {
		at, to = max(at, off), min(to, off+n)
		if at >= to {
			return
		}
		if k := len(out); k > 0 && out[k-1].Data == data {
			out[k-1].Len += to - at
			return
		}
		out = append(out, blockdev.Extent{Off: at, Len: to - at, Data: data})
	}
	next := off
	err := p.maps.walk(root, uint64(off/p.chunk), func(vb uint64, _ []byte) bool {
		at := int64(vb) * p.chunk
		if at >= off+n {
			return false
		}
		add(next, at, false)
		add(at, at+p.chunk, true)
		next = at + p.chunk
		return true
	})
	add(next, off+n, false)
	return slices.Clip(out), err
}

// OnResize implements blockdev.Device; growing is announced further up.
func (d *Device) OnResize(func(blockdev.Info)) func() { return func() {} }

const copySize = 256 << 10

var copyBufs = sync.Pool{New: func() any { b := make([]byte, copySize); return &b }}
