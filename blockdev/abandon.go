package blockdev

// Abandoner is a device whose Close flushes the store unless Abandon was called.
type Abandoner interface {
	// Abandon makes Close leave out the last flush. The store is then left as by a process that was killed.
	Abandon()
}

// Abandon closes a device whose store now belongs to another process or node: what this process
// has not written back must not overwrite what is there.
func Abandon(d Device) error {
	if a, ok := d.(Abandoner); ok {
		a.Abandon()
	}
	return d.Close()
}
