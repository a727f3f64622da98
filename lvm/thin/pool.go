package thin

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"softiser/blockdev"
)

// Config says how a pool is opened.
type Config struct {
	Meta, Data blockdev.Device // not closed by the pool
	ChunkSize  int64           // bytes, for a blank metadata device
	NoFormat   bool            // refuse a blank metadata device
	Zero       bool            // zero new blocks (zero_new_blocks)
	Discard    bool            // give freed blocks back to the data device (discards passdown)
	NoDiscard  bool            // ignore discards altogether
	// ErrorWhenFull makes writes fail at once when there is no space. Else they
	// wait for space until FullWait (60 s, dm-thin's no_space_timeout) after the
	// pool ran out of it; from then on they fail at once, too.
	ErrorWhenFull bool
	FullWait      time.Duration
	Pool          *blockdev.Pool
	Notice        func(string) // full and nearly full; may be nil. It is called with the pool locked
}

// Pool is an open thin pool.
type Pool struct {
	cfg   Config
	chunk int64 // data block, bytes
	gens  gens

	// committing has an element while a flush commits. Who puts it there may take mu;
	// never the other way round.
	committing chan struct{}

	// mu guards the metadata in memory. Look-ups hold it for reading, changes
	// for writing; no data is read or written under it, and the metadata is
	// stored without it (commit.go), except by changes that cannot go on before.
	mu      sync.RWMutex
	blocks  *blocks
	sb      super
	data    *dataMap
	meta    *metaMap
	top     tree // device → root of its tree
	det     tree // device → details
	maps    tree // virtual block → data block and time
	devs    map[uint64]*volume
	filling filling      // blocks that are being provisioned
	changed bool         // since the last cut
	under   *transaction // that is being stored; nil: none
	cond    condition
	alarms  alarms
	use     watchers // who are told of each change
	batch   int      // changes since the last commit

	full atomic.Uint64 // writes that failed for lack of space

	// Changed with mu held for writing.
	begun, ended atomic.Uint64 // transactions that were cut, and stored
}

// details of a device: 24 bytes.
type details struct {
	mapped      uint64
	transaction uint64
	created     uint32
	snapped     uint32
}

func parseDetails(b []byte) details {
	return details{le.Uint64(b), le.Uint64(b[8:]), le.Uint32(b[16:]), le.Uint32(b[20:])}
}

func (d details) bytes() []byte {
	b := le.AppendUint64(nil, d.mapped)
	b = le.AppendUint64(b, d.transaction)
	return le.AppendUint32(le.AppendUint32(b, d.created), d.snapped)
}

// Open opens a pool, or makes one on a blank metadata device.
func Open(cfg Config) (*Pool, error) {
	if cfg.Pool == nil {
		cfg.Pool = blockdev.DefaultPool()
	}
	if cfg.FullWait == 0 {
		cfg.FullWait = 60 * time.Second
	}
	p := &Pool{cfg: cfg, blocks: newBlocks(cfg.Meta), devs: map[uint64]*volume{}, committing: make(chan struct{}, 1), alarms: alarms{notice: cfg.Notice}}
	p.filling = filling{mu: &p.mu, cells: map[cell]chan struct{}{}, blocks: map[uint64]bool{}}
	p.cond = condition{mu: &p.mu, alarms: &p.alarms, room: make(chan struct{})}
	p.gens.init()
	p.maps = tree{blocks: p.blocks, valueSize: 8, inc: func(v []byte) error { return p.data.counts.inc(le.Uint64(v) >> 24) },
		dec: func(v []byte) error { return p.data.counts.dec(le.Uint64(v) >> 24) }}
	p.top = tree{blocks: p.blocks, valueSize: 8, inc: func(v []byte) error { return p.blocks.counts.inc(le.Uint64(v)) },
		dec: func(v []byte) error { return p.maps.release(le.Uint64(v), 0) }}
	p.det = tree{blocks: p.blocks, valueSize: 24}
	b := make([]byte, blockSize)
	if _, err := cfg.Meta.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("reading the superblock: %w", err)
	}
	var err error
	if blank(b) {
		if cfg.NoFormat {
			return nil, fmt.Errorf("thin pool: %w: it is blank", ErrCorrupt)
		}
		err = p.format()
	} else {
		err = p.load(b)
	}
	if err != nil {
		return nil, fmt.Errorf("thin pool: %w", err)
	}
	return p, nil
}

func (p *Pool) metaBlocks() uint64 {
	return min(uint64(p.cfg.Meta.Info().Size/blockSize), MaxMetadata)
}

// format writes an empty pool over the metadata device.
func (p *Pool) format() error {
	p.sb.dataBlock = uint32(p.cfg.ChunkSize / 512)
	if err := checkGeometry(p.sb.dataBlock); err != nil {
		return err
	}
	p.chunk = p.cfg.ChunkSize
	n := p.metaBlocks()
	if n < 32 {
		return fmt.Errorf("metadata device of %d bytes is too small", p.cfg.Meta.Info().Size)
	}
	p.meta = newMetaMap(p.blocks, n)
	p.blocks.counts = p.meta.counts
	p.data = newDataMap(p.blocks, uint64(p.cfg.Data.Info().Size/p.chunk))
	p.meta.counts.change(0, 1) // the superblock
	for i := range bitmapsOf(n) {
		p.meta.counts.dirty[i] = true
	}
	for i := range bitmapsOf(p.data.counts.n) {
		p.data.counts.dirty[i] = true
	}
	for _, r := range []struct {
		t    *tree
		root *uint64
	}{{&p.top, &p.sb.mapping}, {&p.det, &p.sb.details}, {&p.data.entries, &p.data.root.bitmaps}, {&p.data.large, &p.data.root.counts}, {&p.meta.large, &p.meta.root.counts}} {
		var err error
		if *r.root, err = r.t.empty(); err != nil {
			return err
		}
	}
	p.changed = true
	return p.commitLocked()
}

// load checks the superblock b against both devices and loads the counts of their blocks.
func (p *Pool) load(b []byte) error {
	s, err := parseSuper(b)
	if err != nil {
		return err
	}
	if s.flags&flagNeedsCheck != 0 {
		return ErrNeedsCheck
	}
	p.sb, p.chunk = *s, int64(s.dataBlock)*512
	if s.meta.blocks > p.metaBlocks() || s.metaBlocks > p.metaBlocks() {
		return fmt.Errorf("%w: metadata of %d blocks on a device of %d", ErrCorrupt, s.meta.blocks, p.metaBlocks())
	}
	if s.data.blocks > uint64(p.cfg.Data.Info().Size/p.chunk) {
		return fmt.Errorf("%w: %d data blocks on a device of %d bytes", ErrCorrupt, s.data.blocks, p.cfg.Data.Info().Size)
	}
	p.meta = newMetaMap(p.blocks, s.meta.blocks)
	if err := p.meta.load(s.meta); err != nil {
		return err
	}
	p.blocks.counts = p.meta.counts
	p.data = newDataMap(p.blocks, s.data.blocks)
	if err := p.data.load(s.data); err != nil {
		return err
	}
	if err := p.settle(b); err != nil {
		return err
	}
	return p.growLocked()
}

// settle makes the superblock b that was found durable. Its writer may have been killed before
// it flushed it, or the flush has failed, and then only the page cache has it: the blocks that it
// frees are still used by the superblock on the disk, which the next power cut would bring back.
func (p *Pool) settle(b []byte) error {
	if p.cfg.Meta.Info().ReadOnly {
		return nil
	}
	_, err := p.cfg.Meta.WriteAt(b, 0) // again: after a flush that failed the kernel takes it for written
	if err == nil {
		err = p.cfg.Meta.Flush()
	}
	if err != nil {
		return fmt.Errorf("making the superblock durable: %w", err)
	}
	return nil
}

// growLocked takes enlarged devices into use.
func (p *Pool) growLocked() error {
	if n := uint64(p.cfg.Data.Info().Size / p.chunk); n > p.data.counts.n {
		p.data.counts.grow(n)
		p.changed = true
	}
	if n := p.metaBlocks(); n > p.meta.counts.n {
		p.meta.counts.grow(n)
		p.changed = true
	}
	if !p.changed {
		return nil
	}
	return p.commitLocked()
}

// Grow takes enlarged metadata and data devices into use; writes that wait for
// space go on.
func (p *Pool) Grow() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.growLocked(); err != nil {
		return err
	}
	p.use.follow()
	p.cond.again()
	p.cond.roomy()
	return nil
}

// SetErrorWhenFull changes Config.ErrorWhenFull; writes that wait for space heed it.
func (p *Pool) SetErrorWhenFull(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cfg.ErrorWhenFull = on
	p.cond.again()
}

// reclaimLocked takes data blocks out of limbo that no lease can refer to.
func (p *Pool) reclaimLocked() {
	passdown := p.cfg.Discard && p.cfg.Data.Info().Discard
	for _, b := range p.gens.reclaim() {
		p.data.counts.back(b)
		if passdown {
			// A discard is advice; one that fails loses nothing.
			_ = p.cfg.Data.Discard(int64(b)*p.chunk, p.chunk)
		}
	}
}

// freedLocked is called when a volume has given blocks back.
func (p *Pool) freedLocked() {
	p.use.follow()
	if p.cond.state == poolFull {
		p.cond.again()
	}
}

// reserve is kept free of new mappings, so that discards and deletions, which
// copy blocks before they free any, still work when the metadata is full.
const reserve = 64

// roomLocked makes sure that the metadata has room for one more change and the
// commit that follows it, and for extra blocks besides.
func (p *Pool) roomLocked(extra uint64) error {
	if p.meta.counts.available() < extra+p.needLocked() || p.batch > 8192 {
		if err := p.commitLocked(); err != nil {
			return err
		}
	}
	if p.meta.counts.available() < extra+p.needLocked() {
		p.alarms.outOf("metadata")
		return fmt.Errorf("thin pool metadata is full: %w", blockdev.ErrNoSpace)
	}
	p.batch++
	return p.cond.failed
}

// needLocked is how many metadata blocks one more change and the next cut take
// at most.
func (p *Pool) needLocked() uint64 {
	return uint64(24 + 2*len(p.data.counts.dirty) + 4*len(p.data.counts.overflow) + 4*len(p.meta.counts.overflow) + 2*len(p.meta.index) + 4*len(p.devs))
}

// allocLocked takes a free data block.
func (p *Pool) allocLocked() (uint64, bool, error) {
	if b, ok := p.data.counts.alloc(); ok {
		return b, true, nil
	}
	// Blocks that were freed since the last commit may be allocated after another one.
	if len(p.data.counts.freed)+len(p.data.counts.limbo) > 0 {
		p.changed = true
		if err := p.commitLocked(); err != nil {
			return 0, false, err
		}
		p.reclaimLocked()
	}
	b, ok := p.data.counts.alloc()
	if !ok {
		p.alarms.outOf("data")
	}
	return b, ok, nil
}

// Usage is how full the pool is.
type Usage struct {
	DataBlocks, DataUsed uint64 // blocks of Chunk bytes
	MetaBlocks, MetaUsed uint64 // blocks of 4 KiB
	Chunk                int64  // bytes
	Transaction          uint64 // number of the last transaction of lvm's
	Refused              uint64 // writes that failed for lack of space
	Failed               bool   // a commit failed: read-only until it is reopened
}

// Usage returns how full the pool is.
func (p *Pool) Usage() Usage {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return Usage{DataBlocks: p.data.counts.n, DataUsed: p.data.counts.used, MetaBlocks: p.meta.counts.n, MetaUsed: p.meta.counts.used,
		Chunk: p.chunk, Transaction: p.sb.transaction, Refused: p.full.Load(), Failed: p.cond.failed != nil}
}

// Err is why the pool is read-only: a commit failed. It is nil while all is well.
func (p *Pool) Err() error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.cond.failed
}

// Close commits. Devices must have been closed.
func (p *Pool) Close() error {
	if len(p.devs) > 0 {
		return blockdev.ErrInUse
	}
	err := p.Commit()
	p.alarms.low.calls.Wait()
	p.use.calls.Wait()
	return err
}
