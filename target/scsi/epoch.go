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
)

// Cache epochs, which an initiator compares before and after it lost its
// session (docs/adr/0079-writes-lost-in-a-cache.md). Two looks at the same epoch mean that
// nothing was lost in between that had been acknowledged without being flushed:
//
//	volume                          such writes live as long as   epoch
//	in the kernel's page cache      its cache (Info.CacheID)      of that cache
//	with state in this process,     the unit                      of the unit; an orderly end
//	or a cache that is not known                                  flushes, and hands it on

// cacheEpoch is the epoch of a volume in a cache that outlives the unit.
func (lu *LU) cacheEpoch() (epoch [16]byte, ok bool) {
	id := lu.geo().info.CacheID
	if id == "" {
		return epoch, false
	}
	// Hashed with the unit's name, so that no two units have one epoch and initiators
	// learn when it changes, not what it is.
	h := sha256.Sum256([]byte("softiser cache epoch " + lu.id.key + " " + id))
	return [16]byte(h[:16]), true
}

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
	var ok bool
	if lu.epoch, ok = lu.cacheEpoch(); !ok {
		lu.epoch = newEpoch()
	}
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
	if lu.vol == nil || !lu.geo().info.WriteCache || !lu.canSave() {
		return
	}
	// The cache of a volume that was resized onto another disk is not the one that
	// the unit began with.
	if e, ok := lu.cacheEpoch(); ok && e == lu.epoch || lu.vol.Flush() != nil {
		return
	}
	// Without the file initiators are told of a loss that was none: no harm to data.
	_ = replaceFile(lu.epochFile(), []byte(hex.EncodeToString(lu.epoch[:])))
}
