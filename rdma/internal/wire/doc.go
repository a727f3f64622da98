// Package wire encodes and decodes what iWARP puts on the TCP stream once a
// connection is in RDMA mode: the MPA length field and trailer (RFC 5044), DDP
// segment headers (RFC 5041), RDMAP headers (RFC 5040, RFC 7306) and the
// Terminate message.
//
// One FPDU carries one DDP segment:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|          ULPDU_Length         |  DDP control  | RDMAP control |
//	+-------------------------------+-------------------------------+
//	|  rest of the DDP header, RDMAP header, payload                ~
//	+---------------------------------------------------------------+
//	|  0 to 3 pad bytes, so that length field + ULPDU + pad is 4n   |
//	+---------------------------------------------------------------+
//	|  CRC32C, least significant byte first (zero when not in use)  |
//	+---------------------------------------------------------------+
//
// The package has no state and does no I/O. All integers are big-endian except
// the CRC. Offsets named here count from the start of the ULPDU; an FPDU has the
// two length bytes in front of it.
package wire
