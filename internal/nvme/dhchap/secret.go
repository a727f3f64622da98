package dhchap

import (
	"crypto/hmac"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// Secret is what one end proves to know. It is written as
//
//	DHHC-1:hh:base64(key || CRC-32 of the key, little-endian):
//
// with a key of 32, 48 or 64 bytes; hh names the hash that ties the key to the NQN
// of whose secret it is, 00 for none. A Secret prints as hidden.
type Secret struct {
	key  []byte
	hash Hash // 0: the key is used as it is
}

const (
	secretPrefix = "DHHC-1:"
	keySuffix    = "NVMe-over-Fabrics"
)

var errSecretForm = errors.New(`it is not of the form DHHC-1:hh:BASE64: as "nvme gen-dhchap-key" prints it`)

// ParseSecret reads a secret. No error repeats any of it.
func ParseSecret(s string) (*Secret, error) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(s), secretPrefix)
	if !ok || len(rest) < 4 || rest[2] != ':' || rest[0] != '0' || !strings.HasSuffix(rest, ":") {
		return nil, fmt.Errorf("DH-HMAC-CHAP secret: %w", errSecretForm)
	}
	h := rest[1]
	if h < '0' || h > '3' {
		return nil, fmt.Errorf("DH-HMAC-CHAP secret: hash 0%c is not known; 00 to 03 are", h)
	}
	b, err := base64.StdEncoding.DecodeString(rest[3 : len(rest)-1])
	if err != nil {
		return nil, fmt.Errorf("DH-HMAC-CHAP secret: %w", errSecretForm)
	}
	switch len(b) - 4 {
	case 32, 48, 64:
	default:
		return nil, fmt.Errorf("DH-HMAC-CHAP secret: a key of %d bytes; it has 32, 48 or 64", max(len(b)-4, 0))
	}
	key, sum := b[:len(b)-4], b[len(b)-4:]
	if crc32.ChecksumIEEE(key) != binary.LittleEndian.Uint32(sum) {
		return nil, errors.New("DH-HMAC-CHAP secret: its check sum is wrong; a character may have been lost or changed")
	}
	return &Secret{key, Hash(h - '0')}, nil
}

// NewSecret makes a random secret of 32 bytes that is used as it is.
func NewSecret() *Secret {
	s := &Secret{key: make([]byte, 32)}
	rand.Read(s.key)
	return s
}

// Equal reports whether two secrets are the same; nil is a secret of its own.
func (s *Secret) Equal(o *Secret) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.hash == o.hash && hmac.Equal(s.key, o.key)
}

// Reveal returns the secret as it is written.
func (s *Secret) Reveal() string {
	b := binary.LittleEndian.AppendUint32(append([]byte(nil), s.key...), crc32.ChecksumIEEE(s.key))
	return fmt.Sprintf("%s%02d:%s:", secretPrefix, s.hash, base64.StdEncoding.EncodeToString(b))
}

// String hides the secret.
func (s *Secret) String() string { return "DHHC-1 secret" }

// GoString hides the secret.
func (s *Secret) GoString() string { return s.String() }

// of returns the key as the end named nqn uses it.
func (s *Secret) of(nqn string) []byte {
	if s.hash == 0 {
		return s.key
	}
	return s.hash.hmac(s.key, []byte(nqn), []byte(keySuffix))
}
