package volume

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
)

// Cache epochs, which an initiator compares before and after it lost its
// session (docs/adr/0053-durability.md). Two looks at the same epoch mean that
// nothing was lost in between that had been acknowledged without being flushed:
//
//	device                          such writes live as long as   epoch
//	in the kernel's page cache      its cache (Info.CacheID)      of that cache
//	with state in this process,     the volume                    of the volume; an orderly end
//	or a cache that is not known                                  flushes, and hands it on

// Epoch is that of what is acknowledged and not flushed; it stays the same as long as
// the volume is mapped, or active if it moves between nodes.
func (v *Volume) Epoch() [16]byte { return *v.epoch.Load() }

// cacheEpoch is the epoch of a device in a cache that outlives the volume.
func (v *Volume) cacheEpoch() (epoch [16]byte, ok bool) {
	id := v.Geo().Info.CacheID
	if id == "" {
		return epoch, false
	}
	// Hashed with the volume's name, so that no two volumes have one epoch and initiators
	// learn when it changes, not what it is.
	h := sha256.Sum256([]byte("softiser cache epoch " + v.id.Key() + " " + id))
	return [16]byte(h[:16]), true
}

func newEpoch() *[16]byte {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return &id
}

// takeEpoch gives the volume its epoch. What an orderly end has left is good once:
// it is gone, durably, before anything is written. Where it cannot be removed this life of
// the volume has an epoch of its own, and who comes later takes that one's writes for lost.
func (v *Volume) takeEpoch() {
	epoch := newEpoch()
	if e, ok := v.cacheEpoch(); ok {
		epoch = &e
	}
	v.epoch.Store(epoch)
	if !v.Keeps() {
		return
	}
	name := v.state.record(".epoch")
	b, err := v.state.store.Load(name)
	if err != nil || v.state.store.Remove(name) != nil {
		return
	}
	if old, err := hex.DecodeString(string(b)); err == nil && len(old) == len(epoch) {
		v.epoch.Store((*[16]byte)(old))
	}
}

// leaveEpoch hands the epoch on to the next process when everything acknowledged
// has been flushed. Preconditions: no commands.
func (v *Volume) leaveEpoch() {
	if v.dev == nil || !v.Geo().Info.WriteCache || !v.Keeps() {
		return
	}
	// The cache of a device that was resized onto another disk is not the one that
	// the volume began with.
	if e, ok := v.cacheEpoch(); ok && e == v.Epoch() && !v.Moves() || v.dev.Flush() != nil {
		return
	}
	v.handEpochOn()
}

// handEpochOn keeps the epoch for the next life of the volume. Without the record
// initiators are told of a loss that was none: no harm to data.
func (v *Volume) handEpochOn() {
	e := v.Epoch()
	_ = v.state.store.Save(v.state.record(".epoch"), []byte(hex.EncodeToString(e[:])))
}
