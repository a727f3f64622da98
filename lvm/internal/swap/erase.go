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

// spaceEraser is an Eraser that may need space for it, as blockdev.SpaceWaiter for
// writes: a thin volume's share of blocks that it has in common with others.
type spaceEraser interface {
	EraseUntil(off, n int64, stop blockdev.Stop) error
}

// Erase implements blockdev.Eraser.
func (d *Device) Erase(off, n int64) error {
	return d.write(nil, func(dev blockdev.Device, stop blockdev.Stop) error { return erase(dev, off, n, stop) })
}

func erase(dev blockdev.Device, off, n int64, stop blockdev.Stop) error {
	if e, ok := dev.(spaceEraser); ok {
		return e.EraseUntil(off, n, stop)
	}
	return Erase(dev, off, n)
}
