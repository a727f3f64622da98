package spc

import "encoding/binary"

// IO is the part that the CDBs of medium access commands have in common:
//
//	READ(10)                            READ(16)
//	+--+------------------------+       +--+------------------------+
//	| 0| operation code         |       | 0| operation code         |
//	| 1| PROT |DPO|FUA| - |     |       | 1| PROT |DPO|FUA| - |     |
//	| 2| LBA (4 bytes)          |       | 2| LBA (8 bytes)          |
//	| 6| group number           |       |10| length (4 bytes)       |
//	| 7| length (2 bytes)       |       |14| group number           |
//	| 9| control                |       |15| control                |
//	+--+------------------------+       +--+------------------------+
//
// The (12) form has its 4-byte LBA at 2 and a 4-byte length at 6; the (6) form a
// 21-bit LBA at 1 and a 1-byte length at 4 where 0 means 256.
type IO struct {
	LBA    uint64
	Blocks uint32
	Flags  byte // byte 1 of the CDB; 0 for the (6) form
}

// Protect returns RDPROTECT, WRPROTECT or VRPROTECT.
func (io IO) Protect() byte { return io.Flags >> 5 }

// DPO reports the disable page out hint.
func (io IO) DPO() bool { return io.Flags&0x10 != 0 }

// FUA reports force unit access.
func (io IO) FUA() bool { return io.Flags&0x08 != 0 }

// ByteCheck returns BYTCHK of VERIFY and WRITE AND VERIFY, 0 to 3.
func (io IO) ByteCheck() byte { return io.Flags >> 1 & 3 }

// ParseIO decodes a medium access CDB of 6, 10, 12, 16 or 32 bytes. The caller
// has checked that cdb is CDBLen long.
func ParseIO(cdb []byte) IO {
	switch len(cdb) {
	case 6:
		n := uint32(cdb[4])
		if n == 0 {
			n = 256
		}
		return IO{LBA: uint64(cdb[1]&0x1F)<<16 | uint64(cdb[2])<<8 | uint64(cdb[3]), Blocks: n}
	case 10:
		return IO{uint64(binary.BigEndian.Uint32(cdb[2:])), uint32(binary.BigEndian.Uint16(cdb[7:])), cdb[1]}
	case 12:
		return IO{uint64(binary.BigEndian.Uint32(cdb[2:])), binary.BigEndian.Uint32(cdb[6:]), cdb[1]}
	case 16:
		return IO{binary.BigEndian.Uint64(cdb[2:]), binary.BigEndian.Uint32(cdb[10:]), cdb[1]}
	case 32:
		return IO{binary.BigEndian.Uint64(cdb[12:]), binary.BigEndian.Uint32(cdb[28:]), cdb[10]}
	}
	return IO{}
}

// Flag bits of byte 1 of medium access CDBs.
const (
	FlagFUA    = 0x08
	FlagDPO    = 0x10
	FlagUnmap  = 0x08 // WRITE SAME
	FlagAnchor = 0x10 // WRITE SAME, UNMAP (bit 0 there)
	FlagNDOB   = 0x01 // WRITE SAME(16): no data-out buffer
	FlagImmed  = 0x02 // SYNCHRONIZE CACHE, PRE-FETCH
)

// fits10 reports whether an access can be told in a 10-byte CDB.
func fits10(lba uint64, blocks uint32) bool { return lba <= 0xFFFFFFFF && blocks <= 0xFFFF }

// appendIO adds a 10- or 16-byte CDB, whichever the address and length need.
func appendIO(dst []byte, op10, op16 Opcode, flags byte, lba uint64, blocks uint32) []byte {
	if op10 != 0 && fits10(lba, blocks) {
		dst = append(dst, byte(op10), flags)
		dst = binary.BigEndian.AppendUint32(dst, uint32(lba))
		dst = append(dst, 0)
		dst = binary.BigEndian.AppendUint16(dst, uint16(blocks))
		return append(dst, 0)
	}
	dst = append(dst, byte(op16), flags)
	dst = binary.BigEndian.AppendUint64(dst, lba)
	dst = binary.BigEndian.AppendUint32(dst, blocks)
	return append(dst, 0, 0)
}

func fuaFlag(fua bool) byte {
	if fua {
		return FlagFUA
	}
	return 0
}

// AppendRead adds READ(10) or READ(16).
func AppendRead(dst []byte, lba uint64, blocks uint32, fua bool) []byte {
	return appendIO(dst, OpRead10, OpRead16, fuaFlag(fua), lba, blocks)
}

// AppendWrite adds WRITE(10) or WRITE(16).
func AppendWrite(dst []byte, lba uint64, blocks uint32, fua bool) []byte {
	return appendIO(dst, OpWrite10, OpWrite16, fuaFlag(fua), lba, blocks)
}

// AppendVerify adds VERIFY(10) or (16). byteCheck 0 moves no data, 1 compares
// with blocks blocks of Data-Out, 3 with one.
func AppendVerify(dst []byte, lba uint64, blocks uint32, byteCheck byte) []byte {
	return appendIO(dst, OpVerify10, OpVerify16, byteCheck&3<<1, lba, blocks)
}

// AppendWriteVerify adds WRITE AND VERIFY(10) or (16).
func AppendWriteVerify(dst []byte, lba uint64, blocks uint32, byteCheck byte) []byte {
	return appendIO(dst, OpWriteVerify10, OpWriteVerify16, byteCheck&3<<1, lba, blocks)
}

// AppendSyncCache adds SYNCHRONIZE CACHE(10) or (16); 0 blocks means to the end
// of the medium.
func AppendSyncCache(dst []byte, lba uint64, blocks uint32, immed bool) []byte {
	var f byte
	if immed {
		f = FlagImmed
	}
	return appendIO(dst, OpSyncCache10, OpSyncCache16, f, lba, blocks)
}

// AppendPrefetch adds PRE-FETCH(10) or (16).
func AppendPrefetch(dst []byte, lba uint64, blocks uint32, immed bool) []byte {
	var f byte
	if immed {
		f = FlagImmed
	}
	return appendIO(dst, OpPrefetch10, OpPrefetch16, f, lba, blocks)
}

// AppendWriteSame16 adds WRITE SAME(16); flags are FlagUnmap, FlagAnchor and
// FlagNDOB.
func AppendWriteSame16(dst []byte, lba uint64, blocks uint32, flags byte) []byte {
	return appendIO(dst, 0, OpWriteSame16, flags, lba, blocks)
}

// AppendWriteAtomic16 adds WRITE ATOMIC(16), whose length field has 2 bytes.
func AppendWriteAtomic16(dst []byte, lba uint64, blocks uint16, fua bool) []byte {
	dst = append(dst, byte(OpWriteAtomic16), fuaFlag(fua))
	dst = binary.BigEndian.AppendUint64(dst, lba)
	dst = append(dst, 0, 0) // atomic boundary
	dst = binary.BigEndian.AppendUint16(dst, blocks)
	return append(dst, 0, 0)
}

// AppendOrWrite16 adds ORWRITE(16).
func AppendOrWrite16(dst []byte, lba uint64, blocks uint32, fua bool) []byte {
	return appendIO(dst, 0, OpOrWrite16, fuaFlag(fua), lba, blocks)
}

// AppendCompareAndWrite adds COMPARE AND WRITE; Data-Out is blocks blocks to
// compare with, then blocks blocks to write.
func AppendCompareAndWrite(dst []byte, lba uint64, blocks uint8, fua bool) []byte {
	dst = append(dst, byte(OpCompareAndWrite), fuaFlag(fua))
	dst = binary.BigEndian.AppendUint64(dst, lba)
	return append(dst, 0, 0, 0, blocks, 0, 0)
}
