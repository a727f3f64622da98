package nvme

import "encoding/binary"

// CQELen is the length of a completion queue entry, bytes.
const CQELen = 16

// CQE is a completion queue entry, the answer to one command.
//
//	  +---------------------------+---------------------------+
//	 0| result, as the command defines it (8 bytes)           |
//	 8| SQ head pointer           | SQ identifier             |
//	12| command identifier        | status              |phase|
//	  +---------------------------+---------------------------+
//
// The phase bit belongs to queues in memory and is 0 over fabrics.
type CQE [CQELen]byte

// Result returns the 8 bytes of command specific result.
func (c *CQE) Result() uint64 { return binary.LittleEndian.Uint64(c[:]) }

// SetResult sets the command specific result.
func (c *CQE) SetResult(v uint64) { binary.LittleEndian.PutUint64(c[:], v) }

// DW0 returns the first four bytes of the result.
func (c *CQE) DW0() uint32 { return binary.LittleEndian.Uint32(c[:]) }

// SQHead returns how far the controller has taken entries from the submission
// queue, modulo its size; FFFFh when flow control is off.
func (c *CQE) SQHead() uint16 { return binary.LittleEndian.Uint16(c[8:]) }

// SetSQHead sets the head pointer.
func (c *CQE) SetSQHead(v uint16) { binary.LittleEndian.PutUint16(c[8:], v) }

// SQID returns the queue's identifier.
func (c *CQE) SQID() uint16 { return binary.LittleEndian.Uint16(c[10:]) }

// SetSQID sets the queue's identifier.
func (c *CQE) SetSQID(v uint16) { binary.LittleEndian.PutUint16(c[10:], v) }

// CID returns the identifier of the command that is answered.
func (c *CQE) CID() uint16 { return binary.LittleEndian.Uint16(c[12:]) }

// SetCID sets the identifier of the command that is answered.
func (c *CQE) SetCID(v uint16) { binary.LittleEndian.PutUint16(c[12:], v) }

// Status returns the status.
func (c *CQE) Status() Status { return Status(binary.LittleEndian.Uint16(c[14:]) >> 1) }

// SetStatus sets the status.
func (c *CQE) SetStatus(s Status) { binary.LittleEndian.PutUint16(c[14:], uint16(s)<<1) }

// NoSQHead is the SQ head pointer of a queue whose host has turned flow control
// off.
const NoSQHead uint16 = 0xFFFF
