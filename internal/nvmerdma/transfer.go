package nvmerdma

import (
	"fmt"

	"softiser/internal/nvme"
	"softiser/internal/rdmamsg"
	"softiser/internal/segs"
)

// PutData implements nvme.QueueTransport: RDMA Writes. The response goes behind them, so
// that they are there when the host sees it.
func (c *Controller) PutData(k *nvme.Command, off uint32, list [][]byte, _ bool) {
	n := segs.Total(list)
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	cmd := c.slots.all[k.Slot]
	if c.st >= stateClosed || c.cause != nil {
		return
	}
	if !cmd.within(off, n) {
		c.failLocked(fmt.Errorf("nvmerdma: %d bytes at %d were to be written to a host's memory of %d", n, off, k.SQE.SGL().Length()))
		return
	}
	at := len(cmd.list)
	cmd.list = append(cmd.list, list...)
	cmd.puts++
	c.stats.payloadOut.Add(uint64(n))
	c.pump.Put((*putOf)(cmd), cmd.list[at:len(cmd.list):len(cmd.list)], uint32(n), cmd.remote(off))
}

// GetData implements nvme.QueueTransport: RDMA Reads.
func (c *Controller) GetData(k *nvme.Command, off uint32, list [][]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != stateReady || c.cause != nil {
		return c.endError()
	}
	cmd, n := c.slots.all[k.Slot], segs.Total(list)
	if !cmd.within(off, n) {
		return fmt.Errorf("nvmerdma: %d bytes at %d were to be read from a host's memory of %d", n, off, k.SQE.SGL().Length())
	}
	cmd.reading, cmd.stale = true, false
	cmd.get = c.pump.Get(cmd, list, uint32(n), cmd.remote(off))
	return nil
}

// gotLocked ends the Read of a command.
func (c *Controller) gotLocked(k *command, err error) {
	k.reading = false
	if k.stale {
		if k.answered {
			c.respondLocked(k)
		}
		return
	}
	if err == rdmamsg.ErrFault {
		err = nvme.ErrMemoryFault
	}
	k.err = err
	c.due.put(k)
}

// Cancel implements nvme.QueueTransport.
func (c *Controller) Cancel(use uint64) {
	c.mu.Lock()
	k := c.slots.reading(use)
	if k == nil {
		c.mu.Unlock()
		return
	}
	k.stale = true
	c.pump.Abort(k.get, k)
	c.mu.Unlock()
	c.up.DataArrived(&k.Command, nvme.ErrCancelled)
}

// reading returns the command of a use, if somebody waits for its Read; nil: there is none.
func (s *slots) reading(use uint64) *command {
	for _, k := range s.all {
		if k.Use == use && k.reading && !k.stale {
			return k
		}
	}
	return nil
}

// Respond implements nvme.QueueTransport.
func (c *Controller) Respond(k *nvme.Command, e *nvme.CQE) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cmd := c.slots.all[k.Slot]
	cmd.cqe, cmd.answered = *e, true
	if !cmd.reading {
		c.respondLocked(cmd)
	}
}

// respondLocked queues the response of a command.
func (c *Controller) respondLocked(k *command) {
	c.open--
	if c.st >= stateClosed {
		k.dropped = true
		c.endDroppedLocked(k)
		return
	}
	m := c.pump.Message(nvme.CQELen)
	m.Buf, m.Tag = append(m.Buf, k.cqe[:]...), k.Slot+1
	if d := k.SQE.SGL(); d.Kind() == nvme.SGLKeyedInvalidate && d.Length() > 0 && k.SQE.PSDT() == 1 {
		m.Inv, m.HasInv = d.Key(), true
	}
	c.stats.capsulesOut.Add(1)
	c.pump.Send(m)
}

// endDroppedLocked ends a command without its response, when its memory is free.
func (c *Controller) endDroppedLocked(k *command) {
	if k.dropped && !k.ended && k.puts == 0 {
		k.ended = true
		c.due.put(k)
	}
}
