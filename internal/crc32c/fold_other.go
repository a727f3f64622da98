//go:build !amd64

package crc32c

import "hash/crc32"

// Update continues a CRC32C over p; start with 0.
func Update(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }

// UpdateWarm is [Update] for bytes that are in the cache.
func UpdateWarm(crc uint32, p []byte) uint32 { return Update(crc, p) }

// UpdateIEEE is Update for Ethernet's CRC-32.
func UpdateIEEE(crc uint32, p []byte) uint32 { return crc32.Update(crc, crc32.IEEETable, p) }

// CopyIEEE copies p to dst, which is at least as long and does not overlap it, and continues
// Ethernet's CRC-32 over what it has written.
func CopyIEEE(crc uint32, dst, p []byte) uint32 {
	return UpdateIEEE(crc, dst[:copy(dst, p)])
}
