package nvmetcp

import (
	"fmt"

	"softiser/internal/nvme"
	"softiser/internal/segs"
)

// hostReadAhead is the size of a host's read-ahead buffer.
const hostReadAhead = 160 << 10

// limits implements role.
func (h *Host) limits(Type) Limits {
	return Limits{Digests: h.digests, MaxData: maxTransfer, Align: (int(h.cfg.HPDA) + 1) * 4}
}

// dispatch implements role.
func (h *Host) dispatch(t Type) *Fault {
	h.io = nil
	switch t {
	case TypeC2HData:
		return h.c2hData()
	case TypeR2T:
		return h.asked()
	default: // CapsuleResp: finish completes the command
		return h.response()
	}
}

// response finds the command that a CapsuleResp answers.
func (h *Host) response() *Fault {
	e := (*CapsuleResp)(h.rx.header[:]).CQE()
	h.mu.Lock()
	defer h.mu.Unlock()
	io := h.find(e.CID())
	if io == nil {
		return badField(CHLen+12, "a response to command %04xh, which is not outstanding", e.CID())
	}
	io.cmd.CQE = *e
	h.io = io
	return nil
}

// find returns the command with an identifier, if it has not been answered.
func (h *Host) find(cid uint16) *hostIO {
	c := h.table.Find(cid)
	if c == nil {
		return nil
	}
	return &h.ios[c.Slot]
}

// c2hData finds the memory that the data of a command goes to.
func (h *Host) c2hData() *Fault {
	d := (*Data)(h.rx.header[:])
	f := d.CH().Flags()
	off, n := d.Offset(), d.Length()
	h.mu.Lock()
	defer h.mu.Unlock()
	io := h.find(d.CCCID())
	switch {
	case io == nil:
		return badField(AtCCCID, "data of command %04xh, which is not outstanding", d.CCCID())
	case !io.cmd.ToHost():
		return badField(AtCCCID, "data of command %04xh, which returns none", d.CCCID())
	case n != uint32(h.rx.Left()) || n == 0:
		return badField(AtLength, "C2HData of %d bytes with %d", n, h.rx.Left())
	case io.last:
		return &Fault{FESSequence, 0, fmt.Errorf("nvmetcp: data of command %04xh behind its last", d.CCCID())}
	case off != io.got:
		return &Fault{FESOutOfRange, 0, fmt.Errorf("nvmetcp: C2HData at offset %d, expected %d", off, io.got)}
	case n > io.total-io.got:
		return &Fault{FESOutOfRange, 0, fmt.Errorf("nvmetcp: C2HData of %d bytes, %d are left of what was asked for", n, io.total-io.got)}
	case f&FlagSuccess != 0 && (f&FlagLast == 0 || n != io.total-io.got):
		return badField(atFlags, "C2HData says success, %d bytes before the end", io.total-io.got-n)
	}
	h.io = io
	if !io.fault {
		h.rx.Aim(segs.Of(io.cmd.Data, int(off), int(n)), io)
	}
	h.stats.payloadIn.Add(uint64(n))
	return nil
}

// asked answers an R2T.
func (h *Host) asked() *Fault {
	d := (*Data)(h.rx.header[:])
	off, n := d.Offset(), d.Length()
	h.mu.Lock()
	defer h.mu.Unlock()
	io := h.find(d.CCCID())
	switch {
	case io == nil:
		return badField(AtCCCID, "R2T for command %04xh, which is not outstanding", d.CCCID())
	case !io.cmd.FromHost():
		return badField(AtCCCID, "R2T for command %04xh, which has no data to send", d.CCCID())
	case n == 0:
		return badField(AtLength, "R2T for no data")
	case off < io.asked:
		return &Fault{FESOutOfRange, 0, fmt.Errorf("nvmetcp: R2T for offset %d, everything up to %d has been asked for", off, io.asked)}
	case off > io.total || n > io.total-off:
		return &Fault{FESOutOfRange, 0, fmt.Errorf("nvmetcp: R2T for %d bytes at %d of %d", n, off, io.total)}
	case io.r2ts > 1:
		// Our ICReq allows one R2T at a time. Two are tolerated, because the data for the
		// first may have been sent and not been accounted for yet.
		return &Fault{FESDataLimit, 0, fmt.Errorf("nvmetcp: R2T for command %04xh with another one outstanding", d.CCCID())}
	}
	h.r2tLocked(io, d.TTAG(), off, n)
	return nil
}

// claim implements role: a command's memory is there until it completes.
func (h *Host) claim() bool { return true }
func (h *Host) release()    {}

// faulted implements role.
func (h *Host) faulted() { h.io.fault = true }

// finish implements role.
func (h *Host) finish(good bool) {
	io := h.io
	if io == nil {
		return
	}
	h.io = nil
	if hd := (*CH)(h.rx.header[:]); hd.Type() == TypeC2HData {
		io.got += h.rx.layout.Data
		io.bad = io.bad || !good
		io.last = io.last || hd.Flags()&FlagLast != 0
		if hd.Flags()&FlagSuccess == 0 {
			return
		}
		io.cmd.CQE.SetCID(io.cmd.SQE.CID())
		io.cmd.CQE.SetSQHead(nvme.NoSQHead)
	}
	h.complete(io)
}

// complete ends a command that has been answered.
func (h *Host) complete(io *hostIO) {
	c := io.cmd
	c.Received = io.got
	switch {
	case io.bad:
		c.Err = nvme.ErrDataDigest
	case io.fault:
		c.Err = nvme.ErrMemoryFault
	}
	h.mu.Lock()
	h.table.Remove(c)
	if io.total > 0 && c.SQE.ToHost() {
		h.reads.remove(io)
	}
	if io.answered = io.queued > 0; io.answered {
		h.mu.Unlock()
		return // its memory is still to be sent
	}
	h.mu.Unlock()
	h.up.Completed(c)
}

// batchEnd implements role.
func (h *Host) batchEnd() { h.up.BatchEnd() }
