package spc

import (
	"encoding/binary"
	"errors"
)

// AppendTestUnitReady adds TEST UNIT READY.
func AppendTestUnitReady(dst []byte) []byte { return append(dst, byte(OpTestUnitReady), 0, 0, 0, 0, 0) }

// AppendRequestSense adds REQUEST SENSE; desc asks for descriptor format.
func AppendRequestSense(dst []byte, desc bool, alloc uint8) []byte {
	var d byte
	if desc {
		d = 1
	}
	return append(dst, byte(OpRequestSense), d, 0, 0, alloc, 0)
}

// AppendInquiry adds INQUIRY for the standard data.
func AppendInquiry(dst []byte, alloc uint16) []byte {
	return append(dst, byte(OpInquiry), 0, 0, byte(alloc>>8), byte(alloc), 0)
}

// AppendInquiryVPD adds INQUIRY for a vital product data page.
func AppendInquiryVPD(dst []byte, page byte, alloc uint16) []byte {
	return append(dst, byte(OpInquiry), 1, page, byte(alloc>>8), byte(alloc), 0)
}

// AppendReadCapacity10 adds READ CAPACITY(10); its answer has 8 bytes.
func AppendReadCapacity10(dst []byte) []byte {
	return append(dst, byte(OpReadCapacity10), 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

// AppendReadCapacity16 adds READ CAPACITY(16); its answer has 32 bytes.
func AppendReadCapacity16(dst []byte, alloc uint32) []byte {
	dst = append(dst, byte(OpServiceActionIn), SAReadCapacity16, 0, 0, 0, 0, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, alloc)
	return append(dst, 0, 0)
}

// AppendGetLBAStatus adds GET LBA STATUS.
func AppendGetLBAStatus(dst []byte, lba uint64, alloc uint32) []byte {
	dst = append(dst, byte(OpServiceActionIn), SAGetLBAStatus)
	dst = binary.BigEndian.AppendUint64(dst, lba)
	dst = binary.BigEndian.AppendUint32(dst, alloc)
	return append(dst, 0, 0)
}

// appendAlloc12 adds the 12-byte form with a 4-byte allocation length at 6.
func appendAlloc12(dst []byte, op Opcode, b1, b2 byte, alloc uint32) []byte {
	dst = append(dst, byte(op), b1, b2, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, alloc)
	return append(dst, 0, 0)
}

// AppendReportLUNs adds REPORT LUNS. selectReport 0 asks for the logical units,
// 1 for well-known ones, 2 for both.
func AppendReportLUNs(dst []byte, selectReport byte, alloc uint32) []byte {
	return appendAlloc12(dst, OpReportLUNs, 0, selectReport, alloc)
}

// AppendReportTargetPortGroups adds REPORT TARGET PORT GROUPS; ext asks for the
// extended header.
func AppendReportTargetPortGroups(dst []byte, ext bool, alloc uint32) []byte {
	var f byte
	if ext {
		f = 1 << 5
	}
	return appendAlloc12(dst, OpMaintenanceIn, SAReportTPG|f, 0, alloc)
}

// PortGroup is a target port group as REPORT TARGET PORT GROUPS tells it (SPC-4 §6.37.2).
type PortGroup struct {
	ID        uint16
	State     byte // asymmetric access state: 0 to 3, Eh offline, Fh transitioning
	Preferred bool
	Ports     []uint16 // relative target port identifiers
}

// ParsePortGroups decodes the answer to REPORT TARGET PORT GROUPS without the extended
// header. Groups behind the end of what was received are left out.
func ParsePortGroups(b []byte) ([]PortGroup, error) {
	if len(b) < 4 {
		return nil, errors.New("scsi: REPORT TARGET PORT GROUPS: the answer has no header")
	}
	b = b[4:min(uint64(len(b)), uint64(binary.BigEndian.Uint32(b))+4)]
	var gs []PortGroup
	for len(b) >= 8 {
		g := PortGroup{ID: binary.BigEndian.Uint16(b[2:]), State: b[0] & 0xF, Preferred: b[0]&0x80 != 0}
		n := 8 + 4*int(b[7])
		if n > len(b) {
			break
		}
		for p := b[8:n]; len(p) > 0; p = p[4:] {
			g.Ports = append(g.Ports, binary.BigEndian.Uint16(p[2:]))
		}
		gs, b = append(gs, g), b[n:]
	}
	return gs, nil
}

// AppendReportOpcodes adds REPORT SUPPORTED OPERATION CODES; option is the
// reporting option (0: all, with opcode and sa zero), rctd asks for time-outs.
func AppendReportOpcodes(dst []byte, rctd bool, option byte, op Opcode, sa uint16, alloc uint32) []byte {
	if rctd {
		option |= 0x80
	}
	dst = append(dst, byte(OpMaintenanceIn), SAReportOpcodes, option, byte(op))
	dst = binary.BigEndian.AppendUint16(dst, sa)
	dst = binary.BigEndian.AppendUint32(dst, alloc)
	return append(dst, 0, 0)
}

// AppendModeSense6 adds MODE SENSE(6). pc is the page control: 0 current, 1
// changeable, 2 default, 3 saved.
func AppendModeSense6(dst []byte, dbd bool, pc, page, subpage, alloc byte) []byte {
	var f byte
	if dbd {
		f = 8
	}
	return append(dst, byte(OpModeSense6), f, pc<<6|page&0x3F, subpage, alloc, 0)
}

// AppendModeSense10 adds MODE SENSE(10).
func AppendModeSense10(dst []byte, dbd bool, pc, page, subpage byte, alloc uint16) []byte {
	var f byte
	if dbd {
		f = 8
	}
	return append(dst, byte(OpModeSense10), f, pc<<6|page&0x3F, subpage, 0, 0, 0, byte(alloc>>8), byte(alloc), 0)
}

// AppendModeSelect6 adds MODE SELECT(6) with the page format bit.
func AppendModeSelect6(dst []byte, save bool, n byte) []byte {
	var sp byte
	if save {
		sp = 1
	}
	return append(dst, byte(OpModeSelect6), 0x10|sp, 0, 0, n, 0)
}

// AppendUnmap adds UNMAP for a parameter list of n bytes.
func AppendUnmap(dst []byte, n uint16) []byte {
	return append(dst, byte(OpUnmap), 0, 0, 0, 0, 0, 0, byte(n>>8), byte(n), 0)
}

// AppendStartStop adds START STOP UNIT.
func AppendStartStop(dst []byte, immed, loej, start bool) []byte {
	var i, f byte
	if immed {
		i = 1
	}
	if loej {
		f |= 2
	}
	if start {
		f |= 1
	}
	return append(dst, byte(OpStartStopUnit), i, 0, 0, f, 0)
}

// AppendPersistIn adds PERSISTENT RESERVE IN.
func AppendPersistIn(dst []byte, sa byte, alloc uint16) []byte {
	return append(dst, byte(OpPersistIn), sa, 0, 0, 0, 0, 0, byte(alloc>>8), byte(alloc), 0)
}

// AppendPersistOut adds PERSISTENT RESERVE OUT with scope LU.
func AppendPersistOut(dst []byte, sa byte, typ PRType, n uint32) []byte {
	dst = append(dst, byte(OpPersistOut), sa, byte(typ), 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, n)
	return append(dst, 0)
}
