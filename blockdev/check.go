package blockdev

import (
	"fmt"
	"math/bits"
)

// CheckRange reports why [off, off+n) is not a legal range of a device of size
// bytes in blocks of blockSize bytes (a power of two), nil if it is. No
// intermediate sum overflows, whatever a peer asked for.
func CheckRange(off, n, size int64, blockSize int) error {
	if off < 0 || n < 0 || off > size || n > size-off {
		return ErrOutOfRange
	}
	if (off|n)&int64(blockSize-1) != 0 {
		return ErrUnaligned
	}
	return nil
}

// Check is CheckRange of a device that says i of itself.
func (i *Info) Check(off, n int64) error { return CheckRange(off, n, i.Size, i.BlockSize) }

// CheckWrite is Check for what changes content; ErrReadOnly where nothing may.
func (i *Info) CheckWrite(off, n int64) error {
	if err := i.Check(off, n); err != nil {
		return err
	}
	if i.ReadOnly {
		return ErrReadOnly
	}
	return nil
}

// CheckGeometry reports why a device cannot have this size and these blocks.
// The messages are for the person who wrote the configuration.
func CheckGeometry(size int64, blockSize, physBlockSize int) error {
	switch {
	case blockSize != 512 && blockSize != 4096:
		return fmt.Errorf("blockdev: logical block size is %d bytes; it must be 512 or 4096", blockSize)
	case physBlockSize < blockSize || bits.OnesCount(uint(physBlockSize)) != 1:
		return fmt.Errorf("blockdev: physical block size is %d bytes; it must be a power of two and at least the logical block size of %d", physBlockSize, blockSize)
	case size <= 0:
		return fmt.Errorf("blockdev: size is %d bytes; it must be at least one block of %d", size, blockSize)
	case size%int64(blockSize) != 0:
		near := size - size%int64(blockSize)
		if near == 0 {
			return fmt.Errorf("blockdev: size of %d bytes is less than one block of %d", size, blockSize)
		}
		return fmt.Errorf("blockdev: size of %d bytes is not a multiple of the block size of %d; the next smaller size that is: %d", size, blockSize, near)
	}
	return nil
}
