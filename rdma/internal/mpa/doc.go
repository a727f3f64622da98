// Package mpa is the start-up phase of MPA (RFC 5044 §7, RFC 6581): the Request
// and Reply frames, and what the two sides agree on by them.
//
//	initiator                                responder
//	    | -- MPA ID Req Frame, private data --> |
//	    | <-- MPA ID Rep Frame, private data -- |   accept, or reject (R)
//	    | -- RTR, when peer-to-peer (A) ------> |   zero-length Write, Read or Send
//	    | -- first FPDU ----------------------> |
//	    | <-- FPDUs --------------------------- |   never before the first FPDU
//
// Nothing may follow a Request before its Reply, or a Reply before the first
// FPDU of the initiator: Linux's siw drops the connection when it finds a byte
// behind the frame. Frames are read to the byte for the same reason.
package mpa
