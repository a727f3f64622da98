package volume

// hold is the block range of a command in the task set.
type hold struct {
	lo, hi  uint64 // [lo, hi)
	kind    Hold
	granted bool   // an exclusive or a claim that runs
	joins   bool   // one among the exclusives that waits only for those before it, and is a write then
	order   uint64 // of the announcement of an exclusive or a claim
}

// Hold is how a command touches its blocks.
type Hold uint8

// Holds.
const (
	HoldNone      Hold = iota
	HoldRead           // runs beside everything but an exclusive
	HoldWrite          // likewise
	HoldStaged         // collects data, then becomes exclusive, or a write
	holdExclusive      // announced
)

func (h *hold) overlaps(o *hold) bool {
	return h.kind != HoldNone && o.kind != HoldNone && h.lo < o.hi && o.lo < h.hi
}
