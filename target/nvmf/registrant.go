package nvmf

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// registrant is how a host is remembered: all controllers of one host share a
// registration, through whichever port they came.
func registrant(sub, host string, id nvme.HostID) volume.Registrant {
	return volume.Registrant{Initiator: hostPrefix + hex.EncodeToString(id[:]) + "," + host, Target: sub}
}

const hostPrefix = "nvme,"

// HostOf returns the NQN and identifier of a registrant that is a host, false of one that
// came by another wire.
func HostOf(k volume.Registrant) (nqn, id string, ok bool) {
	rest, ok := strings.CutPrefix(k.Initiator, hostPrefix)
	if ok {
		_, nqn, ok = strings.Cut(rest, ",")
	}
	return nqn, hostIDOf(k).String(), ok
}

// hostIDOf returns the host identifier of a registrant. One that came by another wire
// has none; it is given one that no host has made up, always the same.
func hostIDOf(k volume.Registrant) (id nvme.HostID) {
	if rest, ok := strings.CutPrefix(k.Initiator, hostPrefix); ok && len(rest) >= 2*len(id) {
		if b, err := hex.DecodeString(rest[:2*len(id)]); err == nil {
			copy(id[:], b)
			return id
		}
	}
	sum := sha256.Sum256([]byte("softiser registrant\x00" + k.Initiator + "\x00" + k.Target))
	copy(id[:], sum[:])
	id[6], id[8] = id[6]&0x0F|0x80, id[8]&0x3F|0x80 // a UUID of version 8
	return id
}
