package iscsitcp

import "encoding/binary"

// Digests are CRC32C, least significant byte first (RFC 7143 §13.1).

func appendDigest(dst []byte, crc uint32) []byte { return binary.LittleEndian.AppendUint32(dst, crc) }
