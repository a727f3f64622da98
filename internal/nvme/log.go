package nvme

import (
	"encoding/binary"
	"fmt"
)

// LogID names a log page.
type LogID uint8

// Log pages.
const (
	LogSupported         LogID = 0x00
	LogError             LogID = 0x01
	LogSMART             LogID = 0x02
	LogFirmware          LogID = 0x03
	LogChangedNamespaces LogID = 0x04
	LogCommandEffects    LogID = 0x05
	LogANA               LogID = 0x0C
	LogFeatures          LogID = 0x12
	LogMICommands        LogID = 0x13
	LogDiscovery         LogID = 0x70
	LogReservation       LogID = 0x80
	LogSanitize          LogID = 0x81
)

// GetLogPage is the view of a Get Log Page command.
//
//	  +-------------+-------------+---------------------------+
//	40| log page    |RAE| specific| number of dwords - 1, low |
//	44| number of dwords - 1, high| specific identifier       |
//	48| offset, bytes (8)                                     |
//	  +-------------------------------------------------------+
type GetLogPage struct{ *SQE }

// GetLogPage views s as a Get Log Page command.
func (s *SQE) GetLogPage() GetLogPage { return GetLogPage{s} }

// NewGetLogPage clears s and makes it ask for n bytes, a multiple of 4, of a log
// page.
func (s *SQE) NewGetLogPage(id LogID, nsid uint32, offset uint64, n uint32) GetLogPage {
	s.Init(AdminGetLogPage, nsid)
	dwords := n/4 - 1
	s.SetCDW(10, uint32(id)|dwords<<16)
	s.SetCDW(11, dwords>>16)
	s.put64(12, offset)
	return GetLogPage{s}
}

// ID returns which page is asked for.
func (c GetLogPage) ID() LogID { return LogID(c.SQE[40]) }

// Specific returns the log specific field.
func (c GetLogPage) Specific() uint8 { return c.SQE[41] & 0x7F }

// SetSpecific sets the log specific field.
func (c GetLogPage) SetSpecific(v uint8) { c.SQE[41] = c.SQE[41]&0x80 | v&0x7F }

// RetainEvent reports whether the asynchronous event that led here stays masked.
func (c GetLogPage) RetainEvent() bool { return c.SQE[41]&0x80 != 0 }

// SetRetainEvent keeps the asynchronous event masked.
func (c GetLogPage) SetRetainEvent() { c.SQE[41] |= 0x80 }

// Length returns how many bytes are asked for: up to 16 GiB, so it is to be
// checked against what the page has.
func (c GetLogPage) Length() uint64 {
	return (uint64(c.CDW(10)>>16)|uint64(c.CDW(11)&0xFFFF)<<16)*4 + 4
}

// Offset returns where the bytes begin, which must be a multiple of 4.
func (c GetLogPage) Offset() uint64 { return c.u64(12) }

// ErrorEntryLen is the length of an entry of the error information log, bytes.
const ErrorEntryLen = 64

// ErrorEntry is one entry of the error information log, the latest first.
//
//	 0| error count (8)              24| namespace (4)
//	 8| queue (2)                    29| transport type
//	10| command (2)                  30| command set
//	12| status with its phase bit    31| opcode
//	14| location: byte, bit          32| command specific (8)
//	16| LBA (8)
type ErrorEntry struct {
	Count     uint64
	SQID, CID uint16
	Status    Status
	Location  uint16 // byte 7:0, bit 10:8 of the command; FFFFh: none
	LBA       uint64
	NSID      uint32
	Transport uint8
	Opcode    Opcode
}

// AppendTo adds the entry.
func (e *ErrorEntry) AppendTo(dst []byte) []byte {
	dst, b := grow(dst, ErrorEntryLen)
	le := binary.LittleEndian
	le.PutUint64(b, e.Count)
	le.PutUint16(b[8:], e.SQID)
	le.PutUint16(b[10:], e.CID)
	le.PutUint16(b[12:], uint16(e.Status)<<1)
	le.PutUint16(b[14:], e.Location)
	le.PutUint64(b[16:], e.LBA)
	le.PutUint32(b[24:], e.NSID)
	b[29], b[31] = e.Transport, byte(e.Opcode)
	return dst
}

// ParseErrorEntry reads an entry.
func ParseErrorEntry(b []byte) (ErrorEntry, error) {
	if len(b) < ErrorEntryLen {
		return ErrorEntry{}, fmt.Errorf("nvme: error log entry of %d bytes", len(b))
	}
	le := binary.LittleEndian
	return ErrorEntry{
		Count: le.Uint64(b), SQID: le.Uint16(b[8:]), CID: le.Uint16(b[10:]), Status: Status(le.Uint16(b[12:]) >> 1),
		Location: le.Uint16(b[14:]), LBA: le.Uint64(b[16:]), NSID: le.Uint32(b[24:]), Transport: b[29], Opcode: Opcode(b[31]),
	}, nil
}

// SMARTLen is the length of the SMART log page, bytes.
const SMARTLen = 512

// Bits of SMART.Warning.
const (
	WarnSpare       uint8 = 1 << 0
	WarnReliability uint8 = 1 << 2
	WarnReadOnly    uint8 = 1 << 3
)

// SMART is the health log page. Counters have 16 bytes on the wire, of which 8
// are in use here.
type SMART struct {
	Warning      uint8
	Temperature  uint16 // kelvin
	Spare        uint8  // per cent
	SpareLimit   uint8  // per cent
	Used         uint8  // per cent
	UnitsRead    uint64 // thousands of 512 bytes
	UnitsWritten uint64 // thousands of 512 bytes
	Reads        uint64 // commands
	Writes       uint64 // commands
	BusyMinutes  uint64
	PowerCycles  uint64
	PowerOnHours uint64
	Unsafe       uint64 // shutdowns
	MediaErrors  uint64
	ErrorEntries uint64
}

func (s *SMART) layout(l layout) {
	l.u8(0, &s.Warning)
	l.u16(1, &s.Temperature)
	l.u8(3, &s.Spare)
	l.u8(4, &s.SpareLimit)
	l.u8(5, &s.Used)
	for i, p := range []*uint64{
		&s.UnitsRead, &s.UnitsWritten, &s.Reads, &s.Writes, &s.BusyMinutes,
		&s.PowerCycles, &s.PowerOnHours, &s.Unsafe, &s.MediaErrors, &s.ErrorEntries,
	} {
		l.u64(32+16*i, p)
	}
}

// AppendTo adds the page.
func (s *SMART) AppendTo(dst []byte) []byte {
	dst, b := grow(dst, SMARTLen)
	s.layout(layout{b, true})
	return dst
}

// ParseSMART reads the page.
func ParseSMART(b []byte) (*SMART, error) {
	if len(b) < SMARTLen {
		return nil, fmt.Errorf("nvme: SMART log of %d bytes, %d are asked for", len(b), SMARTLen)
	}
	s := new(SMART)
	s.layout(layout{b, false})
	return s, nil
}

// ChangedLen is the length of the changed namespace list, bytes.
const ChangedLen = 4096

// AppendChanged adds the changed namespace list: ids, ascending; FFFFFFFFh alone
// if there are more than [MaxActive].
func AppendChanged(dst []byte, ids []uint32) []byte {
	if len(ids) > MaxActive {
		ids = []uint32{NSIDAll}
	}
	return AppendNSIDs(dst, ids, 0)
}

// EffectsLen is the length of the commands supported and effects log, bytes.
const EffectsLen = 4096

// Bits of a command's effects.
const (
	EffectSupported uint32 = 1 << 0
	EffectContent   uint32 = 1 << 1  // changes logical block content
	EffectCapacity  uint32 = 1 << 2  // changes namespace capabilities
	EffectInventory uint32 = 1 << 3  // changes the namespace inventory
	EffectAlone     uint32 = 1 << 16 // no other command for the same namespace meanwhile
)

// Effects tells which commands there are and what they change.
type Effects struct {
	Admin, IO map[Opcode]uint32
}

// AppendTo adds the log page.
func (e *Effects) AppendTo(dst []byte) []byte {
	dst, b := grow(dst, EffectsLen)
	for op, v := range e.Admin {
		binary.LittleEndian.PutUint32(b[4*int(op):], v)
	}
	for op, v := range e.IO {
		binary.LittleEndian.PutUint32(b[1024+4*int(op):], v)
	}
	return dst
}

// TableLen is the length of the log pages that have four bytes for each of 256
// log pages, features or commands.
const TableLen = 1024

// AppendTable adds a page with v for each of ids.
func AppendTable[T ~uint8](dst []byte, ids map[T]uint32) []byte {
	dst, b := grow(dst, TableLen)
	for id, v := range ids {
		binary.LittleEndian.PutUint32(b[4*int(id):], v)
	}
	return dst
}
