package spc

import "fmt"

// Designator is one entry of VPD page 83h (SPC-4 §7.8.6), also used in target
// descriptors of EXTENDED COPY:
//
//	+--+----------------------------------------------+
//	| 0| protocol identifier (4) | code set (4)       |
//	| 1| PIV(80h) association (30h) | type (0Fh)      |
//	| 2| reserved                                     |
//	| 3| designator length                            |
//	| 4| designator                                   |
//	+--+----------------------------------------------+
type Designator struct {
	CodeSet     byte // 1 binary, 2 ASCII, 3 UTF-8
	Association byte // 0 logical unit, 1 target port, 2 target device
	Type        byte
	Protocol    byte // valid for associations 1 and 2; 5 is iSCSI
	ID          []byte
}

// Designator types, code sets and associations.
const (
	DesignatorVendor    = 1 // T10 vendor identification
	DesignatorEUI64     = 2
	DesignatorNAA       = 3
	DesignatorRelPort   = 4
	DesignatorPortGroup = 5
	DesignatorName      = 8 // SCSI name string

	CodeSetBinary = 1
	CodeSetASCII  = 2
	CodeSetUTF8   = 3

	AssocLU     = 0
	AssocPort   = 1
	AssocDevice = 2

	ProtocolISCSI = 5
)

// Append adds the designator. Its ID must be shorter than 256 bytes.
func (d *Designator) Append(dst []byte) []byte {
	b0, b1 := d.CodeSet&0xF, d.Association&3<<4|d.Type&0xF
	if d.Association != AssocLU {
		b0 |= d.Protocol << 4
		b1 |= 0x80
	}
	dst = append(dst, b0, b1, 0, byte(len(d.ID)))
	return append(dst, d.ID...)
}

// ParseDesignators decodes the payload of page 83h. The IDs are parts of p.
func ParseDesignators(p []byte) ([]Designator, error) {
	var ds []Designator
	for len(p) > 0 {
		if len(p) < 4 || int(p[3]) > len(p)-4 {
			return ds, fmt.Errorf("scsi: designator %d is cut short", len(ds))
		}
		n := 4 + int(p[3])
		ds = append(ds, Designator{
			CodeSet: p[0] & 0xF, Association: p[1] >> 4 & 3, Type: p[1] & 0xF, Protocol: p[0] >> 4, ID: p[4:n],
		})
		p = p[n:]
	}
	return ds, nil
}

// NameString returns s as a SCSI name string: UTF-8, ended by a null and padded
// with nulls to a multiple of four.
func NameString(s string) []byte {
	b := append([]byte(s), 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
