package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/internal/durable"
	"softiser/target/internal/statefile"
)

// An atomic write promises all or nothing, a power failure included. A file or disk
// tears a write of several pages, so the old content of the blocks is put aside
// first, in an undo journal of one entry beside the volume's saved state:
//
//	journal: old data, sync --> device: new data, flush --> journal: cleared, sync
//
// After a crash in the middle the old data go back before the volume is served. If
// the device takes neither the new nor the old data, the entry stays for the next
// start, but no longer than until somebody writes: see BeforeChange. An atomic write over
// marked blocks (marks.go) is over when the state file has neither the marks nor an entry
// that it takes for valid: one save does both, and the entry is cleared behind it.
// A device that forgets everything anyway needs no journal; a volume that has
// nowhere to keep it does not offer atomic writes.

// MaxAtomicBytes is the longest atomic write.
const MaxAtomicBytes = StageBytes

// Offered reports whether the volume has atomic writes.
func (j *Journal) Offered() bool { return j.vol.Forgetful() || j.vol.state.keeps() }

// Write writes p durably, all or nothing. It returns what it was doing when it
// failed. Preconditions: the caller has the blocks exclusively, and the volume Keeps.
func (j *Journal) Write(p []byte, off int64, stop blockdev.Stop) (Direction, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stuck.Load() { // since this command was enabled
		if err := j.unstickLocked(stop); err != nil {
			return Writing, err
		}
	}
	if err := j.vol.tie.hold(); err != nil {
		return Writing, err
	}
	old := j.vol.bufs.Get(len(p))
	defer j.vol.bufs.Put(old)
	old = old[:len(p)]
	if _, err := j.vol.dev.ReadAt(old, off); err != nil {
		return Reading, err
	}
	if begun, err := j.putLocked(old, off); err != nil {
		// What of the entry is in the file must not be put back at the next start, over
		// what is written from here on.
		if begun && j.clearLocked() != nil {
			j.stickLocked(nil, 0)
		}
		return Writing, fmt.Errorf("%s: %w", j.name, err)
	}
	err := j.vol.write(p, off, stop)
	if err == nil {
		err = j.vol.dev.FlushRange(off, int64(len(p)))
	}
	if err == nil {
		err = j.vol.mendAtomic(off, int64(len(p)), doneMark(j.sum))
	}
	if err != nil && !errors.Is(err, statefile.ErrUncertain) {
		// Nothing may remain of it.
		if j.putBack(old, off, stop) != nil {
			j.stickLocked(bytes.Clone(old), off)
		} else if j.clearLocked() != nil {
			j.stickLocked(nil, 0)
		}
		return Writing, err
	}
	if err := j.clearLocked(); err != nil {
		j.stickLocked(nil, 0)
		return Writing, fmt.Errorf("%s: %w", j.name, err)
	}
	_ = j.vol.state.notDone() // if that fails, the next entry tries again
	// What is uncertain may be in force after a loss of power, so the new data stay.
	return Writing, err
}

// putBack makes old the durable content of its blocks again. It writes only what differs:
// blocks that found no space are as they were, and have none now. stop ends its wait for
// space.
func (j *Journal) putBack(old []byte, off int64, stop blockdev.Stop) error {
	now := j.vol.bufs.Get(len(old))
	defer j.vol.bufs.Put(now)
	now = now[:len(old)]
	_, unread := j.vol.dev.ReadAt(now, off)
	bs := 1 << j.vol.Geo().Shift
	for i := 0; i < len(old); {
		k := i
		for k < len(old) && (unread != nil || !bytes.Equal(now[k:k+bs], old[k:k+bs])) {
			k += bs
		}
		if k > i {
			if err := j.vol.write(old[i:k], off+int64(i), stop); err != nil {
				return err
			}
		}
		i = max(k, i+bs)
	}
	return j.vol.dev.FlushRange(off, int64(len(old)))
}

// BeforeChange has to succeed before a command that may change blocks now changes the first of them. The
// volume does not count as erased any more, and an atomic write that could not be undone, or whose entry
// could not be cleared, is given up: the next start would put its old data over what is newer. With NoWait
// it fails with ErrWouldBlock instead of waiting for storage, which is rare.
func (v *Volume) BeforeChange(m blockdev.Mode, stop blockdev.Stop) error {
	v.touched()
	if !v.Journal.stuck.Load() {
		return nil
	}
	if m == blockdev.NoWait {
		return blockdev.ErrWouldBlock
	}
	return v.Journal.unstick(stop)
}

// unstick ends the life of an entry that could not be undone, or not cleared. The device gets one more
// chance to take the old data. It waits for storage.
func (j *Journal) unstick(stop blockdev.Stop) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.stuck.Load() {
		return nil
	}
	return j.unstickLocked(stop)
}

func (j *Journal) unstickLocked(stop blockdev.Stop) error {
	if j.old != nil {
		_ = j.putBack(j.old, j.off, stop) // a medium that still fails keeps what it has
	}
	if err := j.clearLocked(); err != nil {
		return fmt.Errorf("%s: %w", j.name, err)
	}
	j.old, j.long = nil, false
	j.stuck.Store(false)
	return nil
}

// Journal is the undo journal of one volume, in a file:
//
//	+-----+---------------------------------------+
//	|   0 | "softiser undo 1\n"                   |
//	|  16 | offset (8) | length (8)               |
//	|  32 | CRC-32C of the rest and of the data   |
//	| 512 | data                                  |
//	+-----+---------------------------------------+
type Journal struct {
	vol *Volume

	mu   sync.Mutex
	name string
	file statefile.File // nil until the first use
	sum  uint32         // guarded by mu: of the last entry

	// stuck: the file holds an entry that is not to be put back any more once
	// something else is written. It is set and cleared under mu.
	stuck atomic.Bool
	off   int64  // guarded by mu: of old
	old   []byte // guarded by mu: what could not be put back; nil: only clearing has failed
	long  bool   // guarded by mu: the file may have more than old
}

const (
	journalMagic  = "softiser undo 1\n"
	journalHeader = 512
)

func journalSum(head, data []byte) uint32 {
	tab := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(head[:32], tab), tab, data)
}

// stickLocked notes that the entry is not gone; old is what has still to be put back at off, nil:
// nothing.
func (j *Journal) stickLocked(old []byte, off int64) {
	j.old, j.off, j.long = old, off, false
	j.stuck.Store(true)
	j.cutLocked(j.vol.dev.Info().Size) // by a shrink of which cut has heard before
}

// putLocked makes the entry durable. When it fails, begun says that some of the entry may be
// there: its header, without which what is in the file is none.
func (j *Journal) putLocked(old []byte, off int64) (begun bool, err error) {
	if j.file == nil {
		f, err := statefile.OpenFile(j.name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return false, err
		}
		if err := durable.SyncDir(filepath.Dir(j.name)); err != nil { // the file may be new
			f.Close()
			return false, err
		}
		j.file = f
	}
	head := j.headLocked(old, off)
	if err := j.vol.state.notDone(); err != nil { // this entry may have the checksum of the one that was noted as done
		return false, err
	}
	if err := j.writeAtLocked(old, journalHeader); err != nil {
		return false, err
	}
	if err := j.writeAtLocked(head, 0); err != nil {
		return true, err
	}
	return true, j.file.Sync()
}

// headLocked makes the header of an entry, and notes its sum.
func (j *Journal) headLocked(old []byte, off int64) []byte {
	head := make([]byte, journalHeader)
	copy(head, journalMagic)
	binary.BigEndian.PutUint64(head[16:], uint64(off))
	binary.BigEndian.PutUint64(head[24:], uint64(len(old)))
	j.sum = journalSum(head, old)
	binary.BigEndian.PutUint32(head[32:], j.sum)
	return head
}

// clearLocked forgets the entry, durably. Preconditions: the file is open.
func (j *Journal) clearLocked() error {
	if err := j.writeAtLocked(make([]byte, journalHeader), 0); err != nil {
		return err
	}
	return j.file.Sync()
}

// writeAtLocked writes to the file, which is another node's when that has taken the volume over. This one may
// have been taken for dead: an entry that it leaves would undo what the other one has written since.
// Preconditions: the file is open.
func (j *Journal) writeAtLocked(p []byte, off int64) error {
	if err := j.vol.state.store.Check(); err != nil {
		return err
	}
	_, err := j.file.WriteAt(p, off)
	return err
}

// wipe overwrites all of the file, durably: what a rewrite removes from the volume
// must not stay beside it, nor come back from there.
func (j *Journal) wipe() error {
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
		f, err := statefile.OpenFile(j.name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		j.file = f
	}
	if err := j.writeAtLocked(make([]byte, info.Size()), 0); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	j.old, j.long = nil, false
	j.stuck.Store(false)
	return nil
}

// cut forgets what an entry that could not be undone has for blocks behind a new end, in the file too: what is
// there when the volume grows again is not to become the old data.
func (j *Journal) cut(size int64) {
	if !j.stuck.Load() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stuck.Load() && j.old == nil && j.file != nil && j.clearLocked() == nil { // the entry was not to be put back
		j.stuck.Store(false)
	}
	j.cutLocked(size)
}

func (j *Journal) cutLocked(size int64) {
	if left := max(0, size-j.off); left < int64(len(j.old)) {
		j.old, j.long = j.old[:left], true
	}
	if !j.long || j.file == nil { // the volume has ended
		return
	}
	var err error
	if len(j.old) == 0 {
		err = j.clearLocked()
	} else if err = j.writeAtLocked(j.headLocked(j.old, j.off), 0); err == nil {
		err = j.file.Sync()
	}
	j.long = err != nil // the next change of size tries again: as long as the volume has not grown, what is too much has no blocks
}

// forget leaves an entry that could not be undone to whoever has the volume next: what is
// put back here later would lie over what they have written.
func (j *Journal) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.old, j.long = nil, false
	j.stuck.Store(false)
}

func (j *Journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		j.file.Close()
		j.file = nil
	}
}

// holds reports whether the blocks have data, which may not be durable.
func (j *Journal) holds(data []byte, off int64) bool {
	now := make([]byte, len(data))
	_, err := j.vol.dev.ReadAt(now, off)
	return err == nil && bytes.Equal(now, data)
}

// entryIn returns the entry of a file that begins with journalMagic; no data: it is torn, so that the
// volume was not touched.
func entryIn(b []byte) (off int64, data []byte) {
	if len(b) < journalHeader {
		return 0, nil
	}
	n := binary.BigEndian.Uint64(b[24:])
	if n > uint64(len(b)-journalHeader) || n > MaxAtomicBytes {
		return 0, nil
	}
	data = b[journalHeader:][:n]
	if journalSum(b, data) != binary.BigEndian.Uint32(b[32:]) {
		return 0, nil
	}
	return int64(binary.BigEndian.Uint64(b[16:])), data
}

// undo puts back what an interrupted atomic write had put aside.
func (j *Journal) undo() error {
	if !j.vol.state.keeps() || j.vol.dev == nil {
		return nil
	}
	j.name = j.vol.state.file(".undo")
	b, err := os.ReadFile(j.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(b, []byte(journalMagic)) {
		return nil // cleared, or never used
	}
	off, data := entryIn(b)
	// A volume that has been shortened since has no blocks behind its end to put back.
	data = data[:max(0, min(int64(len(data)), j.vol.Geo().Info.Size-off))]
	if len(data) > 0 && !j.vol.state.isDone(binary.BigEndian.Uint32(b[32:])) {
		if j.vol.tie.isStale() && !j.holds(data, off) {
			return j.vol.tie.staleError("what an interrupted WRITE ATOMIC has to put back", j.name, "remove that file")
		}
		if _, err := j.vol.dev.WriteAt(data, off); err != nil {
			return fmt.Errorf("putting back what an interrupted WRITE ATOMIC has left (%s): %w", j.name, err)
		}
		if err := j.vol.dev.Flush(); err != nil {
			return fmt.Errorf("putting back what an interrupted WRITE ATOMIC has left (%s): %w", j.name, err)
		}
	}
	// One that is torn goes, too: the data of a later entry could make it whole.
	// Cleared, not removed: an entry that came back with the power would undo what
	// has been written since.
	j.mu.Lock()
	defer j.mu.Unlock()
	f, err := statefile.OpenFile(j.name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	j.file = f
	return j.clearLocked()
}
