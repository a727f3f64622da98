package dhchap

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
)

// Hash names the hash function of an authentication.
type Hash uint8

// Hash functions.
const (
	SHA256 Hash = 1
	SHA384 Hash = 2
	SHA512 Hash = 3
)

// new returns the function; nil if it is not known.
func (h Hash) new() func() hash.Hash {
	switch h {
	case SHA256:
		return sha256.New
	case SHA384:
		return sha512.New384
	case SHA512:
		return sha512.New
	}
	return nil
}

// Size returns the length of a hash, bytes; 0 if the function is not known.
func (h Hash) Size() int {
	switch h {
	case SHA256:
		return sha256.Size
	case SHA384:
		return sha512.Size384
	case SHA512:
		return sha512.Size
	}
	return 0
}

// String returns the name of the function, as in the standard.
func (h Hash) String() string {
	switch h {
	case SHA256:
		return "SHA-256"
	case SHA384:
		return "SHA-384"
	case SHA512:
		return "SHA-512"
	}
	return fmt.Sprintf("hash %d", uint8(h))
}

// Name returns the name that Linux and SPDK give it in their options, sha256 for example.
func (h Hash) Name() string { return fmt.Sprintf("sha%d", 8*h.Size()) }

func (h Hash) hmac(key []byte, parts ...[]byte) []byte {
	m := hmac.New(h.new(), key)
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}

// augment hashes a challenge with the key that was agreed on; nil: there is none.
func (h Hash) augment(challenge, shared []byte) []byte {
	if shared == nil {
		return challenge
	}
	d := h.new()()
	d.Write(shared)
	return h.hmac(d.Sum(nil), challenge)
}
