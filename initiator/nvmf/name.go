package nvmf

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"

	"softiser/internal/nvme"
)

const uuidNQN = "nqn.2014-08.org.nvmexpress:uuid:"

// DefaultHostNQN is the name in /etc/nvme/hostnqn, else one made of the machine's
// identifier.
func DefaultHostNQN() string {
	if s := firstLine("/etc/nvme/hostnqn"); nvme.CheckNQN(s) == nil {
		return s
	}
	id := derive(firstLine("/etc/machine-id"))
	if firstLine("/etc/machine-id") == "" {
		rand.Read(id[:]) // never fails
	}
	return uuidNQN + nvme.HostID(id).String()
}

// hostIDOf returns the identifier that goes with a host's name: the UUID in it, that of
// /etc/nvme/hostid when it is the name in hostnqn, or one derived from it. Whoever has the
// same name has the same identifier, as controllers expect.
func hostIDOf(name string) [16]byte {
	if s, ok := strings.CutPrefix(name, uuidNQN); ok {
		if id, ok := parseUUID(s); ok {
			return id
		}
	}
	if firstLine("/etc/nvme/hostnqn") == name {
		if id, ok := parseUUID(firstLine("/etc/nvme/hostid")); ok {
			return id
		}
	}
	return derive(name)
}

func firstLine(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	s, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(s)
}

func parseUUID(s string) (id [16]byte, ok bool) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != len(id) {
		return id, false
	}
	copy(id[:], b)
	return id, id != [16]byte{}
}

// derive makes a UUID of version 8 (RFC 9562 §5.8), which says that its bits mean nothing.
func derive(s string) (id [16]byte) {
	sum := sha256.Sum256([]byte("softiser host\x00" + s))
	copy(id[:], sum[:])
	id[6] = id[6]&0x0F | 0x80
	id[8] = id[8]&0x3F | 0x80
	return id
}
