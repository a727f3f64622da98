package volume

import (
	"math"
	"math/bits"
	"sync"

	"softiser/blockdev"
)

// Thresholds of thin provisioning (SBC-4 §4.7.3.7). A volume whose device meters
// its space, which is that of a pool, tells it counted in threshold sets of 2^Exponent
// blocks, and warns at thresholds that initiators set:
//
//	       resource falls below (rises above) the threshold's range
//	Armed ----------------------------------------------------------> Reached
//	  ^              SpaceLow for every face                                 |
//	  +------------------------------------------------------------------+
//	       resource rises above (falls below) the range again
//
// The range is a threshold set wide, half of it on each side of the count, so
// that a use that wavers around it is one warning. One that is enabled when it
// has been reached already waits to be armed. The pool's own alarms, at 80 % and
// more of data or metadata, are told in the same way. Both can be turned off.

// Resources of thresholds, numbered as SBC-4 does.
const (
	ResourceAvailable = 1 // armed decreasing
	ResourceUsed      = 2 // armed increasing
)

// MaxThresholds is how many thresholds a volume has.
const MaxThresholds = 4

// Threshold is one of them, of the soft type.
type Threshold struct {
	Enabled  bool   `json:"enabled"`
	Resource uint8  `json:"resource"` // 0 only if not enabled
	Count    uint32 `json:"count"`    // threshold sets
}

// Increasing is the arming that goes with the resource.
func (h *Threshold) Increasing() bool { return h.Resource == ResourceUsed }

// Space looks after the thresholds of a volume.
type Space struct {
	tell  func(Event)
	meter blockdev.SpaceMeter // nil: there are none
	exp   uint8               // log2 of a threshold set in blocks
	bytes int64               // of a threshold set

	mu         sync.Mutex // guards what follows; the meter is asked under it
	last       blockdev.SpaceUsage
	report     bool
	thresholds [MaxThresholds]Threshold
	armed      [MaxThresholds]bool
}

// init finds out whether the volume meters its space. Threshold sets are of 1
// MiB, smaller where the whole space is less than a thousand of them, larger
// where a count would need more than 32 bits.
func (w *Space) init(medium *medium, tell func(Event)) {
	w.tell = tell
	m, ok := medium.dev.(blockdev.SpaceMeter)
	if !ok {
		return
	}
	u := m.SpaceUsage()
	if u.Total <= 0 {
		return
	}
	g := medium.Geo()
	size := int64(1 << 20)
	for size > 2*int64(g.Info.BlockSize) && size > u.Total>>10 {
		size >>= 1
	}
	for max(u.Total, g.Info.Size)/size > math.MaxUint32 {
		size <<= 1
	}
	w.meter, w.bytes, w.last = m, size, u
	w.exp = uint8(bits.TrailingZeros64(uint64(size))) - g.Shift
}

// Configure says whether warnings are told, and at which thresholds.
func (w *Space) Configure(report bool, all [MaxThresholds]Threshold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report = report
	if all != w.thresholds {
		w.thresholds = all
		clear(w.armed[:])
		w.passLocked()
	}
}

// Configured returns what Configure has set.
func (w *Space) Configured() (report bool, all [MaxThresholds]Threshold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report, w.thresholds
}

// check looks whether a threshold has been reached.
func (w *Space) check() {
	w.mu.Lock()
	w.last = w.meter.SpaceUsage()
	reached := w.passLocked() && w.report
	w.mu.Unlock()
	if reached {
		w.tell(Event{Kind: SpaceLow})
	}
}

// low passes an alarm of the volume on, unless initiators have turned such
// reports off.
func (w *Space) low() {
	if report, _ := w.Configured(); report || !w.Meters() {
		w.tell(Event{Kind: SpaceLow})
	}
}

// passLocked arms thresholds, and reports whether one of those that were armed
// has been reached.
func (w *Space) passLocked() (reached bool) {
	for i := range w.thresholds {
		h := &w.thresholds[i]
		if !h.Enabled {
			continue
		}
		lo, hi := int64(h.Count)*w.bytes-w.bytes/2, int64(h.Count)*w.bytes+w.bytes/2
		available := w.last.Total - w.last.Used
		before, behind := available > hi, available < lo
		if h.Increasing() {
			before, behind = w.last.Used < lo, w.last.Used > hi
		}
		switch {
		case before:
			w.armed[i] = true
		case behind && w.armed[i]:
			w.armed[i] = false
			reached = true
		}
	}
	return reached
}

// Counts returns the resources in threshold sets: what is available rounded
// down, what is used rounded up.
func (w *Space) Counts() (available, used uint32) {
	u := w.meter.SpaceUsage()
	sets := func(n int64) uint32 { return uint32(min(max(n, 0)/w.bytes, math.MaxUint32)) }
	return sets(u.Total - u.Used), sets(u.Used + w.bytes - 1)
}

// Meters reports whether the device says how full its space is.
func (w *Space) Meters() bool { return w.meter != nil }

// Exponent is the log2 of a threshold set in blocks.
func (w *Space) Exponent() uint8 { return w.exp }
