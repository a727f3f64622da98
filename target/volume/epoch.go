package volume

import (
	"bytes"
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
//	with no cache                   for ever                      of the volume's name

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

// uncachedEpoch is the epoch of a device whose writes are durable when they are
// acknowledged: there is nothing to lose, whichever process or node serves it.
func (v *Volume) uncachedEpoch() *[16]byte {
	h := sha256.Sum256([]byte("softiser without a cache " + v.id.Key()))
	return (*[16]byte)(h[:16])
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
	if !v.Geo().Info.WriteCache {
		v.epoch.Store(v.uncachedEpoch())
		return
	}
	epoch := newEpoch()
	if v.Moves() {
		if old := v.lastLife(); old != nil {
			epoch = old
		}
	} else if e, ok := v.cacheEpoch(); ok {
		epoch = &e
	}
	if old := v.handedOn(); old != nil {
		epoch = old
	}
	if v.Moves() && v.saveLife(epoch) != nil {
		epoch = newEpoch() // who comes next could take this life for an earlier one
	}
	v.epoch.Store(epoch)
}

// handedOn returns the epoch that an orderly end has left, which is gone then; nil: none.
func (v *Volume) handedOn() *[16]byte {
	if !v.Keeps() {
		return nil
	}
	name := v.state.record(".epoch")
	b, err := v.state.store.Load(name)
	if err != nil || v.state.store.Remove(name) != nil {
		return nil
	}
	return parseEpoch(b)
}

func parseEpoch(b []byte) *[16]byte {
	if old, err := hex.DecodeString(string(b)); err == nil && len(old) == 16 {
		return (*[16]byte)(old)
	}
	return nil
}

// A volume that moves between nodes has lost nothing if the last life of it, on whichever
// node, was in the cache that it is in now: on this node, whose process has crashed. That
// this node's own cache is still there says nothing about what another node has written
// meanwhile and lost, so each life is kept, as its epoch and the identity of its cache.

// lastLife returns the epoch of the last life, if it was in the present cache; nil: it was not.
func (v *Volume) lastLife() *[16]byte {
	id := v.Geo().Info.CacheID
	b, err := v.state.store.Load(v.state.record(".life"))
	if err != nil || id == "" {
		return nil
	}
	epoch, cache, _ := bytes.Cut(b, []byte(" "))
	if string(cache) != id {
		return nil
	}
	return parseEpoch(epoch)
}

func (v *Volume) saveLife(epoch *[16]byte) error {
	return v.state.store.Save(v.state.record(".life"), []byte(hex.EncodeToString(epoch[:])+" "+v.Geo().Info.CacheID))
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
