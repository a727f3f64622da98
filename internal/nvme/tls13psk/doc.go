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
//
// # TLS 1.3 with pre-shared keys, of our own (ADR 133)
//
// Context. NVMe/TCP has TLS 1.3 with external pre-shared keys and no certificates. crypto/tls has none
// (its pre-shared keys are those of its tickets), and no maintained Go library has them. Linux' kTLS
// would keep the path from the socket to volume memory as it is, but needs a module that many kernels
// do not load (neither the CI's nor Debian's guests by default), cannot change keys in most versions,
// and still needs the handshake.
//
// Decision. internal/nvme/tls13psk is what NVMe uses of RFC 8446 and nothing more: psk_dhe_ke with
// X25519 and P-256, the two AES-GCM suites, HelloRetryRequest by the server, KeyUpdate, alerts. No
// certificates, tickets, early data or psk_ke. Primitives are the standard library's (ecdh, hkdf,
// AES-GCM, constant-time comparison); ours are messages, order and records, which both roles' fuzzers,
// a table of breaches, RFC 8448's schedule and both roles of OpenSSL judge. The binder is checked
// before curves cost anything.
//
// Records are a layer of sockio.Conn (sockio.Layer): the same calls, which never wait, so transports
// know nothing of TLS. A write seals up to 128 KiB and is taken when all of that is in the socket;
// until then the same bytes are offered again, as with SSL_write. Payload is copied once on its way
// out (it may change while it is sealed, and may fault) and once on its way in, where other payload
// over NVMe/TCP has no copy in user space.
//
// A port tells TLS by its first bytes (ADR 30). The identity names host and subsystem; a Connect
// inside for others is refused. A host that has a TLS key and no other secret has to use it, since
// nothing else shows who it is.
//
// Other ways. crypto/tls' tickets as a carrier of our key: the binder has another label, no peer would
// understand it. A socket pair with a goroutine between: no change below, but two more system calls
// and wake-ups for each batch. kTLS behind the handshake remains possible: the keys are at hand where
// the layer is made.
//
// Consequences. A TLS stack is ours to keep. A host that closes without close_notify, as kernels do,
// is logged as a loss.
package tls13psk
