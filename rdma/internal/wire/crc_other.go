//go:build !amd64

package wire

import "hash/crc32"

// CRC continues a CRC32C (RFC 5044 §4.4) over p; start with 0.
func CRC(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }
