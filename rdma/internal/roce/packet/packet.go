package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Packet is what one datagram carries. Of the extended headers those are valid that
// the opcode has.
type Packet struct {
	BTH
	DETH      DETH
	RETH      RETH
	AtomicETH AtomicETH
	AETH      AETH
	Original  uint64 // AtomicAckETH: the value that was there before (IBA vol. 1 §9.5.3)
	// Imm is ImmDt (§9.3.6). Its bytes are the application's: big-endian here.
	Imm     uint32
	InvRKey uint32 // IETH: the key to invalidate (§9.3.7)

	Payload []byte // without the pad; a part of what was parsed

	ECN ECN // of a packet that has come; not in what UDP carries
}

// ECN is the field of the IP header by which routers tell of congestion (RFC 3168 §5). The
// ICRC does not cover it.
type ECN uint8

// Values of ECN beside 0, of a sender whom marks tell nothing.
const (
	ECT1 ECN = 1
	ECT0 ECN = 2 // the sender does what marks ask of it
	CE   ECN = 3 // congestion was experienced
)

// Why a datagram is no packet. It is dropped without an answer then (§9.6.1).
var (
	ErrLength  = errors.New("roce: the packet's length does not fit its headers")
	ErrOpcode  = errors.New("roce: unknown opcode")
	ErrVersion = errors.New("roce: transport header version is not 0")
)

// MinLen is the length of the shortest packet, in bytes.
const MinLen = BTHLen + ICRCLen

// Parse reads a UDP payload, ICRC included, which it does not check. It does not
// compare the payload with a path's MTU: who knows the queue pair does.
func Parse(b []byte) (p Packet, err error) {
	if len(b) < MinLen {
		return p, fmt.Errorf("%w: %d bytes", ErrLength, len(b))
	}
	pad, version := p.get(b)
	switch n := p.Op.HeaderLen(); {
	case n == 0: // before any arithmetic with lengths
		return p, fmt.Errorf("%w %#02x", ErrOpcode, uint8(p.Op))
	case version != 0:
		return p, fmt.Errorf("%w but %d", ErrVersion, version)
	case len(b) < n+pad+ICRCLen, len(b)%4 != 0:
		return p, fmt.Errorf("%w: %d bytes, pad %d, %v", ErrLength, len(b), pad, p.Op)
	default:
		p.Payload = b[n : len(b)-ICRCLen-pad : len(b)-ICRCLen-pad]
	}
	t := p.Op.Traits()
	if len(p.Payload)+pad != 0 && !t.hasPayload() {
		return p, fmt.Errorf("%w: %d bytes behind a %v", ErrLength, len(p.Payload)+pad, p.Op)
	}
	p.extended(b[BTHLen:], t)
	return p, nil
}

// extended reads the headers behind the BTH; b is long enough for them.
func (p *Packet) extended(b []byte, t Traits) {
	if t&HasDETH != 0 {
		p.DETH.get(b)
		b = b[DETHLen:]
	}
	if t&HasRETH != 0 {
		p.RETH.get(b)
		b = b[RETHLen:]
	}
	if t&HasAtomicETH != 0 {
		p.AtomicETH.get(b)
		b = b[AtomicETHLen:]
	}
	if t&HasAETH != 0 {
		p.AETH.get(b)
		b = b[AETHLen:]
	}
	if t&HasAtomicAckETH != 0 {
		p.Original = binary.BigEndian.Uint64(b)
		b = b[AtomicAckETHLen:]
	}
	if t&HasImm != 0 {
		p.Imm = binary.BigEndian.Uint32(b)
		b = b[ImmLen:]
	}
	if t&HasIETH != 0 {
		p.InvRKey = binary.BigEndian.Uint32(b)
	}
}

// Pad is how many zero bytes follow n bytes of payload.
func Pad(n int) int { return -n & 3 }

// Len is the length of the UDP payload that carries n bytes by op, in bytes.
func (op Opcode) Len(n int) int { return op.HeaderLen() + n + Pad(n) + ICRCLen }

// Append appends the headers of a packet with n bytes of payload to b. The opcode must
// be known. p.Payload is not looked at: payload, pad and ICRC go behind what is
// returned, from wherever they are.
func Append(b []byte, p *Packet, n int) []byte {
	var h [MaxHeader]byte
	size := p.Op.HeaderLen()
	if size == 0 {
		panic(fmt.Sprintf("roce: a packet with %v", p.Op))
	}
	p.put(h[:], Pad(n))
	x, t := h[BTHLen:], p.Op.Traits()
	if t&HasDETH != 0 {
		p.DETH.put(x)
		x = x[DETHLen:]
	}
	if t&HasRETH != 0 {
		p.RETH.put(x)
		x = x[RETHLen:]
	}
	if t&HasAtomicETH != 0 {
		p.AtomicETH.put(x)
		x = x[AtomicETHLen:]
	}
	if t&HasAETH != 0 {
		p.AETH.put(x)
		x = x[AETHLen:]
	}
	if t&HasAtomicAckETH != 0 {
		binary.BigEndian.PutUint64(x, p.Original)
		x = x[AtomicAckETHLen:]
	}
	if t&HasImm != 0 {
		binary.BigEndian.PutUint32(x, p.Imm)
		x = x[ImmLen:]
	}
	if t&HasIETH != 0 {
		binary.BigEndian.PutUint32(x, p.InvRKey)
	}
	return append(b, h[:size]...)
}
