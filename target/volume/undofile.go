package volume

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"softiser/internal/durable"
	"softiser/target/internal/statefile"
)

// The file of an undo journal has room for one entry:
//
//	+-----+---------------------------------------+
//	|   0 | "softiser undo 1\n"                   |
//	|  16 | offset (8) | length (8)               |
//	|  32 | CRC-32C of the rest and of the data   |
//	| 512 | data                                  |
//	+-----+---------------------------------------+
//
// One whose header is zeroes, or whose checksum does not fit, has none.

const (
	journalMagic  = "softiser undo 1\n"
	journalHeader = 512
)

func journalSum(head, data []byte) uint32 {
	tab := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(head[:32], tab), tab, data)
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

func (j *Journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		j.file.Close()
		j.file = nil
	}
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
