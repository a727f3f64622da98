package volume

import "sync/atomic"

// Gate is a set of conditions of a volume that refuse commands; a command's mask
// tells which ones concern it.
type Gate uint32

// Gates.
const (
	NoMedium       Gate = 1 << iota
	Sanitizing          // a sanitize runs
	SanitizeFailed      // one has failed
	ReadOnly            // the device, or the place, cannot be written
	WriteProtected      // initiators have said so
	Formatting          // a format runs
	Corrupt             // one has not ended
	Testing             // a test that nobody is to disturb runs
	Protected           // initiators have said so, and it is kept: see protect.go
	Closed              // the device is open on another node, or on none: see standby.go
	MediumGates    = NoMedium | Sanitizing | SanitizeFailed | Formatting | Corrupt | Closed
	WriteGates     = MediumGates | ReadOnly | WriteProtected | Protected
)

// gates is the part of a volume that keeps these conditions.
type gates struct{ up atomic.Uint32 }

// Gates returns the conditions that refuse commands.
func (g *gates) Gates() Gate { return Gate(g.up.Load()) }

// SetGate sets or clears conditions.
func (g *gates) SetGate(which Gate, on bool) {
	if on {
		g.up.Or(uint32(which))
	} else {
		g.up.And(^uint32(which))
	}
}
