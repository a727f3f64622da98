package volume

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"sync/atomic"
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

// epochs is the part of a volume that has its epoch, and hands it on to the next life of the volume.
type epochs struct {
	medium *medium
	state  *state
	epoch  atomic.Pointer[[16]byte] // another one after each Activate
}

// Epoch is that of what is acknowledged and not flushed; it stays the same as long as
// the volume is mapped, or active if it moves between nodes.
func (e *epochs) Epoch() [16]byte { return *e.epoch.Load() }

// setEpoch puts an epoch in force.
func (e *epochs) setEpoch(epoch *[16]byte) { e.epoch.Store(epoch) }

// cache is the identity of the cache that the device has now. It is not that of the geometry: a
// store that takes the place of another one of the same size is no news to initiators.
// Preconditions: there is a device.
func (e *epochs) cache() string { return e.medium.dev.Info().CacheID }

// ofCache is the epoch of a device in a cache that outlives the volume.
func (e *epochs) ofCache() (epoch [16]byte, ok bool) {
	id := e.cache()
	if id == "" {
		return epoch, false
	}
	// Hashed with the volume's name, so that no two volumes have one epoch and initiators
	// learn when it changes, not what it is.
	h := sha256.Sum256([]byte("softiser cache epoch " + e.state.key + " " + id))
	return [16]byte(h[:16]), true
}

// withoutCache is the epoch of a device whose writes are durable when they are
// acknowledged: there is nothing to lose, whichever process or node serves it.
func (e *epochs) withoutCache() *[16]byte {
	h := sha256.Sum256([]byte("softiser without a cache " + e.state.key))
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
func (e *epochs) takeEpoch() {
	if !e.medium.Geo().Info.WriteCache {
		e.setEpoch(e.withoutCache())
		return
	}
	epoch := newEpoch()
	if e.state.moves {
		if old := e.lastLife(); old != nil {
			epoch = old
		}
	} else if inCache, ok := e.ofCache(); ok {
		epoch = &inCache
	}
	if old := e.handedOn(); old != nil {
		epoch = old
	}
	if e.state.moves && e.saveLife(epoch) != nil {
		epoch = newEpoch() // who comes next could take this life for an earlier one
	}
	e.setEpoch(epoch)
}

// handedOn returns the epoch that an orderly end has left, which is gone then; nil: none.
func (e *epochs) handedOn() *[16]byte {
	if !e.state.keeps() {
		return nil
	}
	name := e.state.record(".epoch")
	b, err := e.state.store.Load(name)
	if err != nil || e.state.store.Remove(name) != nil {
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
func (e *epochs) lastLife() *[16]byte {
	id := e.cache()
	b, err := e.state.store.Load(e.state.record(".life"))
	if err != nil || id == "" {
		return nil
	}
	epoch, cache, _ := bytes.Cut(b, []byte(" "))
	if string(cache) != id {
		return nil
	}
	return parseEpoch(epoch)
}

func (e *epochs) saveLife(epoch *[16]byte) error {
	return e.state.store.Save(e.state.record(".life"), []byte(hex.EncodeToString(epoch[:])+" "+e.cache()))
}

// leaveEpoch hands the epoch on to the next process when everything acknowledged
// has been flushed. Preconditions: no commands.
func (e *epochs) leaveEpoch() {
	if e.medium.dev == nil || !e.medium.Geo().Info.WriteCache || !e.state.keeps() {
		return
	}
	// The cache of a device that was resized onto another disk is not the one that
	// the volume began with.
	if inCache, ok := e.ofCache(); ok && inCache == e.Epoch() && !e.state.moves || e.medium.dev.Flush() != nil {
		return
	}
	e.handEpochOn()
}

// handEpochOn keeps the epoch for the next life of the volume. Without the record
// initiators are told of a loss that was none: no harm to data.
func (e *epochs) handEpochOn() {
	epoch := e.Epoch()
	_ = e.state.store.Save(e.state.record(".epoch"), []byte(hex.EncodeToString(epoch[:])))
}
