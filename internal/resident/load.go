package resident

// line is how much memory comes into the cache at a time, bytes; where it is less, only a part does.
const line = 64

// Load reads a byte of each line of p, which is not empty, so that p is in the cache when the kernel copies it.
// The kernel's copy is one instruction, which waits for memory that is in no cache; loads in a
// row are under way side by side. Asking for all lines of a payload does not help (ADR 18).
// Reading memory that has gone is a fault: the caller is prepared for it. Reading what is on a disk
// waits for that, and the scheduler is not told: ask Holds or InMemory before.
//
//go:noinline
func Load(p []byte) (all byte) {
	for i := 0; i < len(p); i += line {
		all |= p[i]
	}
	all |= p[len(p)-1] // in the last line, if p does not begin with a line
	return all         // so that the loads are made
}
