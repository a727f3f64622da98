package scsi

import (
	"encoding/binary"
	"math"

	"softiser/target/volume"
)

// The mode page of thresholds of thin provisioning (SBC-4 §4.7.3.7): volume.Space
// watches them. LBPERE, in the page of error recovery, turns the warnings off.

func metersSpace(lu *LU) bool { return lu.vol.Space.Meters() }

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
	b = append(b, 0x5C, 0x02, 0, 12+8*volume.MaxThresholds, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	for i := range v.Thresholds {
		h := &v.Thresholds[i]
		first := byte(0)
		if h.Enabled {
			first = 0x80
		}
		if h.Increasing() {
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
		h := volume.Threshold{Enabled: d[0]&0x80 != 0, Resource: d[1], Count: binary.BigEndian.Uint32(d[4:])}
		switch {
		case h.Resource > volume.ResourceUsed, h.Enabled && h.Resource == 0:
			return at + 1
		case h.Increasing() != (d[0]&1 != 0):
			return at
		}
		v.Thresholds[i] = h
	}
	return -1
}
