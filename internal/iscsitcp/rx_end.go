package iscsitcp

import (
	"errors"

	"softiser/internal/iscsi"
)

// Claim implements pdustream.Parser.
func (r *receiver) Claim() bool {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.owned() {
		r.owner, r.tag = nil, nil
		return false
	}
	c.placing = r.owner
	return true
}

// Release implements pdustream.Parser.
func (r *receiver) Release() {
	c := r.c
	c.mu.Lock()
	c.placing = nil
	c.cond.Broadcast()
	c.mu.Unlock()
}

// owned reports whether the memory still belongs to the data.
func (r *receiver) owned() bool {
	switch o := r.owner.(type) {
	case *task:
		return o.bufs != nil && o.itt == r.bhs.ITT()
	case *get:
		return o.x != nil && r.tag.g == o && r.tag.ttt == r.bhs.TTT()
	}
	return false
}

// Fault implements pdustream.Parser.
func (r *receiver) Fault() {
	c := r.c
	c.mu.Lock()
	if r.owned() {
		switch o := r.owner.(type) {
		case *task:
			o.fault = true
		case *get:
			o.fault = true
		}
	}
	c.mu.Unlock()
}

// errDataDigest is how a data digest error is answered.
var errDataDigest = &iscsi.ProtocolError{Reason: iscsi.RejectDataDigest, Msg: "data digest error"}

var errDigestFatal = errors.New("iscsitcp: data digest error at error recovery level 0")

// End implements pdustream.Parser: it handles the end of a PDU; tail is its padding and
// digest.
func (r *receiver) End(tail []byte) error {
	c := r.c
	if r.toss {
		r.toss = false
		return nil
	}
	good := !r.dd || len(tail) == 0 || r.Intact(tail)
	r.one[0] = nil
	switch r.bhs.Opcode() {
	case iscsi.OpDataIn:
		return r.dataInDone(good)
	case iscsi.OpR2T:
		return r.r2tIn()
	case iscsi.OpDataOut:
		if r.in == nil {
			return r.dataOutDone(good)
		}
	}
	p := &r.in.pdu
	if !good {
		p.Bad = errDataDigest
	}
	in := r.in
	r.in = nil
	if good && c.rec != nil && r.bhs.Opcode() == iscsi.OpSNACK {
		return c.rec.snack(in)
	}
	return r.notify(in)
}

// notify hands a PDU up. During login the stream may be about to change its
// form, so that reading goes on only when the upper layer has answered.
func (r *receiver) notify(in *inPDU) error {
	c := r.c
	p := &in.pdu
	op := p.BHS.Opcode()
	c.mu.Lock()
	pause := false
	switch {
	case c.st >= iscsi.ConnClosing:
		c.mu.Unlock()
		p.Release()
		return nil
	case op == iscsi.OpSCSIResponse:
		if k := c.tasks.find(p.BHS.ITT()); k != nil {
			if p.Bad != nil {
				// The response's data is lost and cannot be asked for again at this level.
				c.mu.Unlock()
				p.Release()
				return errDigestFatal
			}
			k.bufs.InLen = k.placed
			if k.fault {
				// The command has succeeded at the target, but its data did not get into memory: report a failure.
				p.BHS.SCSIResponse().SetResponse(iscsi.ResponseTargetFailure)
			}
			c.releaseLocked(k)
		}
	case op == iscsi.OpLoginRequest || op == iscsi.OpLoginResponse && p.BHS.LoginResponse().NSG() == iscsi.StageFullFeature && p.BHS.Final():
		pause = c.st == iscsi.ConnLogin
		c.resumeRx = false
	}
	c.mu.Unlock()
	c.up.ControlNotify(p)
	if !pause {
		return nil
	}
	r.Batch()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = true
	c.cond.Broadcast()
	for !c.resumeRx && c.st != iscsi.ConnDead && !c.detached {
		c.cond.Wait()
	}
	c.paused = false
	if c.detached {
		if len(r.Unread()) > 0 {
			return errors.New("iscsitcp: the peer sent more behind the last login PDU")
		}
		return errDetached
	}
	return nil
}

var errDetached = errors.New("iscsitcp: the stream was handed over")
