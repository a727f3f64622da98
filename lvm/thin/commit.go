package thin

import (
	"fmt"
	"maps"
	"slices"

	"softiser/blockdev"
)

// A commit has three steps:
//
//	cut    the trees and space maps are completed; the blocks of the
//	       transaction will not change any more                        under mu
//	store  data and blocks are flushed, then the superblock            no lock
//	end    what the transaction freed may be used again                under mu
//
// While one transaction is stored, blocks are claimed, filled and mapped in the
// next one; it takes copies of the blocks it changes, and no block that either
// this transaction or the state on disk refers to.

// transaction is a state of the metadata that is being stored.
type transaction struct {
	blocks []*block
	super  []byte
	freed  []uint64      // data blocks
	meta   []uint64      // metadata blocks
	done   chan struct{} // closed when it is stored, or err says why not
	err    error
}

// Commit makes everything that was done to the metadata durable.
func (p *Pool) Commit() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.commitLocked()
}

// commitLocked commits with mu held all the time.
func (p *Pool) commitLocked() error {
	t, err := p.cutLocked()
	if t == nil {
		return err
	}
	p.store(t)
	p.endLocked()
	return p.cond.failed
}

// gatherBelow is the largest block that a commit waits for while it is filled:
// one takes less than the flushes of another commit.
const gatherBelow = 1 << 20

// commitSince makes durable what was changed before transaction seen+1 was cut.
// Of many that flush at once, one commits for all that came before it began.
func (p *Pool) commitSince(seen uint64) error {
	p.committing <- struct{}{}
	defer func() { <-p.committing }()
	if p.ended.Load() <= seen {
		p.gather()
	}
	p.mu.Lock()
	if p.cond.failed == nil && p.ended.Load() > seen {
		p.mu.Unlock()
		return nil
	}
	t, err := p.cutLocked()
	p.mu.Unlock()
	if t == nil {
		return err
	}
	p.store(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.under == t {
		p.endLocked()
	}
	return p.cond.failed
}

// gather waits until the blocks that are being filled are mapped, so that one
// commit serves all who write at once. It does not wait for those that begin
// meanwhile.
func (p *Pool) gather() {
	if p.chunk > gatherBelow {
		return
	}
	p.mu.RLock()
	under := slices.Collect(maps.Values(p.filling.cells))
	p.mu.RUnlock()
	for _, ch := range under {
		<-ch
	}
}

// cutLocked ends the running transaction in memory; nil: nothing has changed,
// or the pool has failed. One that is still being stored is waited for.
func (p *Pool) cutLocked() (*transaction, error) {
	if p.under != nil {
		<-p.under.done
		p.endLocked()
	}
	if p.cond.failed != nil || !p.changed {
		return nil, p.cond.failed
	}
	var err error
	for id, d := range p.devs {
		if err == nil && d.changed {
			p.sb.details, err = p.det.insert(p.sb.details, id, d.det.bytes())
			d.changed = false
		}
	}
	// Blocks that are being filled are written as free: after a power cut nothing
	// would refer to them, and they would be lost to the pool.
	for b := range p.filling.blocks {
		p.data.counts.change(b, 0)
	}
	if err == nil {
		err = p.data.store()
	}
	if err == nil {
		err = p.meta.store()
	}
	if err != nil {
		p.cond.fail(commitFailed(err))
		return nil, p.cond.failed
	}
	p.sb.data, p.sb.meta, p.sb.metaBlocks = p.data.root, p.meta.root, p.meta.counts.n
	t := &transaction{blocks: p.blocks.cut(), super: p.sb.encode(), freed: p.data.counts.cut(), meta: p.meta.counts.cut(), done: make(chan struct{})}
	for b := range p.filling.blocks {
		p.data.counts.change(b, 1)
	}
	for _, d := range p.devs {
		d.stored, d.since = d.since, d.stored // stored was empty
	}
	p.under, p.changed, p.batch = t, false, 0
	p.begun.Add(1)
	return t, nil
}

func commitFailed(err error) error {
	return fmt.Errorf("thin pool commit failed, the pool is read-only until it is reopened: %w", err)
}

// store puts a transaction on disk. The superblock makes its mappings count:
// before that, what they point to must be there, and they themselves.
func (p *Pool) store(t *transaction) {
	defer close(t.done)
	data := make(chan error, 1)
	go func() { data <- p.cfg.Data.Flush() }()
	err := writeBlocks(p.cfg.Meta, t.blocks)
	if t.err = <-data; t.err == nil {
		t.err = err
	}
	if t.err != nil {
		return
	}
	if _, t.err = p.cfg.Meta.WriteAt(t.super, 0); t.err == nil {
		t.err = p.cfg.Meta.Flush()
	}
}

// writeBlocks writes blocks, neighbours at once, and makes them durable.
func writeBlocks(dev blockdev.Device, bs []*block) error {
	buf := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(buf)
	for len(bs) > 0 {
		n := 1
		for n < len(bs) && bs[n].nr == bs[0].nr+uint64(n) && (n+1)*blockSize <= len(*buf) {
			n++
		}
		for i, b := range bs[:n] {
			copy((*buf)[i*blockSize:], b.data)
		}
		if _, err := dev.WriteAt((*buf)[:n*blockSize], int64(bs[0].nr)*blockSize); err != nil {
			return fmt.Errorf("writing metadata block %d: %w", bs[0].nr, err)
		}
		bs = bs[n:]
	}
	return dev.Flush()
}

// endLocked makes freed blocks available, data blocks once nobody holds them,
// and passes discards down.
func (p *Pool) endLocked() {
	t := p.under
	p.under = nil
	if t.err != nil {
		p.cond.fail(commitFailed(t.err))
		return
	}
	p.blocks.stored()
	for _, b := range t.freed {
		p.gens.free(b)
	}
	for _, b := range t.meta {
		p.meta.counts.back(b)
	}
	for _, d := range p.devs {
		clear(d.stored)
	}
	p.ended.Add(1)
	p.reclaimLocked()
	p.alarms.levels(p.data.counts, p.meta.counts)
}
