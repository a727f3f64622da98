package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"softiser/rdma/internal/wire"
)

// EndCount is how many connections of a device have ended because one side has found a
// mistake of the other, for one reason.
type EndCount struct {
	Remote bool   // the peer has found it
	Layer  string // RDMAP, DDP, MPA; RoCE
	Reason string // RFC 5040 §4.8 and its like, or the NAK
	Code   string // layer/type/code of the Terminate, or the NAK's; "" for what no RFC knows
	Count  uint64
}

// endKey is what is counted. There are few: what a peer says that no RFC knows is one.
type endKey struct {
	remote bool
	cause  wire.Cause
	nak    uint8 // over RoCE
}

// unknownCause stands for the codes that no RFC has given a meaning.
const unknownCause = ^wire.Cause(0)

// ended counts the end of a connection, if it is one for which there is a code.
func (d *Device) ended(cause error) {
	var k endKey
	var te *TerminateError
	var nak *NAKError
	switch {
	case errors.As(cause, &te):
		k.remote, k.cause = te.Remote, wire.MakeCause(wire.Layer(te.Layer), te.EType, te.Code)
		if !k.cause.Known() {
			k.cause = unknownCause
		}
	case errors.As(cause, &nak):
		k.remote, k.nak = nak.Remote, nak.Code
	default:
		return
	}
	d.stat.mu.Lock()
	defer d.stat.mu.Unlock()
	if d.stat.ends == nil {
		d.stat.ends = map[endKey]uint64{}
	}
	d.stat.ends[k]++
}

// endsLocked lists them in a fixed order. The caller holds d.stat.mu.
func (d *Device) endsLocked() []EndCount {
	keys := slices.SortedFunc(maps.Keys(d.stat.ends), func(a, b endKey) int {
		switch {
		case a.remote != b.remote && b.remote:
			return -1
		case a.remote != b.remote:
			return 1
		}
		return cmp.Or(cmp.Compare(a.cause, b.cause), cmp.Compare(a.nak, b.nak))
	})
	var l []EndCount
	for _, k := range keys {
		e := EndCount{Remote: k.remote, Count: d.stat.ends[k]}
		switch {
		case k.nak != 0:
			e.Layer, e.Code = "RoCE", fmt.Sprint(k.nak)
			if e.Reason = nakReasons[k.nak]; e.Reason == "" {
				e.Reason = "unknown"
			}
		case k.cause == unknownCause:
			e.Layer, e.Reason = "unknown", "unknown"
		default:
			e.Layer, e.Reason = k.cause.Layer().String(), k.cause.Name()
			e.Code = fmt.Sprintf("%d/%d/%02x", uint8(k.cause.Layer()), k.cause.EType(), k.cause.Code())
		}
		l = append(l, e)
	}
	return l
}

var nakReasons = map[uint8]string{1: "invalid request", 2: "remote access error", 3: "remote operational error"}
