package scsi

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	spc "softiser/internal/scsi"

	"softiser/blockdev"
)

// companyID is the company id in derived NAA and EUI designators. It lies in
// the locally administered quadrant (AAI: the low nibble of the first octet is
// 2), so no company can own it; see ADR 0040.
const companyID = 0x524953

// identity is what initiators recognise a logical unit by. It is derived once
// from the volume's stable ID, so that it follows the volume from one target,
// LUN and restart to another, unless the configuration says otherwise.
type identity struct {
	serial string
	naa    []byte // 8 or 16 bytes
	eui    []byte // 8, 12 or 16 bytes
	key    string // names the unit's files in StateDir
}

func newIdentity(cfg *LUConfig, info blockdev.Info, target string) (identity, error) {
	seed := info.ID
	if seed == "" {
		// Nothing to follow the volume by: its place must do.
		seed = fmt.Sprintf("%s/%d", target, cfg.LUN)
	}
	sum := sha256.Sum256([]byte("softiser logical unit\x00" + seed))
	naa := spc.NAA6(companyID, [13]byte(sum[:13]))
	eui := append([]byte{companyID >> 16, companyID >> 8 & 0xFF, companyID & 0xFF}, sum[13:18]...)
	id := identity{serial: hex.EncodeToString(sum[18:28]), naa: naa[:], eui: eui}
	if cfg.Serial != "" {
		if len(cfg.Serial) > 64 || strings.ContainsFunc(cfg.Serial, func(r rune) bool { return r < 0x20 || r > 0x7E }) {
			return id, fmt.Errorf("serial number %q: want at most 64 printable ASCII characters", cfg.Serial)
		}
		id.serial = cfg.Serial
	}
	if n := len(cfg.NAA); n > 0 {
		switch k := cfg.NAA[0] >> 4; {
		case n == 8 && (k == 2 || k == 3 || k == 5), n == 16 && k == 6:
			id.naa = cfg.NAA
		default:
			return id, fmt.Errorf("NAA %x: want 8 bytes that begin with 2, 3 or 5, or 16 that begin with 6", cfg.NAA)
		}
	}
	if n := len(cfg.EUI); n > 0 {
		if n != 8 && n != 12 && n != 16 {
			return id, fmt.Errorf("EUI %x: want 8, 12 or 16 bytes", cfg.EUI)
		}
		id.eui = cfg.EUI
	}
	id.key = hex.EncodeToString(id.naa)
	return id, nil
}

// NAA returns the unit's NAA designator in hex, as in /dev/disk/by-id/wwn-0x….
func (lu *LU) NAA() string { return hex.EncodeToString(lu.id.naa) }

// Serial returns the unit serial number.
func (lu *LU) Serial() string { return lu.id.serial }
