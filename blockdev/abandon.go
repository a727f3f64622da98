package blockdev

// Abandoner is a device that flushes its store when it is closed, and need not.
type Abandoner interface {
	// Abandon has Close leave the last flush out. Whoever opens the store next finds it as after the end of a
	// process that was killed.
	Abandon()
}

// Abandon closes a device whose store is somebody else's by now: what has not been written back is not to
// be written over what is there.
func Abandon(d Device) error {
	if a, ok := d.(Abandoner); ok {
		a.Abandon()
	}
	return d.Close()
}
