package mem

// Access says what may be done with memory. Reading by this end is always allowed.
type Access uint8

// Access rights.
const (
	LocalWrite Access = 1 << iota
	RemoteRead
	RemoteWrite
	RemoteAtomic
	ZeroBased // the tagged offset of the first byte is 0 instead of its address
	Scratch   // the content is undefined until the region is invalidated
	Sink      // of a Read or atomic of this end; not open to writes of the peer
)
