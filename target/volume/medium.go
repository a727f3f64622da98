package volume

import (
	"math/bits"
	"sync/atomic"

	"softiser/blockdev"
)

// medium is the part of a volume that knows its device: how large it is, what it can do, and
// what it holds after an erase.
type medium struct {
	dev      blockdev.Device // nil: no medium
	geometry atomic.Pointer[Geometry]
	erased   atomic.Bool // every block is deallocated: nothing has been written since a block erase
}

// Geometry is the size of the medium as commands see it. One that has been published does not change.
type Geometry struct {
	Info   blockdev.Info
	Blocks uint64
	Shift  uint8 // log2 of the block size
}

// deviceInfo returns what a volume without a medium pretends to be.
func deviceInfo(d blockdev.Device) blockdev.Info {
	if d == nil {
		return blockdev.Info{BlockSize: 512, PhysBlockSize: 512}
	}
	return d.Info()
}

// setGeometry publishes what the device says of itself.
func (m *medium) setGeometry(info blockdev.Info) {
	// A volume that nobody may write is not one that cannot unmap: the command is
	// there, and refused as a write is.
	info.Discard = info.Discard || info.ReadOnly
	g := &Geometry{Info: info, Shift: uint8(bits.TrailingZeros(uint(info.BlockSize)))}
	g.Blocks = uint64(info.Size) >> g.Shift
	m.geometry.Store(g)
}

// follow keeps the geometry that of the device until stop is called; changed is called, without locks,
// when there is another one. What a disk has grown by was not erased.
func (m *medium) follow(changed func(blockdev.Info)) (stop func()) {
	return m.dev.OnResize(func(i blockdev.Info) {
		if i.Size > m.Geo().Info.Size {
			m.erased.Store(false)
		}
		m.setGeometry(i)
		changed(i)
	})
}

// Geo returns the present geometry.
func (m *medium) Geo() *Geometry { return m.geometry.Load() }

// Device returns the device; nil: there is no medium.
func (m *medium) Device() blockdev.Device { return m.dev }

// Forgetful reports whether nothing of the volume survives a power failure.
func (m *medium) Forgetful() bool {
	b := m.Geo().Info.Backend
	return b == "mem" || b == "null"
}

// touched notes that the device is about to be written.
func (m *medium) touched() {
	if m.erased.Load() {
		m.erased.Store(false)
	}
}

// hasErased notes that every block has been deallocated, or not. Logical volumes tell that by themselves:
// a merge puts a snapshot's content in the place of theirs, which nobody here would hear of.
func (m *medium) hasErased(yes bool) { m.erased.Store(yes && m.Geo().Info.Backend != "lvm") }

// Extents is the device's, except that after a block erase the volume knows better
// than a device that cannot tell.
func (m *medium) Extents(off, n int64) ([]blockdev.Extent, error) {
	if m.erased.Load() {
		return []blockdev.Extent{{Off: off, Len: n}}, nil
	}
	return m.dev.Extents(off, n)
}
