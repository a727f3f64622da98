package nvmetcp

import (
	"encoding/binary"

	"softiser/internal/nvme"
)

// CapsuleCmd is the header of a command capsule; in-capsule data may follow.
//
//	 +--------+--------+--------+--------+
//	0/ common header                     /
//	8/ submission queue entry (64)       /
//	 +--------+--------+--------+--------+
type CapsuleCmd [CapsuleCmdLen]byte

// CH returns the common header, inside the capsule.
func (c *CapsuleCmd) CH() *CH { return (*CH)(c[:]) }

// SQE returns the command, inside the capsule.
func (c *CapsuleCmd) SQE() *nvme.SQE { return (*nvme.SQE)(c[CHLen:]) }

// SetHeader sets the common header for a command with data bytes of in-capsule
// data, which begins at a multiple of align bytes.
func (c *CapsuleCmd) SetHeader(d Digests, data uint32, align int) {
	put(c[:], TypeCapsuleCmd, 0, d, data, align)
}

// CapsuleResp is a response capsule.
//
//	 +--------+--------+--------+--------+
//	0/ common header                     /
//	8/ completion queue entry (16)       /
//	 +--------+--------+--------+--------+
type CapsuleResp [CapsuleRespLen]byte

// CQE returns the completion, inside the capsule.
func (c *CapsuleResp) CQE() *nvme.CQE { return (*nvme.CQE)(c[CHLen:]) }

// SetHeader sets the common header.
func (c *CapsuleResp) SetHeader(d Digests) { put(c[:], TypeCapsuleResp, 0, d, 0, 0) }

// Data is the header of the PDUs that move data, and of the one that asks for it.
//
//	  +--------+--------+--------+--------+
//	 0/ common header                     /
//	 8| CCCID           | TTAG            |
//	12| offset                            |
//	16| length                            |
//	20| reserved                          |
//	  +--------+--------+--------+--------+
type Data [DataLen]byte

// Fields of a Data header, for Fault.FEI.
const (
	AtCCCID  = 8
	AtTTAG   = 10
	AtOffset = 12
	AtLength = 16
)

// CH returns the common header, inside the PDU's.
func (d *Data) CH() *CH { return (*CH)(d[:]) }

// CCCID returns the identifier of the command whose data it is.
func (d *Data) CCCID() uint16 { return binary.LittleEndian.Uint16(d[AtCCCID:]) }

// TTAG returns the controller's name for the transfer, of R2T and H2CData.
func (d *Data) TTAG() uint16 { return binary.LittleEndian.Uint16(d[AtTTAG:]) }

// Offset returns where in the command's data it belongs.
func (d *Data) Offset() uint32 { return binary.LittleEndian.Uint32(d[AtOffset:]) }

// Length returns the number of bytes moved, or asked for.
func (d *Data) Length() uint32 { return binary.LittleEndian.Uint32(d[AtLength:]) }

// Set makes d the header of a PDU of type t: H2CData, C2HData or R2T. Data begins at a multiple of
// align bytes.
func (d *Data) Set(t Type, f Flags, dg Digests, cccid, ttag uint16, offset, length uint32, align int) {
	carried := length
	if t == TypeR2T {
		carried = 0
	}
	put(d[:], t, f, dg, carried, align)
	binary.LittleEndian.PutUint16(d[AtCCCID:], cccid)
	binary.LittleEndian.PutUint16(d[AtTTAG:], ttag)
	binary.LittleEndian.PutUint32(d[AtOffset:], offset)
	binary.LittleEndian.PutUint32(d[AtLength:], length)
	clear(d[20:])
}
