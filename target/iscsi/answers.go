package iscsi

import (
	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// This file has what the target says on a connection in answer to requests; SCSI Responses
// are in respond.go.

// taskResponse sends the response and pushes it: it may come from a goroutine
// that pushes another connection, or none.
func (c *conn) taskResponse(itt uint32, response uint8) { c.taskResponseInfo(itt, response, 0) }

// taskResponseInfo is taskResponse with additional response information (RFC 7144
// §5.1).
func (c *conn) taskResponseInfo(itt uint32, response uint8, info uint32) {
	c.queueTaskResponse(itt, response, info)
	c.dm.Push()
}

func (c *conn) queueTaskResponse(itt uint32, response uint8, info uint32) {
	c.sess.managing.Add(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &c.out
	r := out.BHS.NewTaskResponse(response)
	r.SetITT(itt)
	r.SetAdditional(info)
	out.Data = nil
	c.sendLocked(out, takeStatSN)
}

func (c *conn) logoutResponse(itt uint32, response uint8) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &c.out
	r := out.BHS.NewLogoutResponse(response)
	r.SetITT(itt)
	r.SetTimes(uint16(c.params.DefaultTime2Wait), uint16(c.params.DefaultTime2Retain))
	out.Data = nil
	c.sendLocked(out, takeStatSN)
}

func (c *conn) textResponse(itt, ttt uint32, data []byte, final, cont bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &c.out
	r := out.BHS.NewTextResponse()
	r.SetITT(itt)
	r.SetFinal(final)
	r.SetContinue(cont)
	r.SetTTT(ttt)
	if final {
		r.SetTTT(iscsi.ReservedTag)
	}
	out.Data = data
	c.sendLocked(out, takeStatSN)
	out.Data = nil
}

// reject answers a PDU that cannot be executed with its own header (RFC 7143
// §11.17) and releases it.
func (c *conn) reject(p *iscsi.PDU, reason iscsi.RejectReason) {
	c.counters.rejects.Add(1)
	c.srv.limits.reject.Warn(c.log, "PDU rejected", zap.Stringer("pdu", p.BHS.Opcode()),
		zap.Stringer("reason", reason), zap.Uint32("itt", p.BHS.ITT()))
	c.mu.Lock()
	out := &c.out
	out.BHS.NewReject(reason)
	c.scratch = append(c.scratch[:0], p.BHS[:]...)
	out.Data = c.scratch
	c.sendLocked(out, takeStatSN)
	c.mu.Unlock()
	numbered := p.BHS.Opcode() == iscsi.OpSCSICommand && !p.BHS.Immediate()
	p.Release()
	if numbered && c.sess != nil {
		c.sess.mu.Lock()
		c.sess.openWindowLocked() // it took a number but no place
		c.sess.mu.Unlock()
	}
}
