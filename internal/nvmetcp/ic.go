package nvmetcp

import (
	"encoding/binary"
	"fmt"
)

// ICReq is a host's first PDU: what it wants of the connection.
//
//	  +--------+--------+--------+--------+
//	 8| PFV             | HPDA   | DGST   |
//	12| MAXR2T - 1                        |
//	16/ reserved (112)                    /
//	  +--------+--------+--------+--------+
type ICReq struct {
	PFV     uint16 // PDU format version, 0
	HPDA    uint8  // data of C2HData begins at multiples of (HPDA + 1) * 4 bytes, 0 to 31
	Digests Digests
	MaxR2T  uint32 // outstanding R2Ts of one command, less one
}

// ICResp is the controller's answer: what the connection is going to be.
//
//	  +--------+--------+--------+--------+
//	 8| PFV             | CPDA   | DGST   |
//	12| MAXH2CDATA                        |
//	16/ reserved (112)                    /
//	  +--------+--------+--------+--------+
type ICResp struct {
	PFV        uint16
	CPDA       uint8 // data of host PDUs begins at multiples of (CPDA + 1) * 4 bytes
	Digests    Digests
	MaxH2CData uint32 // bytes of data in one H2CData
}

const (
	// MaxPDA is the largest HPDA or CPDA: data at a multiple of 128 bytes.
	MaxPDA = 31
	// MinH2CData is the least that a controller lets a host send in one H2CData.
	MinH2CData = 4096

	atPFV     = 8
	atPDA     = 10
	atDigests = 11
	atMaxData = 12
)

// AppendTo adds the PDU.
func (r *ICReq) AppendTo(dst []byte) []byte {
	return appendIC(dst, TypeICReq, r.PFV, r.HPDA, r.Digests, r.MaxR2T)
}

// AppendTo adds the PDU.
func (r *ICResp) AppendTo(dst []byte) []byte {
	return appendIC(dst, TypeICResp, r.PFV, r.CPDA, r.Digests, r.MaxH2CData)
}

func appendIC(dst []byte, t Type, pfv uint16, pda uint8, d Digests, n uint32) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, ICLen)...)
	b := dst[at:]
	put(b, t, 0, 0, 0, 0)
	binary.LittleEndian.PutUint16(b[atPFV:], pfv)
	b[atPDA], b[atDigests] = pda, byte(d)
	binary.LittleEndian.PutUint32(b[atMaxData:], n)
	return dst
}

// checkIC checks what ICReq and ICResp have in common.
func checkIC(b []byte, t Type, fromHost bool) (pfv uint16, pda uint8, d Digests, n uint32, f *Fault) {
	if len(b) < ICLen {
		return 0, 0, 0, 0, badField(atPLen, "%s of %d bytes, it has %d", t, len(b), ICLen)
	}
	h := (*CH)(b)
	if h.Type() != t {
		return 0, 0, 0, 0, &Fault{FESSequence, 0, fmt.Errorf("nvmetcp: %s where %s has to come first", h.Type(), t)}
	}
	if _, f = h.Check(&Limits{FromHost: fromHost}); f != nil {
		return 0, 0, 0, 0, f
	}
	if pfv = binary.LittleEndian.Uint16(b[atPFV:]); pfv != 0 {
		return 0, 0, 0, 0, &Fault{FESUnsupported, atPFV, fmt.Errorf("nvmetcp: %s with PDU format %d, 0 is known", t, pfv)}
	}
	if pda = b[atPDA]; pda > MaxPDA {
		return 0, 0, 0, 0, badField(atPDA, "%s asks for data at multiples of %d bytes, 128 is the most", t, (int(pda)+1)*4)
	}
	if d = Digests(b[atDigests]); d > DigestHeader|DigestData {
		return 0, 0, 0, 0, badField(atDigests, "%s with digests %02xh", t, uint8(d))
	}
	return pfv, pda, d, binary.LittleEndian.Uint32(b[atMaxData:]), nil
}

// ParseICReq reads an ICReq, [ICLen] bytes.
func ParseICReq(b []byte) (ICReq, *Fault) {
	pfv, pda, d, n, f := checkIC(b, TypeICReq, true)
	return ICReq{pfv, pda, d, n}, f
}

// ParseICResp reads an ICResp, [ICLen] bytes.
func ParseICResp(b []byte) (ICResp, *Fault) {
	pfv, pda, d, n, f := checkIC(b, TypeICResp, false)
	if f == nil && n < MinH2CData {
		f = badField(atMaxData, "ICResp allows %d bytes in an H2CData, %d is the least", n, MinH2CData)
	}
	return ICResp{pfv, pda, d, n}, f
}
