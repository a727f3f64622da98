// Package tlspsk is where the pre-shared keys of TLS under NVMe/TCP come from:
// the form in which a configured key is written, the identities that name it in
// a handshake, and the key of the handshake itself.
//
//	NVMeTLSkey-1:hh:BASE64:            configured PSK
//	      │ HKDF, "HostNQN"            unless hh is 00
//	      ▼
//	retained PSK ──────────────────▶ identity: NVMe1R01 host subsystem digest
//	      │ HKDF, "nvme-tls-psk"           │
//	      ▼                                ▼
//	TLS PSK, under that identity
package tlspsk

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"strings"
)

// Hash names the hash function of a key, and of the cipher suite that goes with it.
type Hash uint8

// Hash functions.
const (
	None   Hash = 0 // only of a configured key: it is used as it is
	SHA256 Hash = 1 // TLS_AES_128_GCM_SHA256
	SHA384 Hash = 2 // TLS_AES_256_GCM_SHA384
)

func (h Hash) new() func() hash.Hash {
	if h == SHA384 {
		return sha512.New384
	}
	return sha256.New
}

// Key is a configured pre-shared key. It is written as
//
//	NVMeTLSkey-1:hh:base64(key || CRC-32 of the key, little-endian):
//
// with a key of 32 bytes for SHA-256 or 48 for SHA-384; hh names the hash that
// ties the key to the host, 00 for none. A Key prints as hidden.
type Key struct {
	psk  []byte
	hash Hash
}

const prefix = "NVMeTLSkey-1:"

var errForm = errors.New(`it is not of the form NVMeTLSkey-1:hh:BASE64: as "nvme gen-tls-key" prints it`)

// ParseKey reads a key. No error repeats any of it.
func ParseKey(s string) (*Key, error) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(s), prefix)
	if !ok || len(rest) < 4 || rest[0] != '0' || rest[2] != ':' || !strings.HasSuffix(rest, ":") {
		return nil, fmt.Errorf("TLS key: %w", errForm)
	}
	h := rest[1]
	if h < '0' || h > '2' {
		return nil, fmt.Errorf("TLS key: hash 0%c is not known; 00 to 02 are", h)
	}
	b, err := base64.StdEncoding.DecodeString(rest[3 : len(rest)-1])
	if err != nil {
		return nil, fmt.Errorf("TLS key: %w", errForm)
	}
	n := len(b) - 4
	if want := map[byte]int{'1': 32, '2': 48}[h]; n != 32 && n != 48 || want != 0 && n != want {
		return nil, fmt.Errorf("TLS key: %d bytes; it has 32 with hash 01, 48 with hash 02", max(n, 0))
	}
	if crc32.ChecksumIEEE(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, errors.New("TLS key: its check sum is wrong; a character may have been lost or changed")
	}
	return &Key{b[:n], Hash(h - '0')}, nil
}

// Equal reports whether two keys are the same; nil is a key of its own.
func (k *Key) Equal(o *Key) bool {
	if k == nil || o == nil {
		return k == o
	}
	return k.hash == o.hash && hmac.Equal(k.psk, o.psk)
}

// Reveal returns the key as it is written.
func (k *Key) Reveal() string {
	b := binary.LittleEndian.AppendUint32(append([]byte(nil), k.psk...), crc32.ChecksumIEEE(k.psk))
	return fmt.Sprintf("%s%02d:%s:", prefix, k.hash, base64.StdEncoding.EncodeToString(b))
}

// String hides the key.
func (k *Key) String() string { return "NVMe TLS key" }

// GoString hides the key.
func (k *Key) GoString() string { return k.String() }

// Suite returns the hash of the cipher suite that the key is for, by its length.
func (k *Key) Suite() Hash {
	if len(k.psk) == 48 {
		return SHA384
	}
	return SHA256
}

// Retained is a key that belongs to one host.
type Retained struct {
	key  []byte
	hash Hash // of the cipher suite
}

// For returns the key of a host.
func (k *Key) For(hostNQN string) (*Retained, error) {
	r := &Retained{k.psk, k.Suite()}
	if k.hash == None {
		return r, nil
	}
	var err error
	r.key, err = derive(k.hash, k.psk, "HostNQN", hostNQN)
	return r, err
}

// Version is the version of an identity.
type Version uint8

// Versions: 0 names hosts and subsystems, 1 a digest of the key as well, so that
// a wrong key is a key that is not known.
const (
	Version0 Version = 0
	Version1 Version = 1
)

// Identity returns the name of the key in a handshake, and the handshake's key.
func (r *Retained) Identity(v Version, hostNQN, subNQN string) (identity string, tlsPSK []byte, err error) {
	identity = fmt.Sprintf("NVMe%dR%02d %s %s", v, r.hash, hostNQN, subNQN)
	context := identity
	if v == Version1 {
		m := hmac.New(r.hash.new(), r.key)
		m.Write([]byte(hostNQN + " " + subNQN + " NVMe-over-Fabrics"))
		digest := base64.StdEncoding.EncodeToString(m.Sum(nil))
		identity += " " + digest
		context = fmt.Sprintf("%02d %s", r.hash, digest)
	}
	tlsPSK, err = derive(r.hash, r.key, "nvme-tls-psk", context)
	return identity, tlsPSK, err
}

// derive is HKDF-Expand-Label of RFC 8446 §7.1 over HKDF-Extract without salt, as
// long as the hash.
func derive(h Hash, secret []byte, label, context string) ([]byte, error) {
	n := h.new()().Size()
	prk, err := hkdf.Extract(h.new(), secret, make([]byte, n))
	if err != nil {
		return nil, err
	}
	full := "tls13 " + label
	if len(full) > 255 || len(context) > 255 {
		return nil, fmt.Errorf("TLS key: %q and %q are too long for a label", label, context)
	}
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	info = append(append(info, byte(len(full))), full...)
	info = append(append(info, byte(len(context))), context...)
	return hkdf.Expand(h.new(), prk, string(info), n)
}
