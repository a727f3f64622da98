package volume

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// companyID is the company id in derived NAA and EUI designators. It lies in
// the locally administered quadrant (AAI: the low nibble of the first octet is
// 2), so no company can own it; see ADR 40.
const companyID = 0x524953

// Identity is what initiators recognise a volume by, on every wire. It is derived once
// from the device's stable ID, so that it follows the volume from one target,
// LUN and restart to another, unless the configuration says otherwise.
type Identity struct {
	Serial string // at most 64 printable ASCII characters
	NAA    []byte // 8 bytes whose first nibble is 2, 3 or 5, or 16 that begin with 6
	EUI    []byte // 8, 12 or 16 bytes
}

// Key names the volume's files: no two volumes with state have the same one.
func (id *Identity) Key() string { return hex.EncodeToString(id.NAA) }

func (id *Identity) equal(o *Identity) bool {
	return id.Serial == o.Serial && bytes.Equal(id.NAA, o.NAA) && bytes.Equal(id.EUI, o.EUI)
}

// StableID is what stands for a device whose NAA name is given: nodes that reach it by
// different paths have to say the same of it.
func StableID(naa []byte) string { return "wwid:" + hex.EncodeToString(naa) }

// newIdentity derives the identity of a device with a stable ID, or of a place when
// there is none; what cfg says goes before, and with an NAA name the rest follows from it.
func newIdentity(cfg *Identity, stable, place string) (Identity, error) {
	seed := stable
	switch {
	case len(cfg.NAA) > 0:
		seed = StableID(cfg.NAA)
	case seed == "":
		seed = place // nothing to follow the volume by
	}
	sum := sha256.Sum256([]byte("softiser logical unit\x00" + seed))
	naa := make([]byte, 16) // NAA 6: company (24 bits), the rest of our own making
	binary.BigEndian.PutUint32(naa, 6<<28|companyID<<4|uint32(sum[0]&0xF))
	copy(naa[4:], sum[1:13])
	eui := append([]byte{companyID >> 16, companyID >> 8 & 0xFF, companyID & 0xFF}, sum[13:18]...)
	id := Identity{Serial: hex.EncodeToString(sum[18:28]), NAA: naa, EUI: eui}
	if cfg.Serial != "" {
		if len(cfg.Serial) > 64 || strings.ContainsFunc(cfg.Serial, func(r rune) bool { return r < 0x20 || r > 0x7E }) {
			return id, fmt.Errorf("serial number %q: want at most 64 printable ASCII characters", cfg.Serial)
		}
		id.Serial = cfg.Serial
	}
	if n := len(cfg.NAA); n > 0 {
		switch k := cfg.NAA[0] >> 4; {
		case n == 8 && (k == 2 || k == 3 || k == 5), n == 16 && k == 6:
			id.NAA = cfg.NAA
		default:
			return id, fmt.Errorf("NAA %x: want 8 bytes that begin with 2, 3 or 5, or 16 that begin with 6", cfg.NAA)
		}
	}
	if n := len(cfg.EUI); n > 0 {
		if n != 8 && n != 12 && n != 16 {
			return id, fmt.Errorf("EUI %x: want 8, 12 or 16 bytes", cfg.EUI)
		}
		id.EUI = cfg.EUI
	}
	return id, nil
}
