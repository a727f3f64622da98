package iscsi

import (
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// sender numbers what the target says on a connection and gives it to the datamover:
// answers to requests here, SCSI Responses in respond.go, Asynchronous Messages in async.go.
type sender struct {
	c *conn

	mu      sync.Mutex
	pdu     iscsi.PDU     // guarded by mu: the PDU being built
	scratch []byte        // guarded by mu: its data
	statSN  atomic.Uint32 // written under mu
}

// statUse says what a PDU does with StatSN (RFC 7143 §4.2.2.2).
type statUse bool

const (
	takeStatSN statUse = true  // a status: takes the number
	peekStatSN statUse = false // shows the next number
)

// sendLocked numbers and queues a PDU. The caller holds mu. An error means
// that the connection is ending, which ConnectionTerminateNotify will tell.
func (o *sender) sendLocked(p *iscsi.PDU, use statUse) {
	p.BHS.SetSequence(o.c.Sequence())
	p.BHS.SetDataLen(len(p.Data))
	if use == takeStatSN {
		o.statSN.Add(1)
	}
	_ = o.c.dm.SendControl(p)
}

// controlData is how many data bytes a PDU to this initiator may have.
func (o *sender) controlData() int {
	c := o.c
	n := c.limits.MaxControlData
	if c.sess != nil {
		if m := int(c.params.MaxXmitDataSegmentLength); n == 0 || m < n {
			n = m
		}
	}
	return n
}

// taskResponse queues the response and pushes it, because the calling goroutine may push
// another connection, or none.
func (o *sender) taskResponse(itt uint32, response uint8) { o.taskResponseInfo(itt, response, 0) }

// taskResponseInfo is taskResponse with additional response information (RFC 7144
// §5.1).
func (o *sender) taskResponseInfo(itt uint32, response uint8, info uint32) {
	o.queueTaskResponse(itt, response, info)
	o.c.dm.Push()
}

func (o *sender) queueTaskResponse(itt uint32, response uint8, info uint32) {
	o.c.sess.manager.open.Add(-1)
	o.mu.Lock()
	defer o.mu.Unlock()
	out := &o.pdu
	r := out.BHS.NewTaskResponse(response)
	r.SetITT(itt)
	r.SetAdditional(info)
	out.Data = nil
	o.sendLocked(out, takeStatSN)
	o.c.sess.still.Load().look()
}

func (o *sender) logoutResponse(itt uint32, response uint8) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := &o.pdu
	r := out.BHS.NewLogoutResponse(response)
	r.SetITT(itt)
	r.SetTimes(uint16(o.c.params.DefaultTime2Wait), uint16(o.c.params.DefaultTime2Retain))
	out.Data = nil
	o.sendLocked(out, takeStatSN)
}

func (o *sender) textResponse(itt, ttt uint32, data []byte, final, cont bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := &o.pdu
	r := out.BHS.NewTextResponse()
	r.SetITT(itt)
	r.SetFinal(final)
	r.SetContinue(cont)
	r.SetTTT(ttt)
	if final {
		r.SetTTT(iscsi.ReservedTag)
	}
	out.Data = data
	o.sendLocked(out, takeStatSN)
	out.Data = nil
}

// reject answers a PDU with a Reject, which carries the header of that PDU (RFC 7143
// §11.17), and releases it.
func (o *sender) reject(p *iscsi.PDU, reason iscsi.RejectReason) {
	c := o.c
	c.counters.rejects.Add(1)
	c.srv.limits.reject.Warn(c.log, "PDU rejected", zap.Stringer("pdu", p.BHS.Opcode()),
		zap.Stringer("reason", reason), zap.Uint32("itt", p.BHS.ITT()))
	o.mu.Lock()
	out := &o.pdu
	out.BHS.NewReject(reason)
	o.scratch = append(o.scratch[:0], p.BHS[:]...)
	out.Data = o.scratch
	o.sendLocked(out, takeStatSN)
	o.mu.Unlock()
	numbered := p.BHS.Opcode() == iscsi.OpSCSICommand && !p.BHS.Immediate()
	p.Release()
	if numbered && c.sess != nil {
		c.sess.mu.Lock()
		c.sess.openWindowLocked() // the command used up a CmdSN without taking a place in the window
		c.sess.mu.Unlock()
	}
}
