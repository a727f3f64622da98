package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
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

// Journal is the undo journal of one volume (undofile.go). Its entry:
//
//	       put                    clear
//	none ------> write under way -------> none
//	                  |                    ^
//	                  | not put back,      | put back once more, cleared:
//	                  | or not cleared     | before the next change of a block
//	                  v                    |
//	                stuck -----------------+
type Journal struct {
	vol *Volume

	mu   sync.Mutex // guards what follows; stuck is read without it
	name string
	file statefile.File // nil until the first use
	sum  uint32         // of the last entry

	// stuck: the file holds an entry that is not to be put back any more once
	// something else is written.
	stuck atomic.Bool
	off   int64  // of old
	old   []byte // what could not be put back; nil: only clearing has failed
	long  bool   // the file may have more than old
}

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
	if err := j.setAsideLocked(old, off); err != nil {
		return Writing, err
	}
	err := j.replaceLocked(p, off, stop)
	if err != nil && !errors.Is(err, statefile.ErrUncertain) {
		j.backOutLocked(old, off, stop)
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

// setAsideLocked makes the entry of old durable.
func (j *Journal) setAsideLocked(old []byte, off int64) error {
	begun, err := j.putLocked(old, off)
	if err == nil {
		return nil
	}
	// What of the entry is in the file must not be put back at the next start, over
	// what is written from here on.
	if begun && j.clearLocked() != nil {
		j.stickLocked(nil, 0)
	}
	return fmt.Errorf("%s: %w", j.name, err)
}

// replaceLocked makes p the durable content of its blocks, and these good ones if they were marked.
func (j *Journal) replaceLocked(p []byte, off int64, stop blockdev.Stop) error {
	if err := j.vol.write(p, off, stop); err != nil {
		return err
	}
	if err := j.vol.dev.FlushRange(off, int64(len(p))); err != nil {
		return err
	}
	return j.vol.mendAtomic(off, int64(len(p)), doneMark(j.sum))
}

// backOutLocked sees to it that nothing remains of a write that has failed.
func (j *Journal) backOutLocked(old []byte, off int64, stop blockdev.Stop) {
	if j.putBack(old, off, stop) != nil {
		j.stickLocked(bytes.Clone(old), off)
	} else if j.clearLocked() != nil {
		j.stickLocked(nil, 0)
	}
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

// stickLocked notes that the entry is not gone; old is what has still to be put back at off, nil:
// nothing.
func (j *Journal) stickLocked(old []byte, off int64) {
	j.old, j.off, j.long = old, off, false
	j.stuck.Store(true)
	j.cutLocked(j.vol.dev.Info().Size) // by a shrink of which cut has heard before
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

// holds reports whether the blocks have data, which may not be durable.
func (j *Journal) holds(data []byte, off int64) bool {
	now := make([]byte, len(data))
	_, err := j.vol.dev.ReadAt(now, off)
	return err == nil && bytes.Equal(now, data)
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
	if err := j.apply(b); err != nil {
		return err
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

// apply puts back the data of the file's content b, unless the entry is torn, or is of an atomic write that
// was done.
func (j *Journal) apply(b []byte) error {
	off, data := entryIn(b)
	// A volume that has been shortened since has no blocks behind its end to put back.
	data = data[:max(0, min(int64(len(data)), j.vol.Geo().Info.Size-off))]
	if len(data) == 0 || j.vol.state.isDone(binary.BigEndian.Uint32(b[32:])) {
		return nil
	}
	if j.vol.tie.isStale() && !j.holds(data, off) {
		return j.vol.tie.staleError("what an interrupted WRITE ATOMIC has to put back", j.name, "remove that file")
	}
	_, err := j.vol.dev.WriteAt(data, off)
	if err == nil {
		err = j.vol.dev.Flush()
	}
	if err != nil {
		return fmt.Errorf("putting back what an interrupted WRITE ATOMIC has left (%s): %w", j.name, err)
	}
	return nil
}
