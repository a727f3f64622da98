package packet

// PSN is a packet sequence number: 24 bits that wrap (IBA vol. 1 §9.7.2).
type PSN uint32

const psnBits = 24

// PSNMask holds the bits that a PSN has.
const PSNMask = 1<<psnBits - 1

// Add is the number n packets after p; n may be negative.
func (p PSN) Add(n int) PSN { return PSN(uint32(p)+uint32(n)) & PSNMask }

// Sub is how many packets p is ahead of q, between -2^23 and 2^23-1.
func (p PSN) Sub(q PSN) int { return int(int32(uint32(p-q)<<(32-psnBits)) >> (32 - psnBits)) }

// MTU is the code of a path MTU: how many bytes of payload the packets of a connection
// carry at most (IBA vol. 1 §9.3.3.2's PMTU, coded as in PathRecord and the CM's REQ).
type MTU uint8

// The codes that there are.
const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Valid says whether m is one of the codes.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes is the payload that m stands for. m must be valid.
func (m MTU) Bytes() int { return 128 << m }

// MaxPayload is the payload of the largest packet, in bytes.
const MaxPayload = 4096
