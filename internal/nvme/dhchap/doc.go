// Package dhchap is DH-HMAC-CHAP, how an NVMe host and controller prove to each
// other that they know a secret, without any I/O: secrets, messages and the state
// machines of both roles.
//
//	host                                            controller
//	  AUTH_Negotiate: hashes, groups ─────────────────▶
//	        ◀───────────── Challenge: hash, group, C1, S1, g^x
//	  Reply: R1, g^y, and C2, S2 to be answered ──────▶
//	        ◀────────────────────────────────── Success1: R2
//	  Success2, if R2 was asked for ──────────────────▶
//
// Messages to the controller ride in Authentication Send, its own in
// Authentication Receive. Either side may say Failure instead. Every queue
// authenticates by itself.
//
// With a Diffie-Hellman group the challenges are hashed with the shared key, so
// that one who listens cannot try secrets at leisure. The responses are
//
//	R1 = HMAC(Kh, C || S1 || T_ID || SC_C || "HostHost"   || host NQN      || 0 || subsystem NQN)
//	R2 = HMAC(Kc, C || S2 || T_ID || 0    || "Controller" || subsystem NQN || 0 || host NQN)
//
// where C is the challenge, or HMAC(H(g^xy), challenge).
//
// [Controller] and [Host] do modular exponentiations, which take milliseconds:
// they do not belong on a goroutine that serves others.
package dhchap
