package dhchap

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"sync"

	"filippo.io/bigmod"
)

// Group names the Diffie-Hellman group of an authentication.
type Group uint8

// Groups: none, and those of RFC 7919.
const (
	GroupNone Group = 0
	FFDHE2048 Group = 1
	FFDHE3072 Group = 2
	FFDHE4096 Group = 3
	FFDHE6144 Group = 4
	FFDHE8192 Group = 5
)

// groups are the parameters of RFC 7919: p = 2^b - 2^(b-64) + (floor(2^(b-130) e) + x) 2^64 - 1,
// with the generator 2. Exponents have twice the bits of the group's strength, and no fewer
// than appendix A asks for.
var groups = [...]struct {
	bits, exponent int
	x              int64
	modulus        func() *bigmod.Modulus
}{
	FFDHE2048: {bits: 2048, exponent: 225, x: 560316},
	FFDHE3072: {bits: 3072, exponent: 275, x: 2625351},
	FFDHE4096: {bits: 4096, exponent: 325, x: 5736041},
	FFDHE6144: {bits: 6144, exponent: 375, x: 15705020},
	FFDHE8192: {bits: 8192, exponent: 400, x: 10965728},
}

func init() {
	for i := range groups[1:] {
		g := &groups[i+1]
		g.modulus = sync.OnceValue(func() *bigmod.Modulus {
			m, err := bigmod.NewModulus(prime(g.bits, g.x).Bytes())
			if err != nil {
				panic(err) // odd and greater than 1
			}
			return m
		})
	}
}

// prime computes the prime of a group.
func prime(bits int, x int64) *big.Int {
	one := big.NewInt(1)
	pow := func(n int) *big.Int { return new(big.Int).Lsh(one, uint(n)) }
	p := scaledE(bits - 130)
	p.Add(p, big.NewInt(x)).Lsh(p, 64)
	p.Add(p, pow(bits)).Sub(p, pow(bits-64))
	return p.Sub(p, one)
}

// scaledE returns floor(2^n e), e being the base of the natural logarithm.
func scaledE(n int) *big.Int {
	const guard = 64 // bits that the rounding of the terms cannot reach
	term := new(big.Int).Lsh(big.NewInt(1), uint(n+guard))
	sum := new(big.Int)
	for k := int64(1); term.Sign() > 0; k++ {
		sum.Add(sum, term)
		term.Div(term, big.NewInt(k))
	}
	return sum.Rsh(sum, guard)
}

// Known reports whether g is one of the groups.
func (g Group) Known() bool { return int(g) < len(groups) }

// String returns the group's name, as in the standard.
func (g Group) String() string {
	if g == GroupNone {
		return "no group"
	}
	if g.Known() {
		return fmt.Sprintf("ffdhe%d", groups[g].bits)
	}
	return fmt.Sprintf("group %d", uint8(g))
}

// Name returns the name that Linux and SPDK give it in their options, null for none.
func (g Group) Name() string {
	if g == GroupNone {
		return "null"
	}
	return g.String()
}

// size returns the length of a public value, bytes.
func (g Group) size() int { return groups[g].bits / 8 }

// exchange is one end of a key exchange.
type exchange struct {
	group  Group
	secret []byte // exponent
	public []byte // 2^secret; nil: no group
}

// begin chooses an exponent and computes the public value.
func (g Group) begin() (*exchange, error) {
	e := &exchange{group: g}
	if g == GroupNone {
		return e, nil
	}
	m := groups[g].modulus()
	e.secret = make([]byte, (groups[g].exponent+7)/8)
	rand.Read(e.secret)
	two, err := bigmod.NewNat().SetBytes([]byte{2}, m)
	if err != nil {
		return nil, err
	}
	e.public = bigmod.NewNat().Exp(two, e.secret, m).Bytes(m)
	return e, nil
}

var errPublicValue = errors.New("the peer's Diffie-Hellman value is not between 1 and p-1")

// shared computes the shared key from the peer's public value; nil without a group.
func (e *exchange) shared(peer []byte) ([]byte, error) {
	if e.group == GroupNone {
		return nil, nil
	}
	m := groups[e.group].modulus()
	y, err := bigmod.NewNat().SetBytes(peer, m)
	if err != nil || y.IsZero() == 1 || y.IsOne() == 1 || y.IsMinusOne(m) == 1 {
		return nil, errPublicValue
	}
	return bigmod.NewNat().Exp(y, e.secret, m).Bytes(m), nil
}
