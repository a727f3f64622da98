package tls13psk

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"hash"
)

// Suite is a cipher suite.
type Suite uint16

// Cipher suites.
const (
	AES128GCMSHA256 Suite = 0x1301
	AES256GCMSHA384 Suite = 0x1302
)

// Known reports whether s is one of the suites.
func (s Suite) Known() bool { return s == AES128GCMSHA256 || s == AES256GCMSHA384 }

// String returns the name of the suite.
func (s Suite) String() string {
	switch s {
	case AES128GCMSHA256:
		return "TLS_AES_128_GCM_SHA256"
	case AES256GCMSHA384:
		return "TLS_AES_256_GCM_SHA384"
	}
	return "unknown cipher suite"
}

func (s Suite) hash() func() hash.Hash {
	if s == AES256GCMSHA384 {
		return sha512.New384
	}
	return sha256.New
}

func (s Suite) size() int { return s.hash()().Size() }

func (s Suite) keyLen() int {
	if s == AES256GCMSHA384 {
		return 32
	}
	return 16
}

// expand is HKDF-Expand-Label (RFC 8446 §7.1).
func (s Suite) expand(secret []byte, label string, context []byte, n int) []byte {
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	info = append(info, byte(len("tls13 ")+len(label)))
	info = append(append(info, "tls13 "...), label...)
	info = append(append(info, byte(len(context))), context...)
	b, err := hkdf.Expand(s.hash(), secret, string(info), n)
	if err != nil {
		panic("tls13psk: " + err.Error()) // n is a constant far below the limit
	}
	return b
}

// extract is HKDF-Extract.
func (s Suite) extract(salt, ikm []byte) []byte {
	if ikm == nil {
		ikm = make([]byte, s.size())
	}
	b, err := hkdf.Extract(s.hash(), ikm, salt)
	if err != nil {
		panic("tls13psk: " + err.Error())
	}
	return b
}

// derive is Derive-Secret of what transcript has hashed; nil: of nothing.
func (s Suite) derive(secret []byte, label string, transcript hash.Hash) []byte {
	if transcript == nil {
		transcript = s.hash()()
	}
	return s.expand(secret, label, transcript.Sum(nil), s.size())
}

// finished computes the MAC of a Finished, or a binder, over a transcript's hash.
func (s Suite) finished(base, sum []byte) []byte {
	m := hmac.New(s.hash(), s.expand(base, "finished", nil, s.size()))
	m.Write(sum)
	return m.Sum(nil)
}

// binder computes the binder of an external key over the hash of a ClientHello without
// its binders (§4.2.11.2).
func (s Suite) binder(psk, sum []byte) []byte {
	return s.finished(s.derive(s.extract(nil, psk), "ext binder", nil), sum)
}

// secrets is the key schedule of a connection (§7.1).
type secrets struct {
	suite                  Suite
	transcript             hash.Hash
	handshake              []byte
	clientTraffic          []byte // of the handshake
	serverTraffic          []byte
	clientData, serverData []byte // of application data
}

// agree goes on with the shared key, when ServerHello is in the transcript.
func (k *secrets) agree(psk, shared []byte) {
	s := k.suite
	k.handshake = s.extract(s.derive(s.extract(nil, psk), "derived", nil), shared)
	k.clientTraffic = s.derive(k.handshake, "c hs traffic", k.transcript)
	k.serverTraffic = s.derive(k.handshake, "s hs traffic", k.transcript)
}

// data goes on when the server's Finished is in the transcript.
func (k *secrets) data() {
	s := k.suite
	master := s.extract(s.derive(k.handshake, "derived", nil), nil)
	k.clientData = s.derive(master, "c ap traffic", k.transcript)
	k.serverData = s.derive(master, "s ap traffic", k.transcript)
}

// aead returns the cipher and the IV of a traffic secret (§7.3).
func (s Suite) aead(traffic []byte) (cipher.AEAD, [12]byte) {
	b, err := aes.NewCipher(s.expand(traffic, "key", nil, s.keyLen()))
	if err != nil {
		panic("tls13psk: " + err.Error())
	}
	g, err := cipher.NewGCM(b)
	if err != nil {
		panic("tls13psk: " + err.Error())
	}
	return g, [12]byte(s.expand(traffic, "iv", nil, 12))
}
