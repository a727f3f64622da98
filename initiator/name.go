package initiator

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"

	"softiser/internal/iscsi"
)

// NameFile is where open-iscsi keeps the initiator name of a machine.
const NameFile = "/etc/iscsi/initiatorname.iscsi"

// DefaultInitiatorName returns the machine's initiator name: the one that
// open-iscsi uses when there is one that we may read, otherwise one derived
// from the machine's identity, so that it stays the same across runs.
func DefaultInitiatorName() string {
	if f, err := os.Open(NameFile); err == nil {
		defer f.Close()
		for sc := bufio.NewScanner(f); sc.Scan(); {
			if n, ok := strings.CutPrefix(strings.TrimSpace(sc.Text()), "InitiatorName="); ok && iscsi.CheckName(n) == nil {
				return n
			}
		}
	}
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(id) == 0 {
		host, _ := os.Hostname()
		id = []byte(host)
	}
	// machine-id(5) asks not to publish the id itself.
	sum := sha256.Sum256(append([]byte("softiser initiator name:"), id...))
	return "iqn.2026-11.softiser:initiator:" + hex.EncodeToString(sum[:6])
}

// ISIDAfter is the n-th session identifier after isid: its last two bytes, the qualifier (RFC 7143
// §11.12.5), tell the sessions of one initiator apart.
func ISIDAfter(isid [6]byte, n int) [6]byte {
	q := isid[4:]
	binary.BigEndian.PutUint16(q, binary.BigEndian.Uint16(q)+uint16(n))
	return isid
}
