package volume

// write is a write that a worker makes for a command which has all of its data, see ToWriter. The
// zero value is none.
type write struct {
	blocks *badBlocks // nil: there is none, or it has been made
	p      []byte
	off    int64
	err    error // how it went
}

// makeWrite makes the write that o was queued for, and reports whether there was one. Its Step is
// to follow, on the same goroutine.
func (o *Op) makeWrite() bool {
	w := &o.write
	if w.blocks == nil {
		return false
	}
	w.err = w.blocks.WriteAt(w.p, w.off, o.Stop())
	w.blocks, w.p = nil, nil
	return true
}

// Written returns the error of the write that ToWriter was asked for.
func (o *Op) Written() error { return o.write.err }
