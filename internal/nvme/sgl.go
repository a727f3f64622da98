package nvme

import (
	"encoding/binary"
	"fmt"
)

// SGLLen is the length of an SGL descriptor, bytes.
const SGLLen = 16

// SGL is a scatter gather list descriptor. The last byte tells what it is:
//
//	 +-------------------------------------------------------+
//	0| address or offset (8 bytes)                           |
//	 +-------------------------------------------------------+
//	8| length (4 bytes)          | reserved (3)   |type|subty| data block
//	8| length (3 bytes)    | key (4 bytes)        |type|subty| keyed data block
//	 +-------------------------------------------------------+
type SGL [SGLLen]byte

// SGLKind is the last byte of a descriptor: type and subtype.
type SGLKind uint8

// Kinds of descriptors that are used over fabrics.
const (
	SGLAddress         SGLKind = 0x00 // data block at an address
	SGLInCapsule       SGLKind = 0x01 // data block at an offset into the capsule's data
	SGLBitBucket       SGLKind = 0x10
	SGLSegmentOffset   SGLKind = 0x21 // list of descriptors at an offset into the capsule
	SGLLastSegmentOff  SGLKind = 0x31
	SGLKeyed           SGLKind = 0x40 // keyed data block
	SGLKeyedInvalidate SGLKind = 0x4F // keyed data block, whose key the response may invalidate
	SGLTransport       SGLKind = 0x5A // data that the transport moves (NVMe/TCP: R2T, C2HData)
)

// MaxKeyedLength is the longest keyed data block, bytes: its length has 24 bits.
const MaxKeyedLength = 1<<24 - 1

// String names the kind.
func (k SGLKind) String() string {
	switch k {
	case SGLAddress:
		return "data block"
	case SGLInCapsule:
		return "in-capsule data"
	case SGLBitBucket:
		return "bit bucket"
	case SGLSegmentOffset:
		return "segment"
	case SGLLastSegmentOff:
		return "last segment"
	case SGLKeyed:
		return "keyed data block"
	case SGLKeyedInvalidate:
		return "keyed data block, invalidate"
	case SGLTransport:
		return "transport data block"
	}
	return fmt.Sprintf("SGL descriptor %02xh", uint8(k))
}

// Kind returns type and subtype.
func (d *SGL) Kind() SGLKind { return SGLKind(d[15]) }

// Keyed reports whether the descriptor is a keyed data block.
func (d *SGL) Keyed() bool { return d[15]>>4 == 4 }

// Address returns the address, or the offset into the capsule's data.
func (d *SGL) Address() uint64 { return binary.LittleEndian.Uint64(d[:]) }

// Length returns the number of bytes: 24 bits of a keyed descriptor, 32 of every
// other one.
func (d *SGL) Length() uint32 {
	n := binary.LittleEndian.Uint32(d[8:])
	if d.Keyed() {
		n &= MaxKeyedLength
	}
	return n
}

// Key returns the key of a keyed data block; over RDMA the STag or rkey.
func (d *SGL) Key() uint32 { return binary.LittleEndian.Uint32(d[11:]) }

// SetBlock makes d a descriptor without a key.
func (d *SGL) SetBlock(k SGLKind, address uint64, length uint32) {
	*d = SGL{15: byte(k)}
	binary.LittleEndian.PutUint64(d[:], address)
	binary.LittleEndian.PutUint32(d[8:], length)
}

// SetKeyed makes d a keyed data block; length is at most [MaxKeyedLength].
func (d *SGL) SetKeyed(k SGLKind, address uint64, length, key uint32) {
	d.SetBlock(k, address, length&MaxKeyedLength)
	binary.LittleEndian.PutUint32(d[11:], key)
}
