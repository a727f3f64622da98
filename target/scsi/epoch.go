package scsi

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Cache epochs, which an initiator compares before and after it lost its
// session (docs/adr/0079-writes-lost-in-a-cache.md). Two looks at the same epoch mean that
// nothing was lost in between that had been acknowledged without being flushed:
//
//	volume                          such writes live as long as   epoch
//	in the kernel's page cache      the machine                   of this boot
//	with state in this process      the unit                      of the unit; an orderly end
//	                                                              flushes, and hands it on

// bootEpoch is the same for all processes until the machine starts again.
var bootEpoch = sync.OnceValue(func() [16]byte {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || len(id) == 0 {
		return newEpoch() // a restart cannot be told from a power cut
	}
	// Hashed, as machine-id(5) asks for of such numbers: initiators learn when it
	// changes, not what it is.
	h := sha256.Sum256(append([]byte("softiser cache epoch "), id...))
	return [16]byte(h[:16])
})

func newEpoch() (id [16]byte) {
	rand.Read(id[:]) // never fails
	return id
}

func (lu *LU) epochFile() string {
	return filepath.Join(lu.dev.cfg.StateDir, "lu-"+lu.id.key+".epoch")
}

// takeEpoch gives the unit its epoch. What an orderly end has left is good once:
// it is gone, durably, before anything is written.
func (lu *LU) takeEpoch() error {
	if lu.geo().info.PageCache {
		lu.epoch = bootEpoch()
		return nil
	}
	lu.epoch = newEpoch()
	if !lu.canSave() {
		return nil
	}
	name := lu.epochFile()
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		if err = os.Remove(name); err == nil {
			err = syncDir(lu.dev.cfg.StateDir)
		}
	}
	if err != nil {
		return fmt.Errorf("the epoch that the last orderly end has left: %w", err)
	}
	if old, err := hex.DecodeString(string(b)); err == nil && len(old) == len(lu.epoch) {
		lu.epoch = [16]byte(old)
	}
	return nil
}

// leaveEpoch hands the epoch on to the next process when everything acknowledged
// has been flushed. Preconditions: no tasks.
func (lu *LU) leaveEpoch() {
	if lu.vol == nil || lu.epoch == bootEpoch() || !lu.geo().info.WriteCache || !lu.canSave() || lu.vol.Flush() != nil {
		return
	}
	// Without the file initiators are told of a loss that was none: no harm to data.
	_ = replaceFile(lu.epochFile(), []byte(hex.EncodeToString(lu.epoch[:])))
}
