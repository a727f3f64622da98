package nvmetcp

import (
	"softiser/internal/nvme"
	"softiser/internal/segs"
)

// PutData implements nvme.QueueTransport. While the connection closes responses still go out,
// so that data does, too: a response without it would be believed.
func (c *Controller) PutData(k *nvme.Command, off uint32, list [][]byte, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st == stateDead {
		return
	}
	n := segs.Total(list)
	if n == 0 {
		return
	}
	cmd := c.slots.all[k.Slot]
	p := c.tx.alloc()
	p.list = append(p.list, list...)
	p.Data = segs.Of(p.list, 0, n)
	p.Head = p.Head[:DataLen]
	var f Flags
	if last {
		f = FlagLast
		cmd.put, p.last = p, cmd
	}
	(*Data)(p.Head).Set(TypeC2HData, f, c.digests, k.SQE.CID(), 0, off, uint32(n), c.align)
	c.stats.payloadOut.Add(uint64(n))
	c.tx.push(p)
}

// Respond implements nvme.QueueTransport. The response to a read that succeeded
// rides in its last C2HData when the host has no use for anything else in it.
func (c *Controller) Respond(k *nvme.Command, e *nvme.CQE) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cmd := c.slots.all[k.Slot]
	p := cmd.put
	cmd.put = nil
	if p != nil && !p.Taken() && e.SQHead() == nvme.NoSQHead && e.Status() == nvme.Success && e.Result() == 0 {
		p.Head[1] |= byte(FlagSuccess)
		p.then = cmd
		return
	}
	p = c.tx.alloc()
	p.then = cmd
	p.Head = p.Head[:CapsuleRespLen]
	r := (*CapsuleResp)(p.Head)
	r.SetHeader(c.digests)
	*r.CQE() = *e
	c.tx.push(p)
}

// settleLocked implements role: commands whose responses have gone end, and their slots
// are free.
func (c *Controller) settleLocked() bool {
	done := c.done
	if done == nil {
		return false
	}
	c.done = nil
	c.mu.Unlock()
	for k := done; k != nil; k = k.next {
		c.up.Sent(&k.Command)
	}
	c.mu.Lock()
	for done != nil {
		k := done
		done = k.next
		c.slots.put(k)
	}
	return true
}
