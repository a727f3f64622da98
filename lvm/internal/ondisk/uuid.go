package ondisk

import (
	"crypto/rand"
	"fmt"
)

const uuidAlphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// UUID is LVM's identifier: 32 characters of 0-9 a-z A-Z (and ! # in very old
// ones), printed in groups of 6-4-4-4-4-4-6.
type UUID [32]byte

// NewUUID returns a random identifier.
func NewUUID() UUID {
	var u UUID
	var b [1]byte
	for i := 0; i < len(u); {
		rand.Read(b[:]) // never fails
		// 248 is the largest multiple of 62: reject the rest, no bias.
		if b[0] < 248 {
			u[i] = uuidAlphabet[b[0]%62]
			i++
		}
	}
	return u
}

// IsZero reports whether u was never set.
func (u UUID) IsZero() bool { return u == UUID{} }

// String is the printed form with dashes.
func (u UUID) String() string {
	if u.IsZero() {
		return ""
	}
	s := string(u[:])
	return s[:6] + "-" + s[6:10] + "-" + s[10:14] + "-" + s[14:18] + "-" + s[18:22] + "-" + s[22:26] + "-" + s[26:]
}

// ParseUUID reads the printed form, or the 32 characters alone.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	n := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '-' {
			continue
		}
		if n == len(u) || !uuidChar(c) {
			return UUID{}, fmt.Errorf("%w: UUID %q", ErrFormat, s)
		}
		u[n] = c
		n++
	}
	if n != len(u) {
		return UUID{}, fmt.Errorf("%w: UUID %q has %d characters, not 32", ErrFormat, s, n)
	}
	return u, nil
}

func uuidChar(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '!' || c == '#'
}
