package iscsi

import "encoding/binary"

// Sizes and limits of a PDU (RFC 7143 §11.2).
const (
	BHSLen        = 48
	MaxAHSLen     = 255 * 4   // TotalAHSLength counts four-byte words in one byte
	MaxDataLen    = 1<<24 - 1 // DataSegmentLength is 24 bits
	DigestLen     = 4
	ReservedTag   = 0xffffffff // ITT or TTT that names no task
	DefaultMRDSL  = 8192       // MaxRecvDataSegmentLength before it is negotiated; all of login
	ProtocolLevel = 2          // iSCSIProtocolLevel that this code speaks (RFC 7144)
)

// BHS is a Basic Header Segment as it stands on the wire. The fields below are
// common to many PDUs; the rest is in the views, one per opcode.
//
//	Byte/     0       |       1       |       2       |       3       |
//	     /            |               |               |               |
//	    +---------------+---------------+---------------+---------------+
//	   0|.|I| Opcode    |F|  Opcode-specific fields                     |
//	    +---------------+---------------+---------------+---------------+
//	   4|TotalAHSLength | DataSegmentLength                             |
//	    +---------------+---------------+---------------+---------------+
//	   8| LUN or opcode-specific fields                                 |
//	  12|                                                               |
//	    +---------------+---------------+---------------+---------------+
//	  16| Initiator Task Tag                                            |
//	    +---------------+---------------+---------------+---------------+
//	  20| Opcode-specific fields                                        |
//	    +                                                               +
//	  44|                                                               |
//	    +---------------+---------------+---------------+---------------+
type BHS [BHSLen]byte

var be = binary.BigEndian

// Opcode returns the PDU's opcode without the I bit.
func (b *BHS) Opcode() Opcode { return Opcode(b[0] & 0x3f) }

// Immediate reports the I bit: deliver at once, outside the CmdSN order.
func (b *BHS) Immediate() bool { return b[0]&0x40 != 0 }

// SetImmediate sets or clears the I bit.
func (b *BHS) SetImmediate(on bool) { b.setFlag(0, 0x40, on) }

// Final reports the F bit (T in Login PDUs).
func (b *BHS) Final() bool { return b[1]&0x80 != 0 }

// SetFinal sets or clears the F bit.
func (b *BHS) SetFinal(on bool) { b.setFlag(1, 0x80, on) }

// AHSLen returns the length of all additional header segments, bytes.
func (b *BHS) AHSLen() int { return int(b[4]) * 4 }

// SetAHSLen sets TotalAHSLength; n is in bytes, a multiple of 4, ≤ MaxAHSLen.
func (b *BHS) SetAHSLen(n int) { b[4] = byte(n / 4) }

// DataLen returns DataSegmentLength: bytes of data without padding.
func (b *BHS) DataLen() int { return int(b[5])<<16 | int(b[6])<<8 | int(b[7]) }

// SetDataLen sets DataSegmentLength; n ≤ MaxDataLen.
func (b *BHS) SetDataLen(n int) { b[5], b[6], b[7] = byte(n>>16), byte(n>>8), byte(n) }

// LUN returns bytes 8 to 15 as they stand.
func (b *BHS) LUN() uint64 { return be.Uint64(b[8:]) }

// SetLUN sets bytes 8 to 15.
func (b *BHS) SetLUN(lun uint64) { be.PutUint64(b[8:], lun) }

// ITT returns the Initiator Task Tag.
func (b *BHS) ITT() uint32 { return be.Uint32(b[16:]) }

// SetITT sets the Initiator Task Tag.
func (b *BHS) SetITT(v uint32) { be.PutUint32(b[16:], v) }

// TTT returns the Target Transfer Tag (NOP, Text, Data, R2T, SNACK).
func (b *BHS) TTT() uint32 { return be.Uint32(b[20:]) }

// SetTTT sets the Target Transfer Tag.
func (b *BHS) SetTTT(v uint32) { be.PutUint32(b[20:], v) }

// CmdSN returns the command sequence number (initiator PDUs with Info().CmdSN).
func (b *BHS) CmdSN() uint32 { return be.Uint32(b[24:]) }

// SetCmdSN sets the command sequence number.
func (b *BHS) SetCmdSN(v uint32) { be.PutUint32(b[24:], v) }

// ExpStatSN returns what the initiator expects next (every initiator PDU).
func (b *BHS) ExpStatSN() uint32 { return be.Uint32(b[28:]) }

// SetExpStatSN sets ExpStatSN.
func (b *BHS) SetExpStatSN(v uint32) { be.PutUint32(b[28:], v) }

// StatSN returns the status sequence number (target PDUs).
func (b *BHS) StatSN() uint32 { return be.Uint32(b[24:]) }

// SetStatSN sets the status sequence number.
func (b *BHS) SetStatSN(v uint32) { be.PutUint32(b[24:], v) }

// ExpCmdSN returns the CmdSN that the target expects next.
func (b *BHS) ExpCmdSN() uint32 { return be.Uint32(b[28:]) }

// MaxCmdSN returns the last CmdSN that the target accepts now.
func (b *BHS) MaxCmdSN() uint32 { return be.Uint32(b[32:]) }

// Sequence returns StatSN, ExpCmdSN and MaxCmdSN of a target PDU.
func (b *BHS) Sequence() Sequence {
	return Sequence{StatSN: b.StatSN(), ExpCmdSN: b.ExpCmdSN(), MaxCmdSN: b.MaxCmdSN()}
}

// SetSequence sets StatSN, ExpCmdSN and MaxCmdSN of a target PDU.
func (b *BHS) SetSequence(s Sequence) {
	be.PutUint32(b[24:], s.StatSN)
	be.PutUint32(b[28:], s.ExpCmdSN)
	be.PutUint32(b[32:], s.MaxCmdSN)
}

// PadLen returns how many zero bytes follow n bytes of data (RFC 7143 §11.1).
func PadLen(n int) int { return -n & 3 }

func (b *BHS) setFlag(i int, bit byte, on bool) {
	if on {
		b[i] |= bit
	} else {
		b[i] &^= bit
	}
}

// init clears the header and sets its first two bytes.
func (b *BHS) init(op Opcode, flags byte) {
	*b = BHS{}
	b[0] = byte(op)
	b[1] = flags
}

func (b *BHS) u16(i int) uint16      { return be.Uint16(b[i:]) }
func (b *BHS) put16(i int, v uint16) { be.PutUint16(b[i:], v) }
func (b *BHS) u32(i int) uint32      { return be.Uint32(b[i:]) }
func (b *BHS) put32(i int, v uint32) { be.PutUint32(b[i:], v) }
func (b *BHS) flag(f byte) bool      { return b[1]&f != 0 }
