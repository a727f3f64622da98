package packet

import (
	"encoding/binary"
	"fmt"
	"time"
)

// AETH is the acknowledge extended transport header (IBA vol. 1 §9.3.5).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-----------------------------------------------+
//	|   Syndrome    |            Message Sequence Number            |   0
//	+---------------+-----------------------------------------------+
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // messages that the responder has completed; 24 bits
}

func (h *AETH) put(b []byte) {
	binary.BigEndian.PutUint32(b, uint32(h.Syndrome)<<24|h.MSN&(1<<24-1))
}

func (h *AETH) get(b []byte) {
	v := binary.BigEndian.Uint32(b)
	h.Syndrome, h.MSN = Syndrome(v>>24), v&(1<<24-1)
}

// Syndrome is an answer's verdict: what it is in bits 7 to 5, the rest below
// (IBA vol. 1 §9.7.5.2.1, table 44).
type Syndrome uint8

// Verdicts.
const (
	// ACK is a positive acknowledgement without end-to-end credits ("unlimited").
	ACK Syndrome = 0x1f
	// RNR in bits 7 to 5: no receive buffer; the lower bits are an RNRTimer.
	RNR Syndrome = 0x20

	NAKSequence          Syndrome = 0x60 // the packet's PSN is the one that was expected
	NAKInvalidRequest    Syndrome = 0x61
	NAKRemoteAccess      Syndrome = 0x62
	NAKRemoteOperational Syndrome = 0x63
	NAKInvalidRDRequest  Syndrome = 0x64
)

const syndromeKind = 0xe0

// IsACK says whether s acknowledges, with whatever credits.
func (s Syndrome) IsACK() bool { return s&syndromeKind == 0 }

// IsRNR says whether s asks the requester to wait; Timer then says how long.
func (s Syndrome) IsRNR() bool { return s&syndromeKind == RNR }

// IsNAK says whether s refuses. Which codes there are the constants say; what is none
// of them is to be taken for an error of the peer.
func (s Syndrome) IsNAK() bool { return s&syndromeKind == NAKSequence&syndromeKind }

// Timer is the code in an RNR NAK.
func (s Syndrome) Timer() RNRTimer { return RNRTimer(s &^ syndromeKind) }

func (s Syndrome) String() string {
	switch {
	case s.IsACK():
		return "ACK"
	case s.IsRNR():
		return fmt.Sprintf("RNR NAK (%v)", s.Timer().Duration())
	}
	switch s {
	case NAKSequence:
		return "NAK: PSN sequence error"
	case NAKInvalidRequest:
		return "NAK: invalid request"
	case NAKRemoteAccess:
		return "NAK: remote access error"
	case NAKRemoteOperational:
		return "NAK: remote operational error"
	case NAKInvalidRDRequest:
		return "NAK: invalid RD request"
	}
	return fmt.Sprintf("reserved syndrome %#02x", uint8(s))
}

// RNRTimer is the code of the time that a requester waits for a receive buffer; 5 bits
// (IBA vol. 1 §9.7.5.2.8, table 45). 0 is the longest.
type RNRTimer uint8

// in units of 10 µs.
var rnrTimers = [32]uint16{
	65535, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// Duration is the time that t stands for. Bits above the lower five are not looked at.
func (t RNRTimer) Duration() time.Duration {
	n := time.Duration(rnrTimers[t%32])
	if n == 65535 {
		n = 65536 // 655.36 ms, one more than the table's type can say
	}
	return n * 10 * time.Microsecond
}
