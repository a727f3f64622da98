// Package tls13psk is the part of TLS 1.3 (RFC 8446) that NVMe/TCP uses: a handshake with
// an external pre-shared key and a Diffie-Hellman exchange, and the records behind it.
// crypto/tls has no external pre-shared keys.
//
//	client                                          server
//	  ClientHello: key shares, identities, binders ──▶
//	        ◀── ServerHello: key share, which identity
//	        ◀── {EncryptedExtensions} {Finished}
//	  {Finished} ────────────────────────────────────▶
//	  [application data] ◀──────────────────────────▶ [application data]
//
// What is there: psk_dhe_ke with X25519 and P-256, TLS_AES_128_GCM_SHA256 and
// TLS_AES_256_GCM_SHA384 by the hash of the key, HelloRetryRequest of a server, KeyUpdate
// both ways, alerts, close_notify. What is not, on purpose: certificates, tickets and what
// resumes with them, early data, and psk_ke, which gives no forward secrecy.
//
//	messages, handshake  the messages, and both roles
//	schedule             secrets and keys
//	record               one direction: sealing and opening records
//	conn                 a net.Conn with TLS
//	stream               the same below a sockio.Conn, which never blocks
//
// The server checks the binder, which shows that the client knows the key, before it
// computes anything with curves: who does not know a key costs two HMACs.
package tls13psk
