package wire

import (
	"encoding/binary"

	"softiser/internal/crc32c"
)

// CRC continues a CRC32C (RFC 5044 §4.4) over p; start with 0.
func CRC(crc uint32, p []byte) uint32 { return crc32c.Update(crc, p) }

// CRCWarm is [CRC] over bytes that are in the cache.
func CRCWarm(crc uint32, p []byte) uint32 { return crc32c.UpdateWarm(crc, p) }

// AppendCRC appends the CRC field: least significant byte first.
func AppendCRC(b []byte, crc uint32) []byte { return binary.LittleEndian.AppendUint32(b, crc) }

// GetCRC reads a CRC field.
func GetCRC(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// AppendFPDU appends a whole FPDU around ulpdu, for tests and for small control
// messages; the data path builds FPDUs in place. ulpdu must fit the length field.
func AppendFPDU(b, ulpdu []byte, crc bool) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	b = append(b, make([]byte, Pad(len(ulpdu)))...)
	var c uint32
	if crc {
		c = CRC(0, b[start:])
	}
	return AppendCRC(b, c)
}
