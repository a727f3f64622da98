// Package crc32c computes CRC32C, the checksum of iSCSI digests (RFC 7143 §13.1)
// and of MPA FPDUs (RFC 5044 §4.4): the Castagnoli polynomial, sent least
// significant byte first.
//
// It is hash/crc32 with another way through long messages, where the processor
// has it, and a shorter one to the same instructions for headers; see fold_amd64.go
// and ADR 18.
package crc32c

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
