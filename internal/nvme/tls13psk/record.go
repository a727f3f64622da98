package tls13psk

import (
	"crypto/cipher"
	"encoding/binary"
)

// Content types of records.
const (
	typeCCS       = 20
	typeAlert     = 21
	typeHandshake = 22
	typeData      = 23
)

const (
	headerLen  = 5
	tagLen     = 16
	maxPlain   = 1 << 14        // of a record (RFC 8446 §5.1)
	maxCipher  = maxPlain + 256 // with type, padding and tag (§5.2)
	recordRoom = headerLen + maxPlain + 1 + tagLen
)

// rekeyAfter is how many records are sealed with one key before a KeyUpdate. RFC 8446 §5.5
// allows 2^24.5 for AES-GCM.
const rekeyAfter = 1 << 23

// half is one direction of a connection.
type half struct {
	suite  Suite
	secret []byte
	aead   cipher.AEAD // nil: records are not encrypted yet
	iv     [12]byte
	nonce  [12]byte
	seq    uint64
}

// use changes the key.
func (h *half) use(s Suite, secret []byte) {
	h.suite, h.secret, h.seq = s, secret, 0
	h.aead, h.iv = s.aead(secret)
}

// update changes the key to the next one (§7.2).
func (h *half) update() { h.use(h.suite, h.suite.expand(h.secret, "traffic upd", nil, h.suite.size())) }

// next is the nonce of the next record (§5.3).
func (h *half) next() []byte {
	h.nonce = h.iv
	n := binary.BigEndian.Uint64(h.nonce[4:])
	binary.BigEndian.PutUint64(h.nonce[4:], n^h.seq)
	h.seq++
	return h.nonce[:]
}

// seal makes a record of what lies behind the room for a header in b, which has been
// appended at offset at; dst is b with the whole record.
func (h *half) seal(b []byte, at int, typ byte) []byte {
	if h.aead == nil {
		setHeader(b[at:], typ, len(b)-at-headerLen)
		return b
	}
	b = append(b, typ)
	n := len(b) - at - headerLen
	setHeader(b[at:], typeData, n+tagLen)
	head := b[at : at+headerLen]
	return h.aead.Seal(b[:at+headerLen], h.next(), b[at+headerLen:], head)
}

func setHeader(b []byte, typ byte, n int) {
	b[0], b[1], b[2] = typ, 3, 3
	binary.BigEndian.PutUint16(b[3:], uint16(n))
}

// open decrypts a record in place and returns what is in it.
func (h *half) open(head, body []byte) (byte, []byte, *Error) {
	if head[0] != typeData {
		return 0, nil, failf(UnexpectedMessage, "a record of type %d that is not encrypted", head[0])
	}
	if h.seq == 1<<64-1 {
		return 0, nil, failf(InternalError, "too many records with one key")
	}
	p, err := h.aead.Open(body[:0], h.next(), body, head)
	if err != nil {
		return 0, nil, &Error{Alert: BadRecordMAC}
	}
	// The type is the last byte that is not padding (§5.4).
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] == 0 {
			continue
		}
		if i > maxPlain {
			break
		}
		return p[i], p[:i], nil
	}
	if len(p) > maxPlain+1 {
		return 0, nil, &Error{Alert: RecordOverflow}
	}
	return 0, nil, failf(UnexpectedMessage, "a record without a type")
}
