package blockdev

// Eraser is a device of which a discard may leave old content where no command
// reads it any more: in blocks that the file system below has freed, or that
// have gone back to a pool. What sanitizes a device uses Erase instead.
type Eraser interface {
	// Erase makes [off, off+n) read as zeroes, and overwrites the blocks that
	// held it before it gives any of them back. The new content is durable when
	// it returns. Blocks that another device shares (a snapshot) stay as they are.
	Erase(off, n int64) error
}
