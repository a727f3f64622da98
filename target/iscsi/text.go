package iscsi

import (
	"bytes"

	"softiser/internal/iscsi"
)

// textExchange is one Text negotiation (RFC 7143 §11.10, §11.11), which may
// take several PDUs in either direction:
//
//	request C=1 ──▶             gathers
//	          ◀── empty, TTT
//	request ──▶                 complete
//	          ◀── part, F=0, TTT
//	empty, TTT ──▶
//	          ◀── rest, F=1
//
// Of an answer only as much is made as the next PDU takes: the list of targets may
// be long, and an initiator may never ask for its end.
//
// sess.mu guards it, unless it is busy: then it belongs to the goroutine that answers.
type textExchange struct {
	c    *conn
	ttt  uint32 // ReservedTag: no exchange is open
	last uint32 // tag that was given away
	in   iscsi.TextBuffer
	out  []byte        // made and not sent
	rest targetListing // not made yet
	busy bool          // a request is being answered, without the session's lock
}

// maxTextPiece bounds the text of one response, whatever the initiator can take.
const maxTextPiece = 64 << 10

// take takes a Text Request.
func (x *textExchange) take(p *iscsi.PDU) {
	c, s := x.c, x.c.sess
	req := p.BHS.Text()
	s.mu.Lock()
	text, step := x.gatherLocked(&req, p.Data)
	ttt := x.ttt
	s.mu.Unlock()
	switch step {
	case textRefused:
		c.out.reject(p, iscsi.RejectProtocol)
		return
	case textUnknownTag:
		c.out.reject(p, iscsi.RejectInvalidField)
		return
	case textGoesOn:
		c.out.textResponse(req.ITT(), ttt, nil, false, false)
		p.Release()
		return
	}
	// busy keeps the exchange for this request from here on.
	ok := step == textMore || x.answer(text)
	limit := min(c.out.controlData(), maxTextPiece)
	if ok {
		for x.rest.more() && len(x.out) <= limit {
			x.out = x.rest.next(x.out)
		}
		part, cut := cutText(x.out, limit)
		c.out.textResponse(req.ITT(), ttt, part, len(part) == len(x.out), cut)
		x.out = append(x.out[:0], x.out[len(part):]...)
	}
	s.mu.Lock()
	if len(x.out) == 0 || !ok {
		x.ttt, x.out, x.rest = iscsi.ReservedTag, nil, targetListing{}
	}
	x.busy = false
	s.mu.Unlock()
	if !ok {
		c.out.reject(p, iscsi.RejectProtocol)
		return
	}
	p.Release()
}

// textStep is what a Text Request asks for.
type textStep uint8

const (
	textComplete   textStep = iota // the answer to a text that has come in full
	textMore                       // the next piece of the answer
	textGoesOn                     // the text is not complete
	textUnknownTag                 // an exchange that is not open
	textRefused                    // it breaks the protocol
)

// gatherLocked puts the text of an exchange together. With textComplete and textMore
// the exchange is the caller's (busy). The caller holds sess.mu.
func (x *textExchange) gatherLocked(req *iscsi.Text, data []byte) ([]byte, textStep) {
	switch ttt := req.TTT(); {
	case x.busy:
		return nil, textRefused // one negotiation at a time (RFC 7143 §11.10)
	case ttt == iscsi.ReservedTag:
		// A new exchange ends whatever was open (RFC 7143 §11.10.4).
		tag := x.last + 1
		if tag == iscsi.ReservedTag {
			tag = 0
		}
		*x = textExchange{c: x.c, ttt: tag, last: tag, in: iscsi.TextBuffer{Limit: x.c.srv.cfg.TextData}}
	case ttt != x.ttt:
		return nil, textUnknownTag
	}
	if len(x.out) > 0 {
		x.busy = true
		return nil, textMore
	}
	text, complete, err := x.in.Add(data, req.Continue())
	switch {
	case err != nil:
		x.ttt = iscsi.ReservedTag
		return nil, textRefused
	case !complete:
		return nil, textGoesOn
	}
	x.busy = true
	return text, textComplete
}

// cutText returns as much of text as fits, between two pairs if possible; cut
// reports that a pair continues in the next PDU (the C bit).
func cutText(text []byte, limit int) (part []byte, cut bool) {
	if limit <= 0 || len(text) <= limit {
		return text, false
	}
	if i := bytes.LastIndexByte(text[:limit], 0); i >= 0 {
		return text[:i+1], false
	}
	return text[:limit], true
}

// answer answers the pairs of a complete request: SendTargets, and the few
// keys that may be declared again in full feature phase. It reports false when the
// text breaks the protocol. The exchange is the caller's (busy).
func (x *textExchange) answer(text []byte) bool {
	c, s := x.c, x.c.sess
	kvs, err := iscsi.ParseText(text)
	if err != nil {
		return false
	}
	rest := kvs[:0]
	asked := false
	for _, kv := range kvs {
		which, ok := iscsi.SendTargets([]iscsi.KeyValue{kv})
		if !ok {
			rest = append(rest, kv)
			continue
		}
		if asked {
			return false // a key has one value in a negotiation (RFC 7143 §6.2)
		}
		asked = true
		if x.rest, ok = x.sendTargets(which); !ok {
			return false
		}
	}
	if len(rest) == 0 {
		return true
	}
	n := iscsi.NewNegotiation(iscsi.RoleTarget, s.settings(), c.dm.KeyProfile(), true)
	n.SetSessionType(s.params.SessionType)
	if x.out, err = n.Receive(x.out, rest, iscsi.StageFullFeature); err != nil {
		s.srv.limits.protocol.Warn(c.log, "text negotiation refused", peerText("error", err.Error()))
		return false
	}
	if _, ok := n.Declared(iscsi.KeyMaxRecvDataSegmentLength); ok {
		s.mu.Lock()
		c.out.mu.Lock()
		c.params.MaxXmitDataSegmentLength = uint32(n.PeerMaxRecv())
		c.dm.NoticeKeyValues(&c.params)
		c.limits = c.dm.Limits()
		c.out.mu.Unlock()
		s.mu.Unlock()
	}
	return true
}
