package swap

import "softiser/blockdev"

// erasePiece is how much is overwritten by one call, bytes.
const erasePiece = 1 << 20

// Erase overwrites a range of a device with zeroes, as blockdev.Eraser says. A
// device that is no Eraser gets them as any other data: told to zero a range, it
// might only take note of that.
func Erase(dev blockdev.Device, off, n int64) error {
	if e, ok := dev.(blockdev.Eraser); ok {
		return e.Erase(off, n)
	}
	for at := off; at < off+n; {
		k := min(off+n-at, erasePiece)
		var one [1][]byte
		if _, err := dev.WriteAt(blockdev.Zeroes(one[:0], k)[0], at); err != nil {
			return err
		}
		at += k
	}
	return dev.FlushRange(off, n)
}

// Erase implements blockdev.Eraser.
func (d *Device) Erase(off, n int64) error {
	d.gate.RLock()
	defer d.gate.RUnlock()
	g := d.enter()
	defer g.leave()
	return Erase(g.dev, off, n)
}
