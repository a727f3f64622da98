package scsi

import (
	"encoding/binary"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"testing"

	"softiser/target/internal/statefile"
)

// stateName and journalName are where a unit's volume keeps what survives a restart.
func (lu *LU) stateName() string { return lu.fileName(".json") }

func (lu *LU) journalName() string { return lu.fileName(".undo") }

func (lu *LU) fileName(suffix string) string {
	return filepath.Join(lu.dev.cfg.StateDir, "lu-"+lu.vol.Identity().Key()+suffix)
}

// journalMagic begins an entry of the undo journal.
const journalMagic = "softiser undo 1\n"

// journalEntry is the undo journal with old put aside, which belongs at off.
func journalEntry(old []byte, off int64) []byte {
	b := make([]byte, 512+len(old))
	copy(b, journalMagic)
	binary.BigEndian.PutUint64(b[16:], uint64(off))
	binary.BigEndian.PutUint64(b[24:], uint64(len(old)))
	copy(b[512:], old)
	tab := crc32.MakeTable(crc32.Castagnoli)
	binary.BigEndian.PutUint32(b[32:], crc32.Update(crc32.Checksum(b[:32], tab), tab, old))
	return b
}

// wrapJournals has wrap look at what is written to undo journals that are opened from
// here on.
func wrapJournals(t *testing.T, wrap func(statefile.File) statefile.File) {
	t.Helper()
	real := statefile.OpenFile
	t.Cleanup(func() { statefile.OpenFile = real })
	statefile.OpenFile = func(name string, flag int, perm fs.FileMode) (statefile.File, error) {
		f, err := real(name, flag, perm)
		if err != nil {
			return nil, err
		}
		return wrap(f), nil
	}
}
