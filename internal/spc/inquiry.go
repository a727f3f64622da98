package spc

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Version descriptors of the standard INQUIRY data (SPC-4 §6.6.2).
const (
	VersionSAM5  = 0x00A0
	VersionSPC4  = 0x0460
	VersionSBC3  = 0x04C0
	VersionISCSI = 0x0960
)

// InquiryLen is the length of the standard data that AppendInquiryData makes:
// up to and with the version descriptors.
const InquiryLen = 96

// InquiryData is the standard INQUIRY data (SPC-4 §6.6.2):
//
//	+--+---------------------------------------------------+
//	| 0| peripheral qualifier (3 bits) | device type (5)   |
//	| 1| RMB(80h)                                          |
//	| 2| version                                           |
//	| 3| NORMACA(20h) HISUP(10h) | response data format 2  |
//	| 4| additional length = total - 5                     |
//	| 5| TPGS(30h) 3PC(08h) PROTECT(01h)                   |
//	| 6| MULTIP(10h)                                       |
//	| 7| CMDQUE(02h)                                       |
//	| 8| vendor (8) | 16 product (16) | 32 revision (4)    |
//	|36| cache epoch: "CEP1" (4), id (16)                  |
//	|58| version descriptors, 8 of 2 bytes                 |
//	+--+---------------------------------------------------+
type InquiryData struct {
	Qualifier  byte // 0: connected, 1: not connected, 3: no logical unit
	Type       byte // 0: direct access block device, 1Fh: unknown
	Removable  bool
	Version    byte // 6: SPC-4
	HiSup      bool // hierarchical LUN addressing, needed for LUNs above 255
	TPGS       byte // 0 none, 1 implicit, 2 explicit, 3 both
	ThirdParty bool // EXTENDED COPY
	MultiPort  bool
	Queueing   bool
	Vendor     string
	Product    string
	Revision   string
	// Epoch changes when acknowledged writes that were not flushed may have been
	// lost. It is softiser's use of the vendor specific bytes 36 to 55; zero: not told.
	Epoch       [16]byte
	Descriptors []uint16
}

// epochTag tells InquiryData.Epoch from what other vendors keep there.
const epochTag = "CEP1"

// AppendInquiryData adds the standard data.
func (q *InquiryData) AppendInquiryData(dst []byte) []byte {
	i := len(dst)
	dst = append(dst, make([]byte, InquiryLen)...)
	b := dst[i:]
	b[0] = q.Qualifier<<5 | q.Type&0x1F
	b[1] = bit(q.Removable, 0x80)
	b[2] = q.Version
	b[3] = 2 | bit(q.HiSup, 0x10)
	b[4] = InquiryLen - 5
	b[5] = q.TPGS&3<<4 | bit(q.ThirdParty, 0x08)
	b[6] = bit(q.MultiPort, 0x10)
	b[7] = bit(q.Queueing, 0x02)
	putASCII(b[8:16], q.Vendor)
	putASCII(b[16:32], q.Product)
	putASCII(b[32:36], q.Revision)
	if q.Epoch != [16]byte{} {
		copy(b[36:40], epochTag)
		copy(b[40:56], q.Epoch[:])
	}
	for n, d := range q.Descriptors {
		if n == 8 {
			break
		}
		binary.BigEndian.PutUint16(b[58+2*n:], d)
	}
	return dst
}

// ParseInquiryData decodes standard data of at least 36 bytes.
func ParseInquiryData(b []byte) (InquiryData, error) {
	var q InquiryData
	if len(b) < 36 {
		return q, fmt.Errorf("scsi: INQUIRY data of %d bytes, want at least 36", len(b))
	}
	q = InquiryData{
		Qualifier: b[0] >> 5, Type: b[0] & 0x1F, Removable: b[1]&0x80 != 0, Version: b[2],
		HiSup: b[3]&0x10 != 0, TPGS: b[5] >> 4 & 3, ThirdParty: b[5]&0x08 != 0,
		MultiPort: b[6]&0x10 != 0, Queueing: b[7]&0x02 != 0,
		Vendor:   strings.TrimRight(string(b[8:16]), " \x00"),
		Product:  strings.TrimRight(string(b[16:32]), " \x00"),
		Revision: strings.TrimRight(string(b[32:36]), " \x00"),
	}
	if n := 5 + int(b[4]); n < len(b) {
		b = b[:n]
	}
	if len(b) >= 56 && string(b[36:40]) == epochTag {
		copy(q.Epoch[:], b[40:56])
	}
	for o := 58; o+2 <= len(b) && o < 74; o += 2 {
		if d := binary.BigEndian.Uint16(b[o:]); d != 0 {
			q.Descriptors = append(q.Descriptors, d)
		}
	}
	return q, nil
}

// putASCII fills dst with s, printable ASCII only, padded with spaces.
func putASCII(dst []byte, s string) {
	for i := range dst {
		c := byte(' ')
		if i < len(s) && s[i] >= 0x20 && s[i] < 0x7F {
			c = s[i]
		}
		dst[i] = c
	}
}

func bit(on bool, b byte) byte {
	if on {
		return b
	}
	return 0
}
