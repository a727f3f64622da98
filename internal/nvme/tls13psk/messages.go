package tls13psk

import (
	"encoding/binary"
	"slices"
)

// Handshake messages.
const (
	msgClientHello         = 1
	msgServerHello         = 2
	msgNewSessionTicket    = 4
	msgEncryptedExtensions = 8
	msgFinished            = 20
	msgKeyUpdate           = 24
	msgMessageHash         = 254
)

// Extensions.
const (
	extSupportedGroups   = 10
	extPreSharedKey      = 41
	extEarlyData         = 42
	extSupportedVersions = 43
	extCookie            = 44
	extPSKModes          = 45
	extKeyShare          = 51
)

const (
	version12 = 0x0303
	version13 = 0x0304
	modeDHE   = 1
)

// retryRandom is the random of a ServerHello that is a HelloRetryRequest (RFC 8446 §4.1.3).
var retryRandom = [32]byte{
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
}

// reader takes a message apart; bad sticks.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return nil
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

func (r *reader) u8() int {
	if p := r.take(1); p != nil {
		return int(p[0])
	}
	return 0
}

func (r *reader) u16() int {
	if p := r.take(2); p != nil {
		return int(binary.BigEndian.Uint16(p))
	}
	return 0
}

// vec returns a reader for a vector whose length has so many bytes, 1 or 2.
func (r *reader) vec(lengthBytes int) reader {
	n := 0
	if lengthBytes == 1 {
		n = r.u8()
	} else {
		n = r.u16()
	}
	p := r.take(n)
	return reader{p, r.bad}
}

func (r *reader) u16s() (l []uint16) {
	for len(r.b) > 0 && !r.bad {
		l = append(l, uint16(r.u16()))
	}
	return l
}

// appendVec writes a vector: its length, in so many bytes, and what f appends.
func appendVec(b []byte, lengthBytes int, f func([]byte) []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, lengthBytes)...)
	b = f(b)
	n := len(b) - at - lengthBytes
	for i := range lengthBytes {
		b[at+i] = byte(n >> (8 * (lengthBytes - 1 - i)))
	}
	return b
}

func appendExt(b []byte, id uint16, f func([]byte) []byte) []byte {
	return appendVec(binary.BigEndian.AppendUint16(b, id), 2, f)
}

func message(typ byte, f func([]byte) []byte) []byte { return appendVec([]byte{typ}, 3, f) }

type share struct {
	group  group
	public []byte
}

func appendShare(b []byte, s share) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(s.group))
	return appendVec(b, 2, func(b []byte) []byte { return append(b, s.public...) })
}

// clientHello is a ClientHello (§4.1.2).
type clientHello struct {
	random     [32]byte
	session    []byte
	suites     []uint16
	groups     []uint16
	shares     []share
	identities [][]byte
	binders    [][]byte

	versions    []uint16
	modes       []byte
	compression []byte
	seen        []int // extensions
}

func (h *clientHello) has(ext int) bool { return slices.Contains(h.seen, ext) }

// encode makes the message, with binders of n zero bytes; how long it is without them is
// returned as well.
func (h *clientHello) encode(n int) (b []byte, truncated int) {
	b = message(msgClientHello, func(b []byte) []byte {
		b = binary.BigEndian.AppendUint16(b, version12)
		b = append(b, h.random[:]...)
		b = appendVec(b, 1, func(b []byte) []byte { return append(b, h.session...) })
		b = appendVec(b, 2, func(b []byte) []byte { return append16s(b, h.suites) })
		b = append(b, 1, 0)
		return appendVec(b, 2, func(b []byte) []byte {
			b = appendExt(b, extSupportedVersions, func(b []byte) []byte { return append(b, 2, version13>>8, version13&0xFF) })
			b = appendExt(b, extSupportedGroups, func(b []byte) []byte {
				return appendVec(b, 2, func(b []byte) []byte { return append16s(b, h.groups) })
			})
			b = appendExt(b, extKeyShare, func(b []byte) []byte {
				return appendVec(b, 2, func(b []byte) []byte {
					for _, s := range h.shares {
						b = appendShare(b, s)
					}
					return b
				})
			})
			b = appendExt(b, extPSKModes, func(b []byte) []byte { return append(b, 1, modeDHE) })
			return appendExt(b, extPreSharedKey, func(b []byte) []byte {
				b = appendVec(b, 2, func(b []byte) []byte {
					for _, id := range h.identities {
						b = appendVec(b, 2, func(b []byte) []byte { return append(b, id...) })
						b = append(b, 0, 0, 0, 0) // the age of an external key is 0
					}
					return b
				})
				truncated = len(b)
				return appendVec(b, 2, func(b []byte) []byte {
					for range h.identities {
						b = appendVec(b, 1, func(b []byte) []byte { return append(b, make([]byte, n)...) })
					}
					return b
				})
			})
		})
	})
	return b, truncated
}

func append16s(b []byte, l []uint16) []byte {
	for _, v := range l {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

// parseClientHello reads a whole message. truncated is its length without binders; 0 if
// it has none.
func parseClientHello(msg []byte) (h *clientHello, truncated int, e *Error) {
	h = &clientHello{}
	r := reader{b: msg[4:]}
	r.u16()
	copy(h.random[:], r.take(32))
	session, suites, compression := r.vec(1), r.vec(2), r.vec(1)
	h.session, h.suites, h.compression = session.b, suites.u16s(), compression.b
	exts := r.vec(2)
	if r.bad || suites.bad || len(r.b) > 0 || len(h.session) > 32 {
		return nil, 0, failf(DecodeError, "ClientHello of %d bytes", len(msg))
	}
	for len(exts.b) > 0 {
		id := exts.u16()
		x := exts.vec(2)
		if exts.bad {
			return nil, 0, failf(DecodeError, "ClientHello: the extensions do not end where they should")
		}
		if h.has(id) {
			return nil, 0, failf(IllegalParameter, "ClientHello: extension %d comes twice", id)
		}
		h.seen = append(h.seen, id)
		switch id {
		case extSupportedVersions:
			v := x.vec(1)
			h.versions = v.u16s()
			x.bad = x.bad || v.bad
		case extSupportedGroups:
			v := x.vec(2)
			h.groups = v.u16s()
			x.bad = x.bad || v.bad
		case extPSKModes:
			v := x.vec(1)
			h.modes = v.b
		case extKeyShare:
			v := x.vec(2)
			for len(v.b) > 0 && !v.bad {
				g := group(v.u16())
				k := v.vec(2)
				h.shares = append(h.shares, share{g, k.b})
			}
			x.bad = x.bad || v.bad
		case extPreSharedKey:
			if len(exts.b) > 0 {
				return nil, 0, failf(IllegalParameter, "ClientHello: pre_shared_key is not the last extension")
			}
			ids := x.vec(2)
			for len(ids.b) > 0 && !ids.bad {
				name := ids.vec(2)
				ids.take(4)
				h.identities = append(h.identities, name.b)
			}
			truncated = len(msg) - len(x.b)
			binders := x.vec(2)
			for len(binders.b) > 0 && !binders.bad {
				v := binders.vec(1)
				h.binders = append(h.binders, v.b)
			}
			x.bad = x.bad || ids.bad || binders.bad
		default:
			x.b = nil
		}
		if x.bad || len(x.b) > 0 {
			return nil, 0, failf(DecodeError, "ClientHello: extension %d", id)
		}
	}
	return h, truncated, nil
}

// serverHello is a ServerHello or HelloRetryRequest (§4.1.3, §4.1.4).
type serverHello struct {
	random   [32]byte
	session  []byte
	suite    Suite
	share    share // of a HelloRetryRequest only the group
	identity int   // -1: no pre-shared key
}

func (h *serverHello) retry() bool { return h.random == retryRandom }

func (h *serverHello) encode() []byte {
	return message(msgServerHello, func(b []byte) []byte {
		b = binary.BigEndian.AppendUint16(b, version12)
		b = append(b, h.random[:]...)
		b = appendVec(b, 1, func(b []byte) []byte { return append(b, h.session...) })
		b = binary.BigEndian.AppendUint16(b, uint16(h.suite))
		b = append(b, 0)
		return appendVec(b, 2, func(b []byte) []byte {
			b = appendExt(b, extSupportedVersions, func(b []byte) []byte { return append(b, version13>>8, version13&0xFF) })
			b = appendExt(b, extKeyShare, func(b []byte) []byte {
				if h.retry() {
					return binary.BigEndian.AppendUint16(b, uint16(h.share.group))
				}
				return appendShare(b, h.share)
			})
			if h.retry() {
				return b
			}
			return appendExt(b, extPreSharedKey, func(b []byte) []byte { return binary.BigEndian.AppendUint16(b, uint16(h.identity)) })
		})
	})
}

// parseServerHello parses a ServerHello or HelloRetryRequest (RFC 8446 §4.1.3), and
// refuses what was not offered.
func parseServerHello(msg []byte) (*serverHello, *Error) {
	h := &serverHello{identity: -1}
	r := reader{b: msg[4:]}
	legacy := r.u16()
	copy(h.random[:], r.take(32))
	session := r.vec(1)
	h.session, h.suite = session.b, Suite(r.u16())
	compression := r.u8()
	exts := r.vec(2)
	if r.bad || len(r.b) > 0 {
		return nil, failf(DecodeError, "ServerHello of %d bytes", len(msg))
	}
	version := 0
	var seen []int
	for len(exts.b) > 0 {
		id := exts.u16()
		x := exts.vec(2)
		if exts.bad {
			return nil, failf(DecodeError, "ServerHello: the extensions do not end where they should")
		}
		if slices.Contains(seen, id) {
			return nil, failf(IllegalParameter, "ServerHello: extension %d comes twice", id)
		}
		seen = append(seen, id)
		switch {
		case id == extSupportedVersions:
			version = x.u16()
		case id == extKeyShare:
			h.share.group = group(x.u16())
			if !h.retry() {
				k := x.vec(2)
				h.share.public = k.b
			}
		case id == extPreSharedKey && !h.retry():
			h.identity = x.u16()
		case id == extCookie && h.retry():
			x.b = nil
		default:
			return nil, failf(UnsupportedExt, "ServerHello: extension %d", id)
		}
		if x.bad || len(x.b) > 0 {
			return nil, failf(DecodeError, "ServerHello: extension %d", id)
		}
	}
	if version != version13 || legacy != version12 {
		return nil, failf(ProtocolVersion, "the server speaks another version of TLS")
	}
	if compression != 0 {
		return nil, failf(IllegalParameter, "ServerHello: compression %d", compression)
	}
	return h, nil
}

// checkExtensions checks EncryptedExtensions: nothing that was not asked for.
func checkExtensions(msg []byte) *Error {
	r := reader{b: msg[4:]}
	exts := r.vec(2)
	if r.bad || len(r.b) > 0 {
		return failf(DecodeError, "EncryptedExtensions of %d bytes", len(msg))
	}
	for len(exts.b) > 0 {
		id := exts.u16()
		exts.vec(2)
		if exts.bad {
			return failf(DecodeError, "EncryptedExtensions do not end where they should")
		}
		if id != extSupportedGroups {
			return failf(UnsupportedExt, "EncryptedExtensions: extension %d", id)
		}
	}
	return nil
}
