package scsi

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync"

	spc "softiser/internal/scsi"

	"softiser/blockdev"
)

// Thresholds of thin provisioning (SBC-4 §4.7.3.7). A unit whose volume meters
// its space, which is that of a pool, tells it in the Logical Block Provisioning
// log page, counted in threshold sets of 2^(THRESHOLD EXPONENT) blocks, and has
// a mode page of the same name with descriptors that initiators set:
//
//	       resource falls below (rises above) the threshold's range
//	Armed ----------------------------------------------------------> Reached
//	  ^              unit attention 38/07 for every nexus                |
//	  +------------------------------------------------------------------+
//	       resource rises above (falls below) the range again
//
// The range is a threshold set wide, half of it on each side of the count, so
// that a use that wavers around it is one warning. One that is enabled when it
// has been reached already waits to be armed. The pool's own alarms, at 80 % and
// more of data or metadata, are told in the same way. LBPERE turns both off.

// Resources of thresholds, which are parameter codes of the log page as well.
const (
	resourceAvailable = 1 // armed decreasing
	resourceUsed      = 2 // armed increasing
)

// maxThresholds is how many descriptors the mode page has.
const maxThresholds = 4

// threshold is a threshold descriptor, of the soft type.
type threshold struct {
	Enabled  bool   `json:"enabled"`
	Resource uint8  `json:"resource"` // 0 only if not enabled
	Count    uint32 `json:"count"`    // threshold sets
}

// increasing is the arming that goes with the resource.
func (h *threshold) increasing() bool { return h.Resource == resourceUsed }

// spaceWatch looks after the thresholds of a unit.
type spaceWatch struct {
	meter blockdev.SpaceMeter // nil: there are none
	exp   uint8               // THRESHOLD EXPONENT
	bytes int64               // of a threshold set

	mu         sync.Mutex // guards what follows; the meter is asked under it
	last       blockdev.SpaceUsage
	report     bool // LBPERE
	thresholds [maxThresholds]threshold
	armed      [maxThresholds]bool
}

// init finds out whether the volume meters its space. Threshold sets are of 1
// MiB, smaller where the whole space is less than a thousand of them, larger
// where a count would need more than 32 bits.
func (w *spaceWatch) init(lu *LU) {
	m, ok := lu.vol.(blockdev.SpaceMeter)
	if !ok {
		return
	}
	u := m.SpaceUsage()
	if u.Total <= 0 {
		return
	}
	g := lu.geo()
	size := int64(1 << 20)
	for size > 2*int64(g.info.BlockSize) && size > u.Total>>10 {
		size >>= 1
	}
	for max(u.Total, g.info.Size)/size > math.MaxUint32 {
		size <<= 1
	}
	w.meter, w.bytes, w.last = m, size, u
	w.exp = uint8(bits.TrailingZeros64(uint64(size))) - g.shift
}

// configure takes the mode parameters over.
func (w *spaceWatch) configure(report bool, all [maxThresholds]threshold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report = report
	if all != w.thresholds {
		w.thresholds = all
		clear(w.armed[:])
		w.passLocked()
	}
}

// configured returns the mode parameters.
func (w *spaceWatch) configured() (report bool, all [maxThresholds]threshold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report, w.thresholds
}

// checkSpace looks whether a threshold has been reached.
func (lu *LU) checkSpace() {
	w := &lu.space
	w.mu.Lock()
	w.last = w.meter.SpaceUsage()
	reached := w.passLocked() && w.report
	w.mu.Unlock()
	if reached {
		lu.attention(spc.ASCSoftThreshold, nil)
	}
}

// lowSpace passes an alarm of the volume on, unless initiators have turned such
// reports off.
func (lu *LU) lowSpace() {
	if report, _ := lu.space.configured(); report || !metersSpace(lu) {
		lu.attention(spc.ASCSoftThreshold, nil)
	}
}

// passLocked arms thresholds, and reports whether one of those that were armed
// has been reached.
func (w *spaceWatch) passLocked() (reached bool) {
	for i := range w.thresholds {
		h := &w.thresholds[i]
		if !h.Enabled {
			continue
		}
		lo, hi := int64(h.Count)*w.bytes-w.bytes/2, int64(h.Count)*w.bytes+w.bytes/2
		available := w.last.Total - w.last.Used
		before, behind := available > hi, available < lo
		if h.increasing() {
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

// counts returns the resources in threshold sets: what is available rounded
// down, what is used rounded up.
func (w *spaceWatch) counts() (available, used uint32) {
	u := w.meter.SpaceUsage()
	sets := func(n int64) uint32 { return uint32(min(max(n, 0)/w.bytes, math.MaxUint32)) }
	return sets(u.Total - u.Used), sets(u.Used + w.bytes - 1)
}

func metersSpace(lu *LU) bool { return lu.space.meter != nil }

// appendProvisioningPage is the Logical Block Provisioning mode page (SBC-4
// §6.5.8). SITUA is 0: the volume, not a command, says when a threshold is
// reached, so every nexus is told.
//
//	+--+-------------------------------------------------+
//	| 0| PS(80h) SPF(40h) 1Ch, subpage 02h               |
//	| 2| page length (2)                                 |
//	| 4| SITUA(01h), reserved (11)                       |
//	|16| ENABLED(80h) type(38h)=0 arming(07h)            |
//	|17| resource, reserved (2)                          |
//	|20| threshold count (4), then the next descriptor … |
//	+--+-------------------------------------------------+
func appendProvisioningPage(_ *LU, b []byte, v modeValues) []byte {
	b = append(b, 0x5C, 0x02, 0, 12+8*maxThresholds, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	for i := range v.Thresholds {
		h := &v.Thresholds[i]
		first := byte(0)
		if h.Enabled {
			first = 0x80
		}
		if h.increasing() {
			first |= 1
		}
		b = append(b, first, h.Resource, 0, 0)
		b = binary.BigEndian.AppendUint32(b, h.Count)
	}
	return b
}

// maskProvisioningPage marks what can change, in the page at b.
func maskProvisioningPage(b []byte) {
	for d := b[16:]; len(d) > 0; d = d[8:] {
		d[0], d[1] = 0x81, 0x03
		binary.BigEndian.PutUint32(d[4:], math.MaxUint32)
	}
}

// applyProvisioningPage takes the descriptors, and returns the offset of the
// first field that makes no sense, or -1.
func applyProvisioningPage(p []byte, v *modeValues) int {
	for i := range v.Thresholds {
		at := 16 + 8*i
		d := p[at:]
		h := threshold{d[0]&0x80 != 0, d[1], binary.BigEndian.Uint32(d[4:])}
		switch {
		case h.Resource > resourceUsed, h.Enabled && h.Resource == 0:
			return at + 1
		case h.increasing() != (d[0]&1 != 0):
			return at
		}
		v.Thresholds[i] = h
	}
	return -1
}
