// Package nvmetcp is the NVMe/TCP transport (NVMe over TCP Transport
// Specification): the PDUs that carry commands, completions and data over a TCP
// connection.
//
// Every PDU begins with a common header, [CH]. plen counts everything: header,
// header digest, padding, data, data digest.
//
//	+--------------------+---------+-------+------------------+---------+
//	| header (hlen)      | HDGST 4 | pad   | data             | DDGST 4 |
//	+--------------------+---------+-------+------------------+---------+
//	|<--------------- pdo -------------->|
//	|<------------------------------ plen ------------------------------->|
//
// Digests are CRC32C. The header's covers the header with its flags, the data's
// covers the data without padding. Each is there exactly when the connection has
// agreed on it; a PDU without data has no data digest.
//
// # Moving data
//
//	host                                         controller
//	  ICReq ───────────────────────────────────▶
//	        ◀─────────────────────────────────── ICResp
//	  CapsuleCmd (a read) ─────────────────────▶
//	        ◀─────────────────────────────────── C2HData…, the last with SUCCESS
//	        ◀─────────────────────────────────── CapsuleResp, unless SUCCESS was set
//	  CapsuleCmd (a write, its data in it) ────▶
//	        ◀─────────────────────────────────── CapsuleResp
//	  CapsuleCmd (a longer write) ─────────────▶
//	        ◀─────────────────────────────────── R2T
//	  H2CData…, the last of the R2T with LAST ─▶
//	        ◀─────────────────────────────────── CapsuleResp
package nvmetcp
