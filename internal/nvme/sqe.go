package nvme

import "encoding/binary"

// SQELen is the length of a submission queue entry, bytes.
const SQELen = 64

// SQE is a submission queue entry, one command.
//
//	  +-------------+-------------+---------------------------+
//	 0| opcode      |PSDT|...|FUSE| command identifier        |
//	 4| namespace identifier, or the type of a Fabrics command |
//	 8| command dwords 2 and 3                                |
//	16| metadata pointer                                      |
//	24/ data pointer: one SGL descriptor, 16 bytes            /
//	40/ command dwords 10 to 15                               /
//	  +-------------------------------------------------------+
type SQE [SQELen]byte

// Opcode returns the opcode.
func (s *SQE) Opcode() Opcode { return Opcode(s[0]) }

// Fuse returns the FUSE field.
func (s *SQE) Fuse() Fuse { return Fuse(s[1] & 3) }

// SetFuse sets the FUSE field.
func (s *SQE) SetFuse(f Fuse) { s[1] = s[1]&^3 | byte(f)&3 }

// PSDT tells what the data pointer is; over fabrics it is 1, one SGL descriptor.
func (s *SQE) PSDT() uint8 { return s[1] >> 6 }

// CID returns the command identifier, which is the host's.
func (s *SQE) CID() uint16 { return binary.LittleEndian.Uint16(s[2:]) }

// SetCID sets the command identifier.
func (s *SQE) SetCID(id uint16) { binary.LittleEndian.PutUint16(s[2:], id) }

// NSID returns the namespace identifier; not of a Fabrics command.
func (s *SQE) NSID() uint32 { return binary.LittleEndian.Uint32(s[4:]) }

// SetNSID sets the namespace identifier.
func (s *SQE) SetNSID(id uint32) { binary.LittleEndian.PutUint32(s[4:], id) }

// FabricsType returns the type of a Fabrics command.
func (s *SQE) FabricsType() FabricsType { return FabricsType(s[4]) }

// SGL returns the descriptor of the command's data, inside the entry.
func (s *SQE) SGL() *SGL { return (*SGL)(s[24:40]) }

// CDW returns command dword n, 10 to 15.
func (s *SQE) CDW(n int) uint32 { return binary.LittleEndian.Uint32(s[4*n:]) }

// SetCDW sets command dword n.
func (s *SQE) SetCDW(n int, v uint32) { binary.LittleEndian.PutUint32(s[4*n:], v) }

// u64 returns command dwords n and n+1.
func (s *SQE) u64(n int) uint64 { return binary.LittleEndian.Uint64(s[4*n:]) }

func (s *SQE) put64(n int, v uint64) { binary.LittleEndian.PutUint64(s[4*n:], v) }

// Init clears s and makes it a command whose data pointer is an SGL, which is the
// only kind that there is over fabrics.
func (s *SQE) Init(op Opcode, nsid uint32) {
	*s = SQE{}
	s[0], s[1] = byte(op), 1<<6
	s.SetNSID(nsid)
}

// FromHost reports whether the command carries data of the host.
func (s *SQE) FromHost() bool {
	if s.Opcode() == OpFabrics {
		return s[4]&3 == 1
	}
	return s.Opcode().FromHost()
}

// ToHost reports whether the command returns data.
func (s *SQE) ToHost() bool {
	if s.Opcode() == OpFabrics {
		return s[4]&3 == 2
	}
	return s.Opcode().ToHost()
}

// ReadWrite is the view of the commands that name one range of blocks: Read,
// Write, Compare, Write Uncorrectable, Write Zeroes and Verify.
//
//	  +-------------------------------------------------------+
//	40| starting LBA                                          |
//	48| number of blocks - 1     | .. |DEAC| ... |PRINFO|FUA|LR|
//	52| dataset management hints (8 bits)                     |
//	  +-------------------------------------------------------+
type ReadWrite struct{ *SQE }

// ReadWrite views s as a command with one range of blocks.
func (s *SQE) ReadWrite() ReadWrite { return ReadWrite{s} }

// SLBA returns the first block.
func (c ReadWrite) SLBA() uint64 { return c.u64(10) }

// Blocks returns the number of blocks, 1 to 65536 (on the wire it is one less).
func (c ReadWrite) Blocks() uint32 { return c.CDW(12)&0xFFFF + 1 }

// SetRange sets the first block and the number of blocks, 1 to 65536.
func (c ReadWrite) SetRange(slba uint64, blocks uint32) {
	c.put64(10, slba)
	c.SetCDW(12, c.CDW(12)&^0xFFFF|(blocks-1)&0xFFFF)
}

// Bits of command dword 12.
const (
	flagDeallocate = 1 << 25 // Write Zeroes
	flagPRACT      = 1 << 29
	prInfo         = 0xF << 26
	flagFUA        = 1 << 30
)

// FUA reports whether the data is to be durable before the command completes.
func (c ReadWrite) FUA() bool { return c.CDW(12)&flagFUA != 0 }

// SetFUA asks for durable data.
func (c ReadWrite) SetFUA(on bool) { c.setFlag(flagFUA, on) }

// Deallocate reports whether Write Zeroes may deallocate the blocks.
func (c ReadWrite) Deallocate() bool { return c.CDW(12)&flagDeallocate != 0 }

// SetDeallocate lets Write Zeroes deallocate the blocks.
func (c ReadWrite) SetDeallocate(on bool) { c.setFlag(flagDeallocate, on) }

// ProtectionInfo returns the PRINFO field; 0 where no namespace has protection
// information.
func (c ReadWrite) ProtectionInfo() uint8 { return uint8(c.CDW(12) & prInfo >> 26) }

func (c ReadWrite) setFlag(f uint32, on bool) {
	v := c.CDW(12) &^ f
	if on {
		v |= f
	}
	c.SetCDW(12, v)
}

// Within reports whether the range lies inside a namespace of size blocks.
func (c ReadWrite) Within(size uint64) bool {
	first, n := c.SLBA(), uint64(c.Blocks())
	return first <= size && n <= size-first
}
