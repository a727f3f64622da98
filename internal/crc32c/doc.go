// Package crc32c computes CRC32C, the checksum of iSCSI digests (RFC 7143 §13.1)
// and of MPA FPDUs (RFC 5044 §4.4): the Castagnoli polynomial, sent least
// significant byte first.
//
// It is hash/crc32 with another way through long messages, where the processor
// has it, and a shorter one to the same instructions for headers; see fold_amd64.go
// and ADR 18 and 152. In GB/s, on a Xeon with AVX-512 and AMX (ADR 152):
//
//	                    library  128 bits  256 bits  512 bits  a copy
//	4 KiB, cached            30        32        62       113     150
//	1 MiB, cached            30        33        65       129      41
//	4 KiB, from memory      5.0       8.3       9.6        12      13
//	1 MiB, from memory      6.1        12        13        14      10
//
// [UpdateIEEE] is the same for Ethernet's CRC-32, which is RoCE's ICRC: the folding is
// that of any polynomial, and what is left is reduced by multiplications, as there is no
// instruction for it.
//
// On other architectures it is hash/crc32, which has the CRC instructions of arm64.
package crc32c

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
