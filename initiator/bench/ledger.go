package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Ledger remembers what has been written to each block of a range. In a file
// it is mapped shared, so that what was entered is in the page cache at once:
// killing this process loses nothing of it. (A crash of this machine may; the
// ledger is for crashes of the target and of the generator.)
//
// The file is little-endian, 64 bytes of header and 12 bytes for each block:
//
//	+----------------+----------------+----------------+----------------+
//	| "SOFTLDG1"                      | seed                            |
//	+----------------+----------------+----------------+----------------+
//	| base: offset of block 0         | blocks                          |
//	+----------------+----------------+----------------+----------------+
//	| block size     | zeroes to 64                                     |
//	+----------------+----------------+----------------+----------------+
//	| issued 0       | acknowledged 0 | durable 0      | issued 1       | …
//
// Each entry is the number of the last write (generation) of the block that
// was issued, acknowledged, and known durable; 0 is "never".
type Ledger struct {
	seed   uint64
	base   int64
	unit   int64
	blocks uint64
	mem    []byte // whole mapping
	entry  []ledgerEntry
	file   *os.File
	// held has a bit for each block that this run has written into the target's cache since the last flush
	// that failed: what a flush makes durable. Of earlier writes it is not known that they are still there.
	held []byte
}

type ledgerEntry struct{ issued, acked, durable uint32 }

const (
	ledgerMagic  = "SOFTLDG1"
	ledgerHeader = 64
	ledgerEntryN = 12
)

// newLedger makes a ledger in memory; pages that are never touched cost none.
func newLedger(seed uint64, base, unit int64, blocks uint64) (*Ledger, error) {
	mem, err := alignedMemory(int(ledgerHeader + ledgerEntryN*blocks))
	if err != nil {
		return nil, err
	}
	l := &Ledger{seed: seed, base: base, unit: unit, blocks: blocks, mem: mem}
	return l, l.view()
}

// sign fills the buffer of a write with one headed block per unit.
func (l *Ledger) sign(p []byte, off int64, j *Job) {
	for unit := int(l.unit); len(p) >= unit; p, off = p[unit:], off+l.unit {
		fillBlock(p[:unit], l.seed, off, l.issue(off), j.thread, &j.Payload)
	}
}

// openLedger opens or creates the ledger file at path. An existing one must
// describe the same range; its seed wins. mustExist is for runs that only check.
func openLedger(path string, seed uint64, base, unit int64, blocks uint64, mustExist bool) (_ *Ledger, err error) {
	flags := os.O_RDWR
	if !mustExist {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, fmt.Errorf("verify state: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("verify state %s is in use by another run: %w", path, err)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("verify state: %w", err)
	}
	size := int64(ledgerHeader + ledgerEntryN*blocks)
	fresh := st.Size() == 0
	if fresh {
		if mustExist {
			return nil, fmt.Errorf("verify state %s is empty: no run has written it", path)
		}
		if err := f.Truncate(size); err != nil {
			return nil, fmt.Errorf("verify state: %w", err)
		}
	} else if st.Size() != size {
		return nil, fmt.Errorf("verify state %s has %d bytes, not the %d of %d blocks: it belongs to a job with another bs, size or offset", path, st.Size(), size, blocks)
	}
	if !mustExist {
		if err := allocate(f, size); err != nil {
			if fresh {
				_ = f.Truncate(0) // for the next run it is fresh again
			}
			return nil, fmt.Errorf("verify state %s, of %d bytes: %w", path, size, err)
		}
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("verify state: map %s: %w", path, err)
	}
	l := &Ledger{seed: seed, base: base, unit: unit, blocks: blocks, mem: mem, file: f}
	if fresh {
		l.putHeader()
	} else if err := l.readHeader(); err != nil {
		syscall.Munmap(mem)
		return nil, fmt.Errorf("verify state %s: %w", path, err)
	}
	if err := l.view(); err != nil {
		syscall.Munmap(mem)
		return nil, err
	}
	return l, nil
}

// allocate has the whole ledger's space taken: a page of the mapping for which there is none when it is
// touched ends the process (SIGBUS). File systems that cannot do so are left as they are.
func allocate(f *os.File, size int64) error {
	for {
		switch err := syscall.Fallocate(int(f.Fd()), 0, 0, size); err {
		case syscall.EINTR:
		case syscall.EOPNOTSUPP, syscall.ENOSYS:
			return nil
		default:
			return err
		}
	}
}

// view overlays the entries on the mapping. The host is little-endian on
// every platform that this project builds for.
func (l *Ledger) view() (err error) {
	if l.blocks > 0 {
		l.entry = unsafe.Slice((*ledgerEntry)(unsafe.Pointer(&l.mem[ledgerHeader])), l.blocks)
	}
	l.held, err = alignedMemory(int(l.blocks+7) / 8)
	return err
}

func (l *Ledger) putHeader() {
	le := binary.LittleEndian
	copy(l.mem, ledgerMagic)
	le.PutUint64(l.mem[8:], l.seed)
	le.PutUint64(l.mem[16:], uint64(l.base))
	le.PutUint64(l.mem[24:], l.blocks)
	le.PutUint32(l.mem[32:], uint32(l.unit))
}

func (l *Ledger) readHeader() error {
	le := binary.LittleEndian
	if string(l.mem[:8]) != ledgerMagic {
		return errors.New("not a ledger (bad magic)")
	}
	base, blocks, unit := int64(le.Uint64(l.mem[16:])), le.Uint64(l.mem[24:]), int64(le.Uint32(l.mem[32:]))
	if base != l.base || blocks != l.blocks || unit != l.unit {
		return fmt.Errorf("it describes %d blocks of %d bytes at offset %d, the job has %d of %d at %d", blocks, unit, base, l.blocks, l.unit, l.base)
	}
	l.seed = le.Uint64(l.mem[8:])
	return nil
}

func (l *Ledger) index(off int64) uint64 { return uint64((off - l.base) / l.unit) }

// issue enters that the block at off is about to be written and returns the
// generation to write.
func (l *Ledger) issue(off int64) uint32 {
	e := &l.entry[l.index(off)]
	gen := e.issued + 1
	// Stores to a shared mapping become visible in this order to whoever
	// maps the file after this process has died.
	atomic.StoreUint32(&e.issued, gen)
	return gen
}

// ack enters that every write issued to the block at off was acknowledged;
// durable: and is on stable storage.
func (l *Ledger) ack(off int64, durable bool) {
	i := l.index(off)
	e := &l.entry[i]
	atomic.StoreUint32(&e.acked, e.issued)
	if durable {
		atomic.StoreUint32(&e.durable, e.issued)
	} else {
		l.held[i/8] |= 1 << (i % 8)
	}
}

// flushed enters that a flush which was issued when gen was the acknowledged
// generation of the block at off has completed.
func (l *Ledger) flushed(off int64, gen uint32) {
	e := &l.entry[l.index(off)]
	if gen > e.durable {
		atomic.StoreUint32(&e.durable, gen)
	}
}

// window returns the generations that the block at off may hold; ok=false when
// nothing is known of it. durable: what must have survived a power loss.
func (l *Ledger) window(off int64, durable bool) (w window, ok bool) {
	e := l.entry[l.index(off)]
	lo := e.acked
	if durable {
		lo = e.durable
	}
	return window{lo: lo, hi: e.issued, torn: e.issued > lo}, lo > 0
}

// flushedAll enters that a flush has completed while nothing was in flight.
func (l *Ledger) flushedAll() {
	for i := range l.entry {
		if e := &l.entry[i]; e.acked != e.durable && l.held[i/8]&(1<<(i%8)) != 0 {
			atomic.StoreUint32(&e.durable, e.acked)
		}
	}
}

// flushFailed enters that a flush has failed: what was in the target's cache may be lost, and the next flush
// says nothing of it.
func (l *Ledger) flushFailed() { clear(l.held) }

// Close gives the memory back; a file keeps its content.
func (l *Ledger) Close() error {
	if l.mem == nil {
		return nil
	}
	err := syscall.Munmap(l.mem[:cap(l.mem)])
	freeMemory(l.held)
	l.mem, l.entry, l.held = nil, nil, nil
	if l.file != nil {
		err = errors.Join(err, l.file.Close())
	}
	return err
}
