package tls13psk

import (
	"crypto/ecdh"
	"crypto/rand"
)

// group is a named group of the key exchange.
type group uint16

const (
	p256   group = 23
	x25519 group = 29
)

// groups are those that are used, the best first.
var groups = []group{x25519, p256}

func (g group) curve() ecdh.Curve {
	switch g {
	case x25519:
		return ecdh.X25519()
	case p256:
		return ecdh.P256()
	}
	return nil
}

// generate makes a key and the share that goes with it.
func (g group) generate() (*ecdh.PrivateKey, share, *Error) {
	k, err := g.curve().GenerateKey(rand.Reader)
	if err != nil {
		return nil, share{}, &Error{Alert: InternalError, Err: err}
	}
	return k, share{g, k.PublicKey().Bytes()}, nil
}

// shared computes the shared secret with the peer's share.
func (s share) shared(k *ecdh.PrivateKey) ([]byte, *Error) {
	pub, err := s.group.curve().NewPublicKey(s.public)
	if err != nil {
		return nil, &Error{Alert: IllegalParameter, Err: err}
	}
	b, err := k.ECDH(pub) // fails for the all-zero value (RFC 8446 §7.4.2)
	if err != nil {
		return nil, &Error{Alert: IllegalParameter, Err: err}
	}
	return b, nil
}
