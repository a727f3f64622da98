package thin

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"softiser/blockdev"
)

// block is a metadata block in memory. data is not changed once its transaction
// has been cut; the next one works on copies.
type block struct {
	nr   uint64
	xor  uint32
	data []byte
}

// blocks is the metadata device with a cache, and the blocks of the running
// transaction.
type blocks struct {
	dev    blockdev.Device
	counts *counts // of the metadata device

	mu    sync.RWMutex // guards cache
	cache map[uint64]*block

	// fresh are the blocks that the transaction has allocated: they may be
	// changed in place, and are written by the commit.
	fresh map[uint64]*block
	// storing are those of the transaction that is being stored: the disk does
	// not have them yet.
	storing map[uint64]*block
}

const maxCached = 64 << 10 // blocks: 256 MiB

func newBlocks(dev blockdev.Device) *blocks {
	return &blocks{dev: dev, cache: map[uint64]*block{}, fresh: map[uint64]*block{}}
}

// read returns a block; it must be of the type that xor stands for.
func (t *blocks) read(nr uint64, xor uint32) (*block, error) {
	return t.get(nr, xor, blockdev.Wait)
}

// get is read; with NoWait a block that would have to be fetched is ErrWouldBlock.
func (t *blocks) get(nr uint64, xor uint32, m blockdev.Mode) (*block, error) {
	t.mu.RLock()
	b := t.cache[nr]
	t.mu.RUnlock()
	if b == nil && m != blockdev.Wait {
		return nil, blockdev.ErrWouldBlock
	}
	if b == nil {
		b = &block{nr: nr, xor: xor, data: make([]byte, blockSize)}
		if err := t.fetch(nr, xor, b.data); err != nil {
			return nil, err
		}
		t.mu.Lock()
		if len(t.cache) >= maxCached {
			for k := range t.cache {
				if t.fresh[k] == nil && t.storing[k] == nil {
					delete(t.cache, k)
				}
				if len(t.cache) < maxCached*7/8 {
					break
				}
			}
		}
		t.cache[nr] = b
		t.mu.Unlock()
	}
	if b.xor != xor {
		return nil, fmt.Errorf("%w: block %d is used as two types of block", ErrCorrupt, nr)
	}
	return b, nil
}

// fetch reads a block from the device and verifies it.
func (t *blocks) fetch(nr uint64, xor uint32, p []byte) error {
	if t.counts != nil && nr >= t.counts.n {
		return fmt.Errorf("%w: block %d is beyond the end of the metadata", ErrCorrupt, nr)
	}
	if _, err := t.dev.ReadAt(p, int64(nr)*blockSize); err != nil {
		return fmt.Errorf("reading metadata block %d: %w", nr, err)
	}
	if checksum(p, xor) != le.Uint32(p) || le.Uint64(p[8:]) != nr {
		return fmt.Errorf("%w: block %d has a bad checksum or number", ErrCorrupt, nr)
	}
	if xor == xorNode && !node(p).ordered() {
		return fmt.Errorf("%w: block %d is a node whose keys do not ascend", ErrCorrupt, nr)
	}
	return nil
}

// add allocates a zeroed block with one reference.
func (t *blocks) add(xor uint32) (*block, error) {
	nr, ok := t.counts.alloc()
	if !ok {
		return nil, fmt.Errorf("thin pool metadata is full: %w", blockdev.ErrNoSpace)
	}
	b := &block{nr: nr, xor: xor, data: make([]byte, blockSize)}
	t.mu.Lock()
	t.cache[nr] = b
	t.fresh[nr] = b
	t.mu.Unlock()
	return b, nil
}

// shadow returns a block that may be changed in the place of nr, which loses a
// reference unless it is that block itself. shared reports that nr lives on:
// what it refers to is now referred to twice.
func (t *blocks) shadow(nr uint64, xor uint32) (b *block, shared bool, err error) {
	old, err := t.read(nr, xor)
	if err != nil {
		return nil, false, err
	}
	n := t.counts.get(nr)
	if t.fresh[nr] != nil && n == 1 {
		return old, false, nil
	}
	if b, err = t.add(xor); err != nil {
		return nil, false, err
	}
	copy(b.data, old.data)
	return b, n > 1, t.drop(nr)
}

// drop takes one reference of a block away.
func (t *blocks) drop(nr uint64) error {
	if err := t.counts.dec(nr); err != nil {
		return err
	}
	if t.counts.get(nr) == 0 {
		t.mu.Lock()
		delete(t.fresh, nr)
		delete(t.cache, nr)
		t.mu.Unlock()
	}
	return nil
}

// cut ends the transaction: its blocks, in the order of their numbers, are not
// changed any more.
func (t *blocks) cut() []*block {
	t.mu.Lock()
	defer t.mu.Unlock()
	bs := make([]*block, 0, len(t.fresh))
	for nr, b := range t.fresh {
		le.PutUint64(b.data[8:], nr)
		le.PutUint32(b.data, checksum(b.data, b.xor))
		bs = append(bs, b)
	}
	slices.SortFunc(bs, func(a, b *block) int { return cmp.Compare(a.nr, b.nr) })
	t.storing, t.fresh = t.fresh, map[uint64]*block{}
	return bs
}

// stored says that the blocks of the last cut are on disk.
func (t *blocks) stored() {
	t.mu.Lock()
	t.storing = nil
	t.mu.Unlock()
}
