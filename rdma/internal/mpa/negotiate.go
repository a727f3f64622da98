package mpa

import (
	"fmt"
	"slices"

	"softiser/rdma/internal/wire"
)

// CRCMode is a side's wish about the FPDU CRC.
type CRCMode uint8

// CRC modes. The CRC is used when either side sets C (RFC 5044 §7.1.1).
const (
	CRCRequired CRCMode = iota // set C; refuse a peer that does not end up using it
	CRCOffered                 // do not set C, follow the peer
	CRCOff                     // do not set C, refuse a peer that wants it
)

var crcNames = [...]string{CRCRequired: "required", CRCOffered: "offered", CRCOff: "off"}

// String is the name that ParseCRCMode reads.
func (m CRCMode) String() string {
	if int(m) < len(crcNames) {
		return crcNames[m]
	}
	return fmt.Sprintf("CRCMode(%d)", uint8(m))
}

// ParseCRCMode reads "required", "offered" or "off".
func ParseCRCMode(s string) (CRCMode, error) {
	if i := slices.Index(crcNames[:], s); i >= 0 {
		return CRCMode(i), nil
	}
	return 0, fmt.Errorf("crc mode %q: want required, offered or off", s)
}

// Wish is what one side brings into the negotiation.
type Wish struct {
	Rev      int // 1 or 2; 0 means 2
	CRC      CRCMode
	IRD, ORD int
	P2P      RTR // kinds of RTR message that may be used; 0: no peer-to-peer set-up asked for
	GSO      bool
	Private  []byte
}

// Result is what both sides have agreed on, from the point of view of one.
type Result struct {
	Rev      int
	CRC      bool
	GSO      bool
	IRD, ORD int
	RTR      RTR    // one kind that the initiator must send first, or 0
	Private  []byte // the peer's
}

// Refusal is an error that goes to the peer: as a reject by the responder, as a
// Terminate with this cause by the initiator.
type Refusal struct {
	Cause wire.Cause
	Text  string
}

func (r *Refusal) Error() string { return r.Text }

// Request builds the initiator's frame.
func (w *Wish) Request() (*Frame, error) {
	f := &Frame{Rev: 2, Enhanced: true, Private: w.Private}
	if w.Rev == 1 {
		f.Rev, f.Enhanced = 1, false
	}
	if w.CRC == CRCRequired {
		f.Flags |= FlagCRC
	}
	if w.GSO && f.Enhanced {
		f.Flags |= FlagGSO
	}
	f.IRD, f.ORD = clamp(w.IRD), clamp(w.ORD)
	if w.P2P != 0 && f.Enhanced {
		f.P2P, f.RTR = true, w.P2P
	}
	return f, checkPrivate(f)
}

func checkPrivate(f *Frame) error {
	max := MaxPD
	if f.Enhanced {
		max -= WordLen
	}
	if len(f.Private) > max {
		return fmt.Errorf("mpa: %d bytes of private data, at most %d fit", len(f.Private), max)
	}
	return nil
}

func clamp(n int) uint16 { return uint16(min(max(n, 0), MaxQueue-1)) }

// Agree is the initiator's side: req is what it sent, rep what came back (not a
// reject).
func (w *Wish) Agree(req, rep *Frame) (Result, error) {
	r := Result{Rev: int(rep.Rev), Private: rep.Private}
	switch {
	case rep.Rev > 2:
		return r, &Refusal{wire.CauseBadFrame, fmt.Sprintf("mpa: the peer replied with revision %d, supported are 0 to 2", rep.Rev)}
	case rep.Flags&FlagMarkers != 0:
		return r, &Refusal{wire.CauseMPALocal, "mpa: the peer wants markers in the stream, which are not supported"}
	case req.Enhanced && !rep.Enhanced:
		return r, &Refusal{wire.CauseBadFrame, "mpa: the peer answered the revision 2 Request without the enhanced word; try revision 1"}
	case !req.Enhanced && rep.Enhanced:
		return r, &Refusal{wire.CauseBadFrame, "mpa: the peer answered the revision 1 Request with an enhanced word"}
	}
	r.CRC = (req.Flags|rep.Flags)&FlagCRC != 0
	if r.CRC && w.CRC == CRCOff {
		return r, &Refusal{wire.CauseMPALocal, "mpa: the peer insists on CRC, which is configured off here"}
	}
	r.GSO = req.Flags&rep.Flags&FlagGSO != 0
	if !rep.Enhanced {
		r.IRD, r.ORD = w.IRD, w.ORD // revision 1 says nothing about it
		return r, nil
	}
	// RFC 6581 §9: our ORD must fit the responder's IRD, its ORD ours.
	r.IRD, r.ORD = w.IRD, w.ORD
	if rep.IRD != MaxQueue {
		r.ORD = min(w.ORD, int(rep.IRD))
	}
	if rep.ORD != MaxQueue && int(rep.ORD) > w.IRD {
		return r, &Refusal{wire.CauseInsufficient, fmt.Sprintf("mpa: the peer wants to have %d RDMA Reads outstanding, %d can be served; raise IRD", rep.ORD, w.IRD)}
	}
	if rep.P2P != req.P2P {
		if req.P2P {
			return r, &Refusal{wire.CauseNoRTR, "mpa: the peer does not support the peer-to-peer set-up"}
		}
		return r, &Refusal{wire.CauseNoRTR, "mpa: the peer insists on the peer-to-peer set-up"}
	}
	if req.P2P {
		common := req.RTR & rep.RTR
		if common == 0 {
			return r, &Refusal{wire.CauseNoRTR, fmt.Sprintf("mpa: no common RTR message: offered %v, the peer takes %v", req.RTR, rep.RTR)}
		}
		r.RTR = pick(common)
	}
	return r, nil
}

// pick chooses one kind: a Write costs nothing, a Read costs an answer, a Send a
// receive buffer of the peer.
func pick(r RTR) RTR {
	for _, k := range []RTR{RTRWrite, RTRRead, RTRSend} {
		if r&k != 0 {
			return k
		}
	}
	return 0
}

// Check is the responder's first look at a Request: what it must refuse whatever
// the ULP thinks.
func Check(req *Frame) error {
	if req.Rev > 2 {
		return fmt.Errorf("%w: revision %d, supported are 0 to 2", ErrFrame, req.Rev)
	}
	if req.Flags&FlagMarkers != 0 {
		return &Refusal{wire.CauseMPALocal, "mpa: the peer wants markers in the stream, which are not supported"}
	}
	return nil
}

// Answer is the responder's side: it builds the Reply to req and tells what has
// been agreed. The peer's Private of req are not repeated in Result.
func (w *Wish) Answer(req *Frame) (*Frame, Result, error) {
	f := &Frame{Reply: true, Rev: req.Rev, Enhanced: req.Enhanced, Private: w.Private}
	r := Result{Rev: int(req.Rev), Private: req.Private}
	if err := checkPrivate(f); err != nil {
		return nil, r, err
	}
	r.CRC = req.Flags&FlagCRC != 0 || w.CRC == CRCRequired
	if r.CRC && w.CRC == CRCOff {
		return nil, r, &Refusal{wire.CauseMPALocal, "mpa: the peer asks for CRC, which is configured off here"}
	}
	if r.CRC {
		f.Flags |= FlagCRC
	}
	if r.GSO = w.GSO && req.Flags&FlagGSO != 0; r.GSO {
		f.Flags |= FlagGSO
	}
	if !req.Enhanced {
		r.IRD, r.ORD = w.IRD, w.ORD // revision 1 says nothing about it
		return f, r, nil
	}
	// Our ORD must fit the initiator's IRD; our IRD should cover its ORD, and it
	// will lower its ORD to what we answer (RFC 6581 §9).
	r.IRD, r.ORD = w.IRD, w.ORD
	if req.IRD != MaxQueue {
		r.ORD = min(w.ORD, int(req.IRD))
	}
	if req.ORD != MaxQueue {
		r.IRD = min(w.IRD, int(req.ORD))
	}
	if req.P2P {
		kinds := req.RTR & (RTRSend | RTRWrite | RTRRead)
		if kinds&w.P2P != 0 {
			kinds &= w.P2P
		}
		if kinds == 0 {
			return nil, r, &Refusal{wire.CauseNoRTR, "mpa: the peer asks for the peer-to-peer set-up without naming an RTR message"}
		}
		r.RTR = pick(kinds)
		f.P2P, f.RTR = true, r.RTR
	}
	// At least 1, so that a Read as RTR message, which some peers send in any
	// case, has room.
	r.IRD = max(r.IRD, min(w.IRD, 1))
	if r.RTR == RTRRead {
		r.IRD = max(r.IRD, 1)
	}
	f.IRD, f.ORD = clamp(r.IRD), clamp(r.ORD)
	if req.IRD == MaxQueue {
		f.ORD = MaxQueue
	}
	if req.ORD == MaxQueue {
		f.IRD = MaxQueue
	}
	return f, r, nil
}

// Reject builds the Reply that refuses req.
func Reject(req *Frame, private []byte) (*Frame, error) {
	f := &Frame{Reply: true, Rev: req.Rev, Enhanced: req.Enhanced, Flags: FlagReject, Private: private}
	if f.Rev > 2 {
		f.Rev = 2
	}
	return f, checkPrivate(f)
}
