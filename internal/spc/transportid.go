package spc

import (
	"encoding/binary"
	"strings"
)

// An iSCSI TransportID (SPC-4 §7.6.4.6) names an initiator device (format 0:
// the iSCSI name) or port (format 1: the name, ",i,0x" and the ISID in hex):
//
//	+--+------------------------------------------+
//	| 0| format (2 bits) | 0 | protocol 5         |
//	| 1| reserved                                 |
//	| 2| additional length (2), multiple of 4     |
//	| 4| name, null-terminated and padded         |
//	+--+------------------------------------------+

// AppendTransportID adds the TransportID of an initiator port name such as
// "iqn.1994-05.com.example:host,i,0x00023d000001".
func AppendTransportID(dst []byte, port string) []byte {
	format := byte(0)
	if strings.Contains(port, ",i,0x") {
		format = 1
	}
	// SPC-4: the additional length is at least 20.
	name := NameString(port)
	for len(name) < 20 {
		name = append(name, 0)
	}
	dst = append(dst, format<<6|ProtocolISCSI, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(name)))
	return append(dst, name...)
}

// ParseTransportID decodes the TransportID at the front of b and returns the
// name with the number of bytes it took.
func ParseTransportID(b []byte) (port string, n int, err error) {
	if len(b) < 4 {
		return "", 0, ErrListLength
	}
	n = 4 + int(binary.BigEndian.Uint16(b[2:]))
	if b[0]&0xF != ProtocolISCSI || b[0]>>6 > 1 || n > len(b) || n < 24 || n%4 != 0 {
		return "", 0, ErrListLength
	}
	name := string(b[4:n])
	end := strings.IndexByte(name, 0)
	if end <= 0 || end > 223+len(",i,0x")+12 {
		return "", 0, ErrListLength
	}
	name = strings.ToLower(name[:end])
	if (b[0]>>6 == 1) != strings.Contains(name, ",i,0x") {
		return "", 0, ErrListLength
	}
	return name, n, nil
}
