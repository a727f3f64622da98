package dhchap

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// message is what the first two bytes of a message say: AUTH_TYPE and AUTH_ID.
type message uint16

const (
	msgNegotiate message = 0x0000
	msgChallenge message = 0x0101
	msgReply     message = 0x0102
	msgSuccess1  message = 0x0103
	msgSuccess2  message = 0x0104
	msgFailure2  message = 0x00F0 // of the host
	msgFailure1  message = 0x00F1 // of the controller
)

func (m message) String() string {
	switch m {
	case msgNegotiate:
		return "AUTH_Negotiate"
	case msgChallenge:
		return "DH-HMAC-CHAP_Challenge"
	case msgReply:
		return "DH-HMAC-CHAP_Reply"
	case msgSuccess1:
		return "DH-HMAC-CHAP_Success1"
	case msgSuccess2:
		return "DH-HMAC-CHAP_Success2"
	case msgFailure1:
		return "AUTH_Failure1"
	case msgFailure2:
		return "AUTH_Failure2"
	}
	return fmt.Sprintf("authentication message %04xh", uint16(m))
}

// Reason is why an authentication failed, on the wire.
type Reason uint8

// Reasons.
const (
	Failed           Reason = 1 // the response was wrong
	ProtocolUnusable Reason = 2
	ConcatMismatch   Reason = 3
	HashUnusable     Reason = 4
	GroupUnusable    Reason = 5
	BadPayload       Reason = 6
	BadMessage       Reason = 7
)

// String describes the reason.
func (r Reason) String() string {
	switch r {
	case Failed:
		return "authentication failed"
	case ProtocolUnusable:
		return "authentication protocol not usable"
	case ConcatMismatch:
		return "secure channel concatenation mismatch"
	case HashUnusable:
		return "hash function not usable"
	case GroupUnusable:
		return "Diffie-Hellman group not usable"
	case BadPayload:
		return "incorrect payload"
	case BadMessage:
		return "incorrect protocol message"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Error is an authentication that failed.
type Error struct {
	Reason Reason
	Peer   bool  // the peer said so
	Err    error // more; may be nil
}

func (e *Error) Error() string {
	who := ""
	if e.Peer {
		who = "the peer says: "
	}
	if e.Err == nil {
		return fmt.Sprintf("DH-HMAC-CHAP: %s%s", who, e.Reason)
	}
	return fmt.Sprintf("DH-HMAC-CHAP: %s%s: %v", who, e.Reason, e.Err)
}

// Unwrap returns what is behind the reason.
func (e *Error) Unwrap() error { return e.Err }

func failf(r Reason, format string, args ...any) *Error {
	return &Error{Reason: r, Err: fmt.Errorf(format, args...)}
}

const (
	negotiateLen  = 72
	failureLen    = 8
	fixedLen      = 16 // of the messages of DH-HMAC-CHAP
	maxOffers     = 30
	protocolCHAP  = 1
	noConcat      = 0
	rescodeFailed = 1
)

// kind returns what b is. Every message is at least [failureLen] bytes long.
func kind(b []byte) (message, uint16, *Error) {
	if len(b) < failureLen {
		return 0, 0, failf(BadPayload, "a message of %d bytes", len(b))
	}
	return message(binary.BigEndian.Uint16(b)), binary.LittleEndian.Uint16(b[4:]), nil
}

// header begins a message of n bytes.
func header(m message, tid uint16, n int) []byte {
	b := make([]byte, n)
	binary.BigEndian.PutUint16(b, uint16(m))
	binary.LittleEndian.PutUint16(b[4:], tid)
	return b
}

// failure is AUTH_Failure1 or 2.
func failure(m message, tid uint16, r Reason) []byte {
	b := header(m, tid, failureLen)
	b[6], b[7] = rescodeFailed, byte(r)
	return b
}

// negotiate is AUTH_Negotiate.
//
//	 6| SC_C   | protocols                     | 1 here
//	 8| 1      |   0    | hashes | groups      | one protocol descriptor (64)
//	12/ hash identifiers (30), group identifiers (30)
type negotiate struct {
	concat uint8
	hashes []Hash
	groups []Group
}

func (n *negotiate) encode(tid uint16) []byte {
	b := header(msgNegotiate, tid, negotiateLen)
	b[6], b[7], b[8] = n.concat, 1, protocolCHAP
	b[10], b[11] = byte(len(n.hashes)), byte(len(n.groups))
	for i, h := range n.hashes {
		b[12+i] = byte(h)
	}
	for i, g := range n.groups {
		b[12+maxOffers+i] = byte(g)
	}
	return b
}

func parseNegotiate(b []byte) (*negotiate, *Error) {
	if len(b) < negotiateLen {
		return nil, failf(BadPayload, "AUTH_Negotiate of %d bytes, it has %d", len(b), negotiateLen)
	}
	if b[7] != 1 || b[8] != protocolCHAP {
		return nil, failf(ProtocolUnusable, "%d authentication protocols, the first is %d", b[7], b[8])
	}
	n := &negotiate{concat: b[6]}
	if b[10] > maxOffers || b[11] > maxOffers {
		return nil, failf(BadPayload, "%d hashes and %d groups are offered, %d is the most", b[10], b[11], maxOffers)
	}
	for _, h := range b[12:][:b[10]] {
		n.hashes = append(n.hashes, Hash(h))
	}
	for _, g := range b[12+maxOffers:][:b[11]] {
		n.groups = append(n.groups, Group(g))
	}
	return n, nil
}

// challenge is DH-HMAC-CHAP_Challenge.
//
//	 6| length of a hash | reserved
//	 8| hash   | group   | length of the public value
//	12| sequence number
//	16/ C1, public value
type challenge struct {
	hash   Hash
	group  Group
	seq    uint32
	c1     []byte
	public []byte
}

func (c *challenge) encode(tid uint16) []byte {
	b := header(msgChallenge, tid, fixedLen)
	b[6], b[8], b[9] = byte(len(c.c1)), byte(c.hash), byte(c.group)
	binary.LittleEndian.PutUint16(b[10:], uint16(len(c.public)))
	binary.LittleEndian.PutUint32(b[12:], c.seq)
	return append(append(b, c.c1...), c.public...)
}

func parseChallenge(b []byte) (*challenge, *Error) {
	if len(b) < fixedLen {
		return nil, failf(BadPayload, "a challenge of %d bytes", len(b))
	}
	c := &challenge{hash: Hash(b[8]), group: Group(b[9]), seq: binary.LittleEndian.Uint32(b[12:])}
	n, public := int(b[6]), int(binary.LittleEndian.Uint16(b[10:]))
	if c.hash.Size() == 0 {
		return nil, failf(HashUnusable, "%s", c.hash)
	}
	if !c.group.Known() {
		return nil, failf(GroupUnusable, "%s", c.group)
	}
	if n != c.hash.Size() || public != c.group.size() || len(b) < fixedLen+n+public {
		return nil, failf(BadPayload, "a challenge of %d bytes with %s and %s has %d and %d", len(b), c.hash, c.group, n, public)
	}
	c.c1, c.public = b[fixedLen:][:n], b[fixedLen+n:][:public]
	return c, nil
}

// reply is DH-HMAC-CHAP_Reply.
//
//	 6| length of a hash | reserved
//	 8| C2 valid         | length of the public value
//	12| sequence number
//	16/ R1, C2, public value
type reply struct {
	seq    uint32
	r1     []byte
	c2     []byte // nil: the controller need not prove anything
	public []byte
}

func (r *reply) encode(tid uint16) []byte {
	b := header(msgReply, tid, fixedLen)
	b[6] = byte(len(r.r1))
	binary.LittleEndian.PutUint16(b[10:], uint16(len(r.public)))
	binary.LittleEndian.PutUint32(b[12:], r.seq)
	b = append(b, r.r1...)
	if r.c2 != nil {
		b[8] = 1
		b = append(b, r.c2...)
	} else {
		b = append(b, make([]byte, len(r.r1))...)
	}
	return append(b, r.public...)
}

func parseReply(b []byte, h Hash, g Group) (*reply, *Error) {
	if len(b) < fixedLen {
		return nil, failf(BadPayload, "a reply of %d bytes", len(b))
	}
	n, public := h.Size(), int(binary.LittleEndian.Uint16(b[10:]))
	if int(b[6]) != n || public != g.size() || len(b) < fixedLen+2*n+public || b[8] > 1 {
		return nil, failf(BadPayload, "a reply of %d bytes with %s and %s has %d and %d", len(b), h, g, b[6], public)
	}
	r := &reply{seq: binary.LittleEndian.Uint32(b[12:]), r1: b[fixedLen:][:n], public: b[fixedLen+2*n:][:public]}
	if b[8] == 1 {
		r.c2 = b[fixedLen+n:][:n]
	}
	return r, nil
}

// success1 is DH-HMAC-CHAP_Success1; r2 nil: nothing had to be proved.
func success1(tid uint16, h Hash, r2 []byte) []byte {
	b := header(msgSuccess1, tid, fixedLen)
	b[6] = byte(h.Size())
	if r2 == nil {
		return append(b, make([]byte, h.Size())...)
	}
	b[8] = 1
	return append(b, r2...)
}

func parseSuccess1(b []byte, h Hash) ([]byte, *Error) {
	if len(b) < fixedLen+h.Size() || int(b[6]) != h.Size() {
		return nil, failf(BadPayload, "Success1 of %d bytes with %s", len(b), h)
	}
	if b[8] == 0 {
		return nil, nil
	}
	return b[fixedLen:][:h.Size()], nil
}

// choose returns the first of ours that is among theirs.
func choose[T comparable](ours, theirs []T) (T, bool) {
	for _, o := range ours {
		if slices.Contains(theirs, o) {
			return o, true
		}
	}
	var none T
	return none, false
}

// question is what one side asks the other.
type question struct {
	hash   Hash
	c      []byte // the challenge, hashed with the shared key if there is one
	seq    uint32 // S1, S2
	tid    uint16
	concat uint8 // SC_C, in that of the controller
}

// r1 is the host's answer to the controller.
func (cfg *Config) r1(q question) []byte {
	return q.answer(cfg.Host.of(cfg.HostNQN), roleHost, cfg.HostNQN, cfg.SubsystemNQN)
}

// r2 is the controller's answer to the host.
func (cfg *Config) r2(q question) []byte {
	return q.answer(cfg.Controller.of(cfg.SubsystemNQN), roleController, cfg.SubsystemNQN, cfg.HostNQN)
}

// answer is that of prover, which is in a role and knows key.
func (q *question) answer(key []byte, role, prover, verifier string) []byte {
	n := binary.LittleEndian.AppendUint32(nil, q.seq)
	n = binary.LittleEndian.AppendUint16(n, q.tid)
	n = append(n, q.concat)
	return q.hash.hmac(key, q.c, n, []byte(role), []byte(prover), []byte{0}, []byte(verifier))
}

const (
	roleHost       = "HostHost"
	roleController = "Controller"
)
