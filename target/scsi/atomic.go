package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
)

// WRITE ATOMIC promises all or nothing, a power failure included. A file or disk
// tears a write of several pages, so the old content of the blocks is put aside
// first, in an undo journal of one entry beside the unit's saved state:
//
//	journal: old data, sync --> volume: new data, flush --> journal: cleared, sync
//
// After a crash in the middle the old data go back before the unit is served. If
// the volume takes neither the new nor the old data, the entry stays for the next
// start, but no longer than until somebody writes: see unstick.
// A volume that forgets everything anyway needs no journal; one that has
// nowhere to keep it does not offer the command.

const maxAtomicBytes = stageBytes

// offersAtomic reports whether the unit has WRITE ATOMIC.
func offersAtomic(lu *LU) bool { return lu.forgetful() || lu.canSave() }

// forgetful reports whether nothing of the volume survives a power failure.
func (lu *LU) forgetful() bool {
	b := lu.geo().info.Backend
	return b == "mem" || b == "null"
}

// cmdWriteAtomic is WRITE ATOMIC(16) (SBC-4 §5.48). Atomic boundaries are not
// offered.
func cmdWriteAtomic(t *Task) {
	switch {
	case t.CDB[10] != 0 || t.CDB[11] != 0:
		t.badCDB(10)
	case t.n > maxAtomicBytes:
		t.badCDB(12)
	case t.lu.forgetful():
		t.stageAll(t.n, func(t *Task, p []byte) bool { return t.store(p, t.off) })
	default:
		t.stageAll(t.n, writeAtomic)
	}
}

func writeAtomic(t *Task, p []byte) bool {
	if dir, err := t.lu.writeWhole(p, t.off, t.stop()); err != nil {
		t.failErr(err, dir)
		return false
	}
	return true
}

// writeWhole writes p durably, all or nothing. It returns what it was doing when it failed.
func (lu *LU) writeWhole(p []byte, off int64, stop blockdev.Stop) (direction, error) {
	j := &lu.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stuck.Load() { // since this command was enabled
		if err := lu.unstickLocked(stop); err != nil {
			return writing, err
		}
	}
	old := lu.dev.bufs.get(len(p))
	defer lu.dev.bufs.put(old)
	old = old[:len(p)]
	if _, err := lu.vol.ReadAt(old, off); err != nil {
		return reading, err
	}
	if err := j.put(old, off); err != nil {
		// What of the entry is in the file must not be put back at the next start, over
		// what is written from here on.
		if j.clear() != nil {
			j.stick(nil, 0)
		}
		return writing, fmt.Errorf("%s: %w", j.name, err)
	}
	err := lu.writeAt(p, off, stop)
	if err == nil {
		err = lu.vol.FlushRange(off, int64(len(p)))
	}
	if err != nil {
		// Nothing may remain of it.
		if lu.putBack(old, off, stop) != nil {
			j.stick(bytes.Clone(old), off)
		} else if j.clear() != nil {
			j.stick(nil, 0)
		}
		return writing, err
	}
	if err := j.clear(); err != nil {
		j.stick(nil, 0)
		return writing, fmt.Errorf("%s: %w", j.name, err)
	}
	return writing, nil
}

// putBack makes old the durable content of its blocks again. It writes only what differs:
// blocks that found no space are as they were, and have none now. stop ends its wait for
// space.
func (lu *LU) putBack(old []byte, off int64, stop blockdev.Stop) error {
	now := lu.dev.bufs.get(len(old))
	defer lu.dev.bufs.put(now)
	now = now[:len(old)]
	_, unread := lu.vol.ReadAt(now, off)
	bs := 1 << lu.geo().shift
	for i := 0; i < len(old); {
		k := i
		for k < len(old) && (unread != nil || !bytes.Equal(now[k:k+bs], old[k:k+bs])) {
			k += bs
		}
		if k > i {
			if err := lu.writeAt(old[i:k], off+int64(i), stop); err != nil {
				return err
			}
		}
		i = max(k, i+bs)
	}
	return lu.vol.FlushRange(off, int64(len(old)))
}

// unstick ends the life of an entry that could not be undone, or not cleared,
// before anything newer is written: the next start would put the old data back
// over it. The volume gets one more chance to take them. It waits for storage.
func (lu *LU) unstick(stop blockdev.Stop) error {
	j := &lu.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.stuck.Load() {
		return nil
	}
	return lu.unstickLocked(stop)
}

func (lu *LU) unstickLocked(stop blockdev.Stop) error {
	j := &lu.journal
	if j.old != nil {
		_ = lu.putBack(j.old, j.off, stop) // a medium that still fails keeps what it has
	}
	if err := j.clear(); err != nil {
		return fmt.Errorf("%s: %w", j.name, err)
	}
	j.old = nil
	j.stuck.Store(false)
	return nil
}

// undoJournal is the file of one unit:
//
//	+-----+---------------------------------------+
//	|   0 | "softiser undo 1\n"                   |
//	|  16 | offset (8) | length (8)               |
//	|  32 | CRC-32C of the rest and of the data   |
//	| 512 | data                                  |
//	+-----+---------------------------------------+
type undoJournal struct {
	mu   sync.Mutex
	name string
	file journalStore // nil until the first use

	// stuck: the file holds an entry that is not to be put back any more once
	// something else is written. It is set and cleared under mu.
	stuck atomic.Bool
	off   int64  // guarded by mu: of old
	old   []byte // guarded by mu: what could not be put back; nil: only clearing has failed
}

// journalStore is the part of *os.File that the journal is written through.
type journalStore interface {
	io.WriterAt
	io.Closer
	Sync() error
}

const (
	journalMagic  = "softiser undo 1\n"
	journalHeader = 512
)

func (lu *LU) journalFile() string {
	return filepath.Join(lu.dev.cfg.StateDir, "lu-"+lu.id.key+".undo")
}

func journalSum(head, data []byte) uint32 {
	tab := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(head[:32], tab), tab, data)
}

// stick notes that the entry is not gone; old is what has still to be put back at off, nil:
// nothing. Preconditions: mu is held.
func (j *undoJournal) stick(old []byte, off int64) {
	j.old, j.off = old, off
	j.stuck.Store(true)
}

// put makes the entry durable. Preconditions: mu is held.
func (j *undoJournal) put(old []byte, off int64) error {
	if j.file == nil {
		f, err := os.OpenFile(j.name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		if err := syncDir(filepath.Dir(j.name)); err != nil { // the file may be new
			f.Close()
			return err
		}
		j.file = f
	}
	var head [journalHeader]byte
	copy(head[:], journalMagic)
	binary.BigEndian.PutUint64(head[16:], uint64(off))
	binary.BigEndian.PutUint64(head[24:], uint64(len(old)))
	binary.BigEndian.PutUint32(head[32:], journalSum(head[:], old))
	if _, err := j.file.WriteAt(old, journalHeader); err != nil {
		return err
	}
	if _, err := j.file.WriteAt(head[:], 0); err != nil {
		return err
	}
	return j.file.Sync()
}

// clear forgets the entry, durably. Preconditions: mu is held.
func (j *undoJournal) clear() error {
	if j.file == nil {
		return nil // it could not even be opened
	}
	if _, err := j.file.WriteAt(make([]byte, journalHeader), 0); err != nil {
		return err
	}
	return j.file.Sync()
}

// wipe overwrites all of the file, durably: what a SANITIZE or FORMAT UNIT removes from the
// volume must not stay beside it, nor come back from there.
func (j *undoJournal) wipe() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	info, err := os.Stat(j.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if j.file == nil {
		f, err := os.OpenFile(j.name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		j.file = f
	}
	if _, err := j.file.WriteAt(make([]byte, info.Size()), 0); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	j.old = nil
	j.stuck.Store(false)
	return nil
}

func (j *undoJournal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		j.file.Close()
		j.file = nil
	}
}

// undo puts back what an interrupted WRITE ATOMIC had put aside.
func (lu *LU) undo() error {
	lu.journal.name = lu.journalFile()
	if !lu.canSave() || lu.vol == nil {
		return nil
	}
	b, err := os.ReadFile(lu.journal.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(b) < journalHeader || string(b[:16]) != journalMagic {
		return nil // cleared, or torn before it was whole: the volume was not touched
	}
	off, n := binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint64(b[24:])
	if n > uint64(len(b)-journalHeader) || n > maxAtomicBytes {
		return nil
	}
	data := b[journalHeader:][:n]
	if journalSum(b, data) != binary.BigEndian.Uint32(b[32:]) {
		return nil
	}
	if _, err := lu.vol.WriteAt(data, int64(off)); err != nil {
		return fmt.Errorf("putting back what an interrupted WRITE ATOMIC has left (%s): %w", lu.journal.name, err)
	}
	if err := lu.vol.Flush(); err != nil {
		return fmt.Errorf("putting back what an interrupted WRITE ATOMIC has left (%s): %w", lu.journal.name, err)
	}
	// Cleared, not removed: an entry that came back with the power would undo what
	// has been written since.
	lu.journal.mu.Lock()
	defer lu.journal.mu.Unlock()
	f, err := os.OpenFile(lu.journal.name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	lu.journal.file = f
	return lu.journal.clear()
}
