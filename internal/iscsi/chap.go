package iscsi

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
)

// CHAP in iSCSI (RFC 7143 §12.1.3, RFC 1994):
//
//	I→T  CHAP_A=7,5                        algorithms, best first
//	T→I  CHAP_A=7 CHAP_I=id CHAP_C=challenge
//	I→T  CHAP_N=user CHAP_R=response [CHAP_I CHAP_C]      [mutual]
//	T→I                              [CHAP_N CHAP_R]
//
// with response = H(id ‖ secret ‖ challenge).

// CHAPAlgorithm is a hash by its registered PPP number.
type CHAPAlgorithm uint8

// CHAP algorithms.
const (
	CHAPMD5    CHAPAlgorithm = 5
	CHAPSHA1   CHAPAlgorithm = 6
	CHAPSHA256 CHAPAlgorithm = 7
	CHAPSHA3   CHAPAlgorithm = 8 // SHA3-256
)

// chapPreference is the order in which an initiator offers algorithms.
var chapPreference = []CHAPAlgorithm{CHAPSHA256, CHAPSHA3, CHAPSHA1, CHAPMD5}

// String names the hash.
func (a CHAPAlgorithm) String() string {
	switch a {
	case CHAPMD5:
		return "MD5"
	case CHAPSHA1:
		return "SHA1"
	case CHAPSHA256:
		return "SHA-256"
	case CHAPSHA3:
		return "SHA3-256"
	}
	return "CHAP algorithm " + strconv.Itoa(int(a))
}

// ParseCHAPAlgorithm reads a name as configuration files have it.
func ParseCHAPAlgorithm(s string) (CHAPAlgorithm, error) {
	switch strings.ToUpper(strings.ReplaceAll(s, "-", "")) {
	case "MD5":
		return CHAPMD5, nil
	case "SHA1":
		return CHAPSHA1, nil
	case "SHA256":
		return CHAPSHA256, nil
	case "SHA3256", "SHA3":
		return CHAPSHA3, nil
	}
	return 0, fmt.Errorf("CHAP algorithm %q is unknown; use MD5, SHA1, SHA-256 or SHA3-256", s)
}

func (a CHAPAlgorithm) new() hash.Hash {
	switch a {
	case CHAPMD5:
		return md5.New()
	case CHAPSHA1:
		return sha1.New()
	case CHAPSHA256:
		return sha256.New()
	case CHAPSHA3:
		return sha3.New256()
	}
	return nil
}

// Secret is a CHAP secret. It does not show in any formatted output.
type Secret []byte

// String hides the secret.
func (Secret) String() string { return "(secret)" }

// GoString hides the secret.
func (Secret) GoString() string { return "(secret)" }

// Format hides the secret from every verb.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, "(secret)") }

// MarshalText hides the secret from encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte("(secret)"), nil }

// CHAPResponse computes H(id ‖ secret ‖ challenge).
func CHAPResponse(a CHAPAlgorithm, id byte, s Secret, challenge []byte) []byte {
	h := a.new()
	h.Write([]byte{id})
	h.Write(s)
	h.Write(challenge)
	return h.Sum(nil)
}

// newChallenge makes a challenge as long as the digest.
func newChallenge(r io.Reader, a CHAPAlgorithm) (id byte, challenge []byte, err error) {
	if r == nil {
		r = rand.Reader
	}
	b := make([]byte, 1+a.new().Size())
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, fmt.Errorf("no random numbers for a CHAP challenge: %w", err)
	}
	return b[0], b[1:], nil
}

// chapKeys are the CHAP keys of one text; a nil slice or empty string was absent.
type chapKeys struct {
	algorithms []CHAPAlgorithm
	id         int // -1: absent
	challenge  []byte
	name       string
	response   []byte
	hasName    bool
}

// parseCHAP reads the CHAP keys; each may appear once.
func parseCHAP(kvs []KeyValue) (chapKeys, error) {
	c := chapKeys{id: -1}
	seen := map[string]bool{}
	for _, kv := range kvs {
		if seen[kv.Key] {
			return c, fmt.Errorf("%s is repeated", kv.Key)
		}
		seen[kv.Key] = true
		var err error
		switch kv.Key {
		case keyCHAPA:
			for _, a := range splitList(kv.Value) {
				// An unknown number is not an error: others may be known.
				if v, err := parseNumber(a); err == nil && v <= 255 && CHAPAlgorithm(v).new() != nil {
					c.algorithms = append(c.algorithms, CHAPAlgorithm(v))
				}
			}
			if c.algorithms == nil {
				c.algorithms = []CHAPAlgorithm{}
			}
		case keyCHAPI:
			var v uint32
			if v, err = parseNumber(kv.Value); err == nil && v <= 255 {
				c.id = int(v)
			} else {
				err = fmt.Errorf("CHAP_I=%.20q is not a number up to 255", kv.Value)
			}
		case keyCHAPC:
			if c.challenge, err = parseBinary(kv.Value); err == nil && len(c.challenge) == 0 {
				err = errors.New("CHAP_C is empty")
			}
		case keyCHAPN:
			c.name, c.hasName = kv.Value, true
		case keyCHAPR:
			if c.response, err = parseBinary(kv.Value); err == nil && len(c.response) == 0 {
				err = errors.New("CHAP_R is empty")
			}
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

func isAuthKey(key string) bool { return key == keyAuthMethod || strings.HasPrefix(key, "CHAP_") }

// TargetAuth is what a target asks of an initiator.
type TargetAuth struct {
	// Required: the login fails without CHAP.
	Required bool
	// Algorithms that are accepted; nil accepts all.
	Algorithms []CHAPAlgorithm
	// Lookup returns the secret of a user; nil: there are no users.
	Lookup func(user string) (Secret, bool)
	// MutualUser and MutualSecret answer the initiator's challenge.
	MutualUser   string
	MutualSecret Secret
}

// InitiatorAuth is what an initiator can prove and what it asks of the target.
type InitiatorAuth struct {
	User   string
	Secret Secret
	// Algorithms to offer, best first; nil offers all.
	Algorithms []CHAPAlgorithm
	// MutualSecret: the target must prove that it knows this secret, and, if
	// MutualUser is set, give that name.
	MutualUser   string
	MutualSecret Secret
	// Optional offers None as well.
	Optional bool
}

// chapTarget is the target's half of the exchange.
type chapTarget struct {
	auth      *TargetAuth
	alg       CHAPAlgorithm
	id        byte
	challenge []byte
	user      string
}

// challengeFor answers CHAP_A.
func (c *chapTarget) challengeFor(dst []byte, k *chapKeys, random io.Reader) ([]byte, error) {
	c.alg = 0
	for _, a := range k.algorithms {
		if c.auth.Algorithms == nil || slices.Contains(c.auth.Algorithms, a) {
			c.alg = a
			break
		}
	}
	if c.alg == 0 {
		return dst, Refuse(LoginAuthFailure, "the initiator offers no CHAP algorithm that this target accepts (it accepts %v)", c.accepted())
	}
	var err error
	if c.id, c.challenge, err = newChallenge(random, c.alg); err != nil {
		return dst, Refuse(LoginTargetFailure, "%v", err)
	}
	dst = AppendKey(dst, keyCHAPA, strconv.Itoa(int(c.alg)))
	dst = AppendKey(dst, keyCHAPI, strconv.Itoa(int(c.id)))
	return AppendKey(dst, keyCHAPC, formatBinary(c.challenge)), nil
}

func (c *chapTarget) accepted() []CHAPAlgorithm {
	if c.auth.Algorithms == nil {
		return chapPreference
	}
	return c.auth.Algorithms
}

// verify checks CHAP_N and CHAP_R and answers the initiator's own challenge.
func (c *chapTarget) verify(dst []byte, k *chapKeys) ([]byte, error) {
	if !k.hasName || k.response == nil {
		return dst, Refuse(LoginAuthFailure, "CHAP_N or CHAP_R is missing")
	}
	var secret Secret
	known := false
	if c.auth.Lookup != nil {
		secret, known = c.auth.Lookup(k.name)
	}
	// An unknown user costs the same time as a wrong secret.
	good := hmac.Equal(k.response, CHAPResponse(c.alg, c.id, secret, c.challenge))
	if !known {
		return dst, Refuse(LoginAuthFailure, "CHAP user %.80q is unknown", k.name)
	}
	if !good {
		return dst, Refuse(LoginAuthFailure, "CHAP user %.80q gave a wrong response (%s): its secret differs from ours", k.name, c.alg)
	}
	c.user = k.name
	if k.challenge == nil && k.id < 0 {
		return dst, nil
	}
	switch {
	case k.challenge == nil || k.id < 0:
		return dst, Refuse(LoginAuthFailure, "the initiator sent only one of CHAP_I and CHAP_C")
	case len(c.auth.MutualSecret) == 0:
		return dst, Refuse(LoginAuthFailure, "the initiator asks for mutual CHAP, but this target has no secret of its own")
	case bytes.Equal(k.challenge, c.challenge):
		// RFC 7143 §12.1.3: a reflected challenge would have us compute the answer.
		return dst, Refuse(LoginAuthFailure, "the initiator sent our own challenge back (reflection attack)")
	case hmac.Equal(secret, c.auth.MutualSecret):
		return dst, Refuse(LoginAuthFailure, "both directions of mutual CHAP have the same secret, which RFC 7143 §12.1.3 forbids")
	}
	dst = AppendKey(dst, keyCHAPN, c.auth.MutualUser)
	return AppendKey(dst, keyCHAPR, formatBinary(CHAPResponse(c.alg, byte(k.id), c.auth.MutualSecret, k.challenge))), nil
}

// chapInitiator is the initiator's half of the exchange.
type chapInitiator struct {
	auth      *InitiatorAuth
	alg       CHAPAlgorithm
	id        byte
	challenge []byte // ours, for mutual authentication
}

func (c *chapInitiator) algorithms() []CHAPAlgorithm {
	if len(c.auth.Algorithms) == 0 {
		return chapPreference
	}
	return c.auth.Algorithms
}

// offer appends CHAP_A.
func (c *chapInitiator) offer(dst []byte) []byte {
	var l []string
	for _, a := range c.algorithms() {
		l = append(l, strconv.Itoa(int(a)))
	}
	return AppendKey(dst, keyCHAPA, strings.Join(l, ","))
}

// respond answers the target's challenge.
func (c *chapInitiator) respond(dst []byte, k *chapKeys, random io.Reader) ([]byte, error) {
	if len(k.algorithms) != 1 || k.id < 0 || k.challenge == nil {
		return dst, Refuse(LoginAuthFailure, "the target's CHAP_A, CHAP_I and CHAP_C are incomplete, or it knows none of our algorithms %v", c.algorithms())
	}
	c.alg = k.algorithms[0]
	if !slices.Contains(c.algorithms(), c.alg) {
		return dst, Refuse(LoginAuthFailure, "the target chose %s, which was not offered", c.alg)
	}
	dst = AppendKey(dst, keyCHAPN, c.auth.User)
	dst = AppendKey(dst, keyCHAPR, formatBinary(CHAPResponse(c.alg, byte(k.id), c.auth.Secret, k.challenge)))
	if len(c.auth.MutualSecret) == 0 {
		return dst, nil
	}
	if hmac.Equal(c.auth.Secret, c.auth.MutualSecret) {
		return dst, Refuse(LoginAuthFailure, "both directions of mutual CHAP have the same secret, which RFC 7143 §12.1.3 forbids")
	}
	var err error
	if c.id, c.challenge, err = newChallenge(random, c.alg); err != nil {
		return dst, Refuse(LoginInitiatorFailure, "%v", err)
	}
	if bytes.Equal(c.challenge, k.challenge) {
		return dst, Refuse(LoginAuthFailure, "the random number generator repeats the target's challenge")
	}
	dst = AppendKey(dst, keyCHAPI, strconv.Itoa(int(c.id)))
	return AppendKey(dst, keyCHAPC, formatBinary(c.challenge)), nil
}

// verify checks the target's proof.
func (c *chapInitiator) verify(k *chapKeys) error {
	if c.challenge == nil {
		return nil
	}
	switch {
	case !k.hasName || k.response == nil:
		return Refuse(LoginAuthFailure, "mutual CHAP: the target accepted us but did not prove itself (CHAP_N or CHAP_R is missing)")
	case c.auth.MutualUser != "" && c.auth.MutualUser != k.name:
		return Refuse(LoginAuthFailure, "mutual CHAP: the target calls itself %.80q, expected %q", k.name, c.auth.MutualUser)
	case !hmac.Equal(k.response, CHAPResponse(c.alg, c.id, c.auth.MutualSecret, c.challenge)):
		return Refuse(LoginAuthFailure, "mutual CHAP: the target %.80q gave a wrong response; its secret differs from ours, or it is not the target it claims to be", k.name)
	}
	c.challenge = nil
	return nil
}
