package mem

// Fault is why a peer may not get at memory.
type Fault uint8

// Faults. The zero value is none.
const (
	None     Fault = iota
	NoRegion       // the STag names nothing, or nothing that is valid
	Foreign        // it belongs to another domain or stream
	Denied         // the rights do not include what was asked for
	Wrapped        // offset and length go beyond the end of the address space
	Outside        // they do not lie inside the region
)

// String says it in words.
func (f Fault) String() string {
	return [...]string{"none", "no such region", "region of another domain or stream", "access denied", "offset wraps", "outside the region"}[f]
}
