package mpa

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Sizes in bytes.
const (
	KeyLen   = 16
	HdrLen   = 20              // key, flags, revision, private data length
	WordLen  = 4               // enhanced word of RFC 6581
	MaxPD    = 512             // RFC 5044 §7.1.1: private data, enhanced word included
	MaxUser  = MaxPD - WordLen // of the application, in an enhanced frame
	MaxQueue = 0x3fff
)

// Keys (RFC 5044 §7.1.1).
const (
	ReqKey = "MPA ID Req Frame"
	RepKey = "MPA ID Rep Frame"
)

// Flags of the frame header. Reserved bits are sent as zero and ignored.
const (
	FlagMarkers  = 0x80 // M: the sender wants markers in what it receives
	FlagCRC      = 0x40 // C
	FlagReject   = 0x20 // R
	FlagEnhanced = 0x10 // S of RFC 6581, from revision 2 on: the enhanced word is there
	FlagGSO      = 0x08 // siw's own: FPDUs may be larger than the path's MSS
)

// RTR is a set of kinds of the ready-to-receive message (RFC 6581 §9).
type RTR uint8

// Kinds of RTR message.
const (
	RTRSend  RTR = 1 << iota // B
	RTRWrite                 // C
	RTRRead                  // D
)

func (r RTR) String() string {
	s := ""
	for i, n := range []string{"send", "write", "read"} {
		if r&(1<<i) != 0 {
			if s != "" {
				s += "|"
			}
			s += n
		}
	}
	if s == "" {
		return "none"
	}
	return s
}

// Frame is a Request or Reply frame.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|            Key (16 bytes): "MPA ID Req Frame" or              |
//	~                            "MPA ID Rep Frame"                 ~
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|M|C|R|S|  Res  |      Rev      |          PD_Length            |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|A|B|        IRD                |C|D|          ORD              |  if S
//	+-+-+---------------------------+-+-+---------------------------+
//	~                         Private Data                          ~
//	+---------------------------------------------------------------+
type Frame struct {
	Reply bool
	Flags byte // without FlagEnhanced, which Enhanced stands for
	Rev   byte

	Enhanced bool
	P2P      bool // A: peer-to-peer model
	RTR      RTR
	IRD, ORD uint16 // 14 bits; MaxQueue means "not negotiated here"

	Private []byte // the ULP's part
}

// Append appends the frame to b. Private must fit.
func (f *Frame) Append(b []byte) []byte {
	key := ReqKey
	if f.Reply {
		key = RepKey
	}
	n := len(f.Private)
	flags := f.Flags &^ FlagEnhanced
	if f.Enhanced {
		flags |= FlagEnhanced
		n += WordLen
	}
	b = append(b, key...)
	b = append(b, flags, f.Rev)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if f.Enhanced {
		ird, ord := f.IRD&MaxQueue, f.ORD&MaxQueue
		if f.P2P {
			ird |= 0x8000
			if f.RTR&RTRSend != 0 {
				ird |= 0x4000
			}
			if f.RTR&RTRWrite != 0 {
				ord |= 0x8000
			}
			if f.RTR&RTRRead != 0 {
				ord |= 0x4000
			}
		}
		b = binary.BigEndian.AppendUint16(b, ird)
		b = binary.BigEndian.AppendUint16(b, ord)
	}
	return append(b, f.Private...)
}

// ErrFrame is wrapped by every error about a frame that breaks the protocol.
var ErrFrame = errors.New("invalid MPA frame")

// parseHeader reads the first HdrLen bytes and returns PD_Length.
func (f *Frame) parseHeader(b []byte, reply bool) (int, error) {
	want, other := ReqKey, RepKey
	if reply {
		want, other = other, want
	}
	switch string(b[:KeyLen]) {
	case want:
	case other:
		if reply {
			return 0, fmt.Errorf("%w: the peer sent a Request instead of a Reply (both ends are MPA initiators)", ErrFrame)
		}
		return 0, fmt.Errorf("%w: the peer sent a Reply instead of a Request", ErrFrame)
	default:
		return 0, fmt.Errorf("%w: key %q, want %q; the peer does not speak iWARP", ErrFrame, b[:KeyLen], want)
	}
	*f = Frame{Reply: reply, Flags: b[KeyLen] &^ FlagEnhanced, Rev: b[KeyLen+1]}
	f.Enhanced = f.Rev > 1 && b[KeyLen]&FlagEnhanced != 0 // before, the bit is reserved
	n := int(binary.BigEndian.Uint16(b[KeyLen+2:]))
	if n > MaxPD {
		return 0, fmt.Errorf("%w: %d bytes of private data, at most %d are allowed", ErrFrame, n, MaxPD)
	}
	return n, nil
}

// ErrNoWord: the S bit promises an enhanced word that is not there.
var ErrNoWord = fmt.Errorf("%w: the enhanced bit is set without the enhanced word", ErrFrame)

// parseData reads the private data, b.
func (f *Frame) parseData(b []byte) error {
	if f.Enhanced {
		if len(b) < WordLen {
			return ErrNoWord
		}
		ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		f.IRD, f.ORD = ird&MaxQueue, ord&MaxQueue
		// A=0: B, C and D are not looked at (RFC 6581 §9).
		if f.P2P = ird&0x8000 != 0; f.P2P {
			if ird&0x4000 != 0 {
				f.RTR |= RTRSend
			}
			if ord&0x8000 != 0 {
				f.RTR |= RTRWrite
			}
			if ord&0x4000 != 0 {
				f.RTR |= RTRRead
			}
		}
		b = b[WordLen:]
	}
	f.Private = b
	return nil
}

// Parse reads a frame that fills b exactly.
func (f *Frame) Parse(b []byte, reply bool) error {
	if len(b) < HdrLen {
		return fmt.Errorf("%w: %d bytes, want at least %d", ErrFrame, len(b), HdrLen)
	}
	n, err := f.parseHeader(b[:HdrLen], reply)
	if err != nil {
		return err
	}
	if n != len(b)-HdrLen {
		return fmt.Errorf("%w: %d bytes of private data announced, %d there", ErrFrame, n, len(b)-HdrLen)
	}
	return f.parseData(b[HdrLen:])
}

// ReadFrame reads exactly one frame from r, not a byte more. On ErrNoWord the
// header fields of f are valid.
func ReadFrame(r io.Reader, f *Frame, reply bool) error {
	var hdr [HdrLen]byte
	// The key first: a peer that speaks something else may send less than a header.
	if _, err := io.ReadFull(r, hdr[:KeyLen]); err != nil {
		return err
	}
	if _, err := (&Frame{}).parseHeader(hdr[:], reply); err != nil {
		return err
	}
	if _, err := io.ReadFull(r, hdr[KeyLen:]); err != nil {
		return noEOF(err)
	}
	n, err := f.parseHeader(hdr[:], reply)
	if err != nil {
		return err
	}
	pd := make([]byte, n)
	if _, err := io.ReadFull(r, pd); err != nil {
		return noEOF(err)
	}
	return f.parseData(pd)
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
