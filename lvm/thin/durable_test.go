package thin

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
)

var errBroken = errors.New("the disk is broken")

// hookDisk is a disk whose calls a test sees, and may have fail.
type hookDisk struct {
	*lvmtest.Disk
	write, read      func(off int64) error
	flush            func() error
	flushes, discard int
}

func (d *hookDisk) WriteAt(p []byte, off int64) (int, error) {
	if d.write != nil {
		if err := d.write(off); err != nil {
			return 0, err
		}
	}
	return d.Disk.WriteAt(p, off)
}

func (d *hookDisk) ReadAt(p []byte, off int64) (int, error) {
	if d.read != nil {
		if err := d.read(off); err != nil {
			return 0, err
		}
	}
	return d.Disk.ReadAt(p, off)
}

func (d *hookDisk) Flush() error {
	d.flushes++
	if d.flush != nil {
		if err := d.flush(); err != nil {
			return err
		}
	}
	return d.Disk.Flush()
}

func (d *hookDisk) FlushRange(int64, int64) error { return d.Flush() }

func (d *hookDisk) Discard(off, n int64) error {
	d.discard++
	return d.Disk.Discard(off, n)
}

// hookPool is a pool on such disks with one open device.
func hookPool(t *testing.T, blocks int, o func(*Config)) (p *Pool, d *Device, meta, data *hookDisk) {
	t.Helper()
	meta, data = &hookDisk{Disk: lvmtest.New(2 << 20)}, &hookDisk{Disk: lvmtest.New(int64(blocks) * chunk)}
	c := Config{Meta: meta, Data: data, ChunkSize: chunk, Zero: true, Discard: true, ErrorWhenFull: true}
	if o != nil {
		o(&c)
	}
	p, err := Open(c)
	must(t, err)
	must(t, p.Create(1, 1))
	d, err = p.Device(1, 100*chunk, "t", false)
	must(t, err)
	return p, d, meta, data
}

func writeTo(t *testing.T, d *Device, block int64, b byte) {
	t.Helper()
	_, err := d.WriteAt(bytes.Repeat([]byte{b}, chunk), block*chunk)
	must(t, err)
}

// afterCrash opens what the disks may hold after a power cut.
func afterCrash(t *testing.T, meta, data *hookDisk, seed uint64) *Pool {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	m := meta.Crash(r)
	p, err := openPool(m, data.Crash(r), nil)
	must(t, err)
	check(t, m)
	return p
}

// TestCommitFails: when a step of a commit fails the superblock is not written, and
// nothing is acknowledged any more.
func TestCommitFails(t *testing.T) {
	for name, fail := range map[string]func(meta, data *hookDisk){
		"flush of the data":   func(_, data *hookDisk) { data.flush = func() error { return errBroken } },
		"write of the blocks": func(meta, _ *hookDisk) { meta.write = func(off int64) error { return errBroken } },
		"flush of the blocks": func(meta, _ *hookDisk) { meta.flush = func() error { return errBroken } },
		"write of the superblock": func(meta, _ *hookDisk) {
			meta.write = func(off int64) error {
				if off == 0 {
					return errBroken
				}
				return nil
			}
		},
	} {
		p, d, meta, data := hookPool(t, 8, nil)
		before := make([]byte, blockSize)
		_, err := meta.Disk.ReadAt(before, 0)
		must(t, err)
		writeTo(t, d, 0, 1)
		fail(meta, data)
		if err := d.Flush(); !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", name, err)
		}
		meta.write, meta.flush, data.flush = nil, nil, nil
		if err := d.Flush(); !errors.Is(err, blockdev.ErrPoisoned) || p.Err() == nil {
			t.Errorf("%s: a flush after it: %v", name, err)
		}
		after := make([]byte, blockSize)
		_, err = meta.Disk.ReadAt(after, 0)
		must(t, err)
		if !bytes.Equal(before, after) {
			t.Errorf("%s: the superblock was written", name)
		}
	}
}

// TestSuperblockThatWasNotFlushed: a pool that is opened again after the flush of its superblock has
// failed, or after its process was killed before it, does not give out blocks that the superblock on
// the disk still uses.
func TestSuperblockThatWasNotFlushed(t *testing.T) {
	for name, forget := range map[string]bool{"failed": true, "killed": false} {
		for seed := range uint64(16) {
			_, d, meta, data := hookPool(t, 2, nil)
			writeTo(t, d, 0, 1)
			must(t, d.Flush())
			must(t, d.Discard(0, chunk))
			n := 0
			meta.flush = func() error {
				if n++; n < 2 {
					return nil // of the blocks
				}
				if forget {
					meta.Forget()
				}
				return errBroken
			}
			if err := d.Flush(); !errors.Is(err, errBroken) || n != 2 {
				t.Fatalf("%s: %v, %d flushes", name, err, n)
			}
			meta.flush = nil

			p, err := Open(Config{Meta: meta, Data: data, ChunkSize: chunk, Zero: true, Discard: true, ErrorWhenFull: true})
			must(t, err)
			d, err = p.Device(1, 100*chunk, "t", false)
			must(t, err)
			writeTo(t, d, 1, 9)
			writeTo(t, d, 2, 9)

			q := afterCrash(t, meta, data, seed)
			e, err := q.Device(1, 100*chunk, "t", false)
			must(t, err)
			got := make([]byte, chunk)
			_, err = e.ReadAt(got, 0)
			must(t, err)
			if !bytes.Equal(got, make([]byte, chunk)) && !bytes.Equal(got, bytes.Repeat([]byte{1}, chunk)) {
				t.Errorf("%s, seed %d: a block that was discarded, or was not, has what was written elsewhere", name, seed)
			}
		}
	}
}

// TestFlushKinds: what is overwritten, discarded, erased or written before a device is
// closed is on disk when that returns.
func TestFlushKinds(t *testing.T) {
	for seed := range uint64(4) {
		p, d, meta, data := hookPool(t, 8, nil)
		writeTo(t, d, 0, 1)
		writeTo(t, d, 1, 1)
		must(t, d.Flush())
		data.flushes = 0
		writeTo(t, d, 0, 2) // in its place: only the data is to be flushed
		must(t, d.Flush())
		if data.flushes == 0 {
			t.Error("a flush that found no new block has not flushed the data")
		}
		must(t, d.Discard(chunk, chunk))
		if n, err := p.Mapped(1); err != nil || n != chunk {
			t.Errorf("%d bytes are mapped after a discard, %v", n, err)
		}
		must(t, d.Flush())
		q := afterCrash(t, meta, data, seed)
		e, err := q.Device(1, 100*chunk, "t", false)
		must(t, err)
		got := make([]byte, 2*chunk)
		_, err = e.ReadAt(got, 0)
		must(t, err)
		if n, _ := q.Mapped(1); n != chunk || !bytes.Equal(got, append(bytes.Repeat([]byte{2}, chunk), make([]byte, chunk)...)) {
			t.Errorf("after the power cut %d bytes are mapped, the first is %d", n, got[0])
		}

		writeTo(t, d, 5, 5)
		must(t, d.Close())
		q = afterCrash(t, meta, data, seed)
		if n, err := q.Mapped(1); err != nil || n != 2*chunk {
			t.Errorf("closed, and after a power cut %d bytes are mapped: %v", n, err)
		}
		d, err = p.Device(1, 100*chunk, "t", false)
		must(t, err)
		data.flushes = 0
		must(t, d.Erase(5*chunk+4096, 4096))
		if data.flushes == 0 {
			t.Error("an erasure was not flushed")
		}
	}
}

// TestFlushWaitsForTheOther: a flush of blocks whose mapping another one is about to
// store returns when that is done.
func TestFlushWaitsForTheOther(t *testing.T) {
	for name, flush := range map[string]func(d *Device) error{
		"all": (*Device).Flush, "range": func(d *Device) error { return d.FlushRange(0, 4096) },
	} {
		synctest.Test(t, func(t *testing.T) {
			p, d, meta, _ := hookPool(t, 8, nil)
			writeTo(t, d, 0, 1)
			meta.flush = func() error { time.Sleep(10 * time.Millisecond); return nil }
			first := make(chan error)
			go func() { first <- d.Flush() }()
			time.Sleep(time.Millisecond)
			began := time.Now()
			must(t, flush(d))
			if took := time.Since(began); took != 19*time.Millisecond {
				t.Errorf("%s: after %v", name, took)
			}
			must(t, <-first)
			meta.flush = nil
			must(t, d.Close())
			must(t, p.Close())
		})
	}
}

// TestFailedFill: a block whose filling fails is free again, in memory and on disk, and
// a block that was given back but is still lent is not taken instead.
func TestFailedFill(t *testing.T) {
	_, d, _, data := hookPool(t, 4, nil)
	for i := range int64(3) {
		writeTo(t, d, i, byte(1+i))
	}
	var l blockdev.Lease
	must(t, d.LeaseRead(&l, 0, chunk, blockdev.Wait))
	must(t, d.Discard(0, chunk))
	must(t, d.Flush())
	data.write = func(int64) error { return errBroken }
	if _, err := d.WriteAt(make([]byte, chunk), 3*chunk); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	data.write = func(off int64) error {
		if off < chunk {
			t.Error("a block that is lent is written")
		}
		return nil
	}
	writeTo(t, d, 3, 9)
	l.Release()
	data.write = nil
	writeTo(t, d, 0, 7) // the block that was lent
	must(t, d.Close())
}

// TestCommitWhileFilling: a block that is being filled while others commit is not lost
// to a power cut.
func TestCommitWhileFilling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, meta, data := hookPool(t, 8, nil)
		writeTo(t, d, 0, 1)
		gate := make(chan struct{})
		data.write = func(int64) error { <-gate; return nil }
		done := make(chan error)
		go func() { _, err := d.WriteAt(make([]byte, chunk), chunk); done <- err }()
		synctest.Wait()
		must(t, p.Commit())
		q, err := openPool(meta.Clone(), data.Clone(), nil)
		must(t, err)
		if u := q.Usage(); u.DataUsed != 1 {
			t.Errorf("%d blocks are in use on disk, one is mapped", u.DataUsed)
		}
		close(gate)
		must(t, <-done)
		must(t, d.Close())
		must(t, p.Close())
		check(t, meta.Disk)
	})
}

// TestRefusals: changes that are refused leave the pool as it is; one that fails
// half-way leaves it read-only.
func TestRefusals(t *testing.T) {
	p, d, _, _ := hookPool(t, 8, nil)
	writeTo(t, d, 0, 1) // not committed yet
	if err := p.Create(1, 9); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
	if err := p.Delete(1, 9); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("deleting an open device: %v", err)
	}
	if err := p.Err(); err != nil || p.Transaction() != 1 {
		t.Errorf("%v; transaction %d", err, p.Transaction())
	}
	must(t, p.Create(2, 2))
	must(t, d.Close())
	must(t, p.Close())

	meta, data := &hookDisk{Disk: p.cfg.Meta.(*hookDisk).Disk}, p.cfg.Data
	p, err := Open(Config{Meta: meta, Data: data, ChunkSize: chunk, Zero: true})
	must(t, err)
	_, err = p.Devices()
	must(t, err)
	meta.read = func(int64) error { return errBroken } // the device's own tree
	if err := p.Delete(1, 3); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	meta.read = nil
	if err := p.Create(3, 3); err == nil || p.Err() == nil || p.Transaction() != 2 {
		t.Errorf("after a change that failed half-way: %v, transaction %d", err, p.Transaction())
	}
}

// TestGivingBack: a volume that ends within a block gives that one back, too, and
// blocks are discarded on the disk below only if that is asked for.
func TestGivingBack(t *testing.T) {
	for _, passdown := range []bool{true, false} {
		p, d, _, data := hookPool(t, 8, func(c *Config) { c.Discard = passdown })
		d = d.Resized(2*chunk + 4096)
		_, err := d.WriteAt(make([]byte, 2*chunk+4096), 0)
		must(t, err)
		must(t, d.Discard(0, 2*chunk+4096))
		if n, err := p.Mapped(1); err != nil || n != 0 {
			t.Errorf("%d bytes are mapped: %v", n, err)
		}
		must(t, d.Flush())
		writeTo(t, d, 0, 1)
		must(t, d.Flush())
		if (data.discard > 0) != passdown {
			t.Errorf("passdown %v: %d discards", passdown, data.discard)
		}
		must(t, d.Close())
		must(t, p.Close())
	}
}

// TestGrowWakes: writers go on the moment a pool has grown.
func TestGrowWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, _, data := hookPool(t, 1, func(c *Config) { c.ErrorWhenFull = false })
		writeTo(t, d, 0, 1)
		done := make(chan error)
		go func() { _, err := d.WriteAt(make([]byte, 512), chunk); done <- err }()
		synctest.Wait()
		began := time.Now()
		data.Grow(2 * chunk)
		must(t, p.Grow())
		must(t, <-done)
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v to notice", took)
		}
		must(t, d.Close())
		must(t, p.Close())
	})
}

// TestCraftedSuper: superblocks with right checksums that do not fit their devices, or
// say that the pool must not be used.
func TestCraftedSuper(t *testing.T) {
	p, good, data := newPool(t, 64, nil)
	must(t, p.Create(1, 1))
	must(t, p.Close())
	for name, c := range map[string]struct {
		change func(*super)
		want   string
	}{
		"flagged":            {func(s *super) { s.flags |= flagNeedsCheck }, ErrNeedsCheck.Error()},
		"metadata too large": {func(s *super) { s.meta.blocks++; s.metaBlocks++ }, "metadata of"},
		"data too large":     {func(s *super) { s.data.blocks++ }, "data blocks on a device"},
		"wrong use":          {func(s *super) { s.data.used++ }, "blocks are in use"},
	} {
		meta := good.Clone()
		craft(t, meta, c.change)
		if _, err := openPool(meta, data.Clone(), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := make([]byte, blockSize)
	_, err := good.ReadAt(b, 0)
	must(t, err)
	b[360] = 1
	le.PutUint32(b, checksum(b, xorSuper))
	if _, err := parseSuper(b); err == nil || !strings.Contains(err.Error(), "not understood") {
		t.Errorf("an unknown feature: %v", err)
	}
}

// TestCraftedBlocks: blocks that are not what they ought to be.
func TestCraftedBlocks(t *testing.T) {
	meta := lvmtest.New(16 * blockSize)
	n := make(node, blockSize)
	n.init(flagLeaf, 8)
	n.insert(0, 5, u64(1<<24))
	putNode(t, meta, 3, n)
	b := newBlocks(meta)
	b.counts = newCounts(8)
	read := func(nr uint64) error {
		delete(b.cache, nr)
		_, err := b.read(nr, xorNode)
		return err
	}
	must(t, read(3))
	_, err := meta.WriteAt(n, 5*blockSize) // block 3, elsewhere
	must(t, err)
	putNode(t, meta, 6, n)
	sector := make([]byte, 512)
	sector[100] = 1 // where there is no entry
	_, err = meta.WriteAt(sector, 6*blockSize+3584)
	must(t, err)
	putNode(t, meta, 12, n)
	for nr, what := range map[uint64]string{5: "that belongs elsewhere", 6: "with a flipped bit", 12: "beyond the end"} {
		if err := read(nr); !errors.Is(err, ErrCorrupt) {
			t.Errorf("block %d, %s: %v", nr, what, err)
		}
	}
	for name, change := range map[string]func(node){
		"more entries than fit": func(n node) { n.setLen(n.max() + 1) },
		"no flags":              func(n node) { le.PutUint32(n[4:], 0) },
		"values too large":      func(n node) { le.PutUint32(n[24:], 16) },
		"room for too many":     func(n node) { le.PutUint32(n[20:], 4096) },
	} {
		x := node(bytes.Clone(n))
		change(x)
		if err := x.check(8); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a node with %s: %v", name, err)
		}
	}
}

// TestMappedBeyond: a block that is mapped to data which the device does not have.
func TestMappedBeyond(t *testing.T) {
	p, d, _, _ := hookPool(t, 8, nil)
	writeTo(t, d, 0, 1)
	p.mu.Lock()
	root, err := p.maps.insert(d.root, 1, u64(pack(8, 0)))
	d.root = root
	p.mu.Unlock()
	must(t, err)
	for _, use := range []func() error{
		func() error { _, err := d.ReadAt(make([]byte, 512), chunk); return err },
		func() error { _, err := d.WriteAt(make([]byte, 512), chunk); return err },
	} {
		if err := use(); !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
	}
}

// TestEraseShared: an erasure leaves what a snapshot has as it is, and is on disk when it
// returns, be it in a new block.
func TestEraseShared(t *testing.T) {
	for seed := range uint64(4) {
		p, d, meta, data := hookPool(t, 8, nil)
		writeTo(t, d, 0, 1)
		writeTo(t, d, 1, 1)
		must(t, p.Snapshot(2, 1, 2))
		must(t, d.Erase(4096, chunk))
		q := afterCrash(t, meta, data, seed)
		for id, erased := range map[uint64]int{1: chunk, 2: 0} {
			e, err := q.Device(id, 100*chunk, "t", false)
			must(t, err)
			got := make([]byte, 2*chunk)
			_, err = e.ReadAt(got, 0)
			must(t, err)
			want := bytes.Repeat([]byte{1}, 2*chunk)
			clear(want[4096 : 4096+erased])
			if !bytes.Equal(got, want) {
				t.Errorf("device %d is another", id)
			}
		}
		must(t, d.Close())
		must(t, p.Close())
	}
}
