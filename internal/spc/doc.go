// Package spc holds the wire formats of SCSI: command descriptor blocks
// (CDBs), sense data, INQUIRY and its vital product data (VPD) pages, mode
// pages and parameter lists. It is used by both roles, so it builds and parses
// each format; it has no state and does no I/O.
//
// A SCSI command is a CDB of 6, 10, 12, 16 or (opcode 7Fh) a variable number of
// bytes. Its first byte is the operation code; some operation codes are
// families whose member is the service action in the low five bits of byte 1
// (or in bytes 8-9 of a variable-length CDB). All integers are big-endian.
//
// A command ends with a [Status]. CHECK CONDITION comes with [Sense]: a key
// that says what kind of trouble, and an additional code ([ASC]) that says
// which. [SenseError] is both as a Go error.
//
// Functions named Append… add an encoded form to a slice and return it, as
// append does; functions named Parse… check every length against the bytes at
// hand and return an error for data that is too short or contradicts itself.
// Block addresses and counts are in logical blocks, everything else in bytes.
//
// The names follow SAM-5, SPC-4 and SBC-3.
package spc
