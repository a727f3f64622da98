package nvmetcp

import (
	"softiser/internal/nvme"
	"softiser/internal/segs"
)

// Submit implements nvme.HostTransport.
func (h *Host) Submit(c *nvme.HostCommand) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.st != stateReady {
		return
	}
	if err := h.table.Add(c); err != nil {
		h.failLocked(err)
		return
	}
	io := &h.ios[c.Slot]
	*io = hostIO{h: h, cmd: c, total: uint32(segs.Total(c.Data))}
	c.CQE, c.Received, c.Err = nvme.CQE{}, 0, nil
	p := h.tx.alloc()
	p.Head = p.Head[:CapsuleCmdLen]
	k := (*CapsuleCmd)(p.Head)
	inside := uint32(0)
	switch {
	case io.total == 0:
		c.SQE.SGL().SetBlock(nvme.SGLTransport, 0, 0)
	case c.FromHost() && io.total <= h.inCapsuleOf(c):
		inside = io.total
		io.asked = io.total
		c.SQE.SGL().SetBlock(nvme.SGLInCapsule, 0, inside)
		h.attach(p, io, 0, inside)
	default:
		c.SQE.SGL().SetBlock(nvme.SGLTransport, 0, io.total)
		if c.ToHost() {
			h.reads.push(io)
		}
	}
	*k.SQE() = c.SQE
	k.SetHeader(h.digests, inside, h.align)
	h.tx.push(p)
}

// inCapsuleOf returns how much data c may have in its capsule.
func (h *Host) inCapsuleOf(c *nvme.HostCommand) uint32 {
	if c.SQE.Opcode() == nvme.OpFabrics {
		return adminInCapsule
	}
	return h.inCapsule
}

// attach makes a part of a command's data that of a PDU.
func (h *Host) attach(p *outPDU, io *hostIO, off, n uint32) {
	p.list = append(p.list, io.cmd.Data...)
	p.Data = segs.Of(p.list, int(off), int(n))
	p.then = io
	io.queued++
	h.stats.payloadOut.Add(uint64(n))
}

// goneLocked implements notice: one PDU less uses the command's data.
func (io *hostIO) goneLocked() {
	io.queued--
	if io.answered && io.queued == 0 {
		io.next, io.h.done = io.h.done, io
	}
}

// r2tEnd is the notice of the last PDU that answers an R2T.
type r2tEnd hostIO

func (e *r2tEnd) goneLocked() {
	e.r2ts--
	(*hostIO)(e).goneLocked()
}

// settleLocked implements role: commands that were answered before all of their data
// had gone end now.
func (h *Host) settleLocked() bool {
	io := h.done
	if io == nil {
		return false
	}
	h.done = nil
	h.mu.Unlock()
	for io != nil {
		next := io.next
		io.next = nil
		h.up.Completed(io.cmd)
		io = next
	}
	h.up.BatchEnd()
	h.mu.Lock()
	return true
}

// r2tLocked answers a controller that asks for n bytes from off on: H2CData by reference, as
// long as the controller takes them.
func (h *Host) r2tLocked(io *hostIO, tag uint16, off, n uint32) {
	io.asked = off + n
	io.r2ts++
	for first := off; n > 0; {
		k := min(n, h.maxH2C)
		p := h.tx.alloc()
		p.Head = p.Head[:DataLen]
		var f Flags
		if n -= k; n == 0 {
			f = FlagLast
		}
		(*Data)(p.Head).Set(TypeH2CData, f, h.digests, io.cmd.SQE.CID(), tag, first, k, h.align)
		h.attach(p, io, first, k)
		if f == FlagLast {
			p.then = (*r2tEnd)(io)
		}
		h.tx.push(p)
		first += k
	}
}
