package nvmerdma

import (
	"fmt"

	"softiser/internal/nvme"
	"softiser/rdma"
)

// recvHandler is the handler of the receive completion queue: one Send of the host is
// one capsule.
func (c *Controller) recvHandler(cq *rdma.CQ) {
	if !c.started.Load() {
		<-c.startCh
	}
	c.reapReceives(cq, c.recvWC[:])
}

func (c *Controller) reapReceives(cq *rdma.CQ, wcs []rdma.WC) {
	for {
		n := cq.Poll(wcs)
		if n == 0 {
			return
		}
		for i := range wcs[:n] {
			c.received(&wcs[i])
		}
		c.Push() // what the commands of this batch were answered with
	}
}

// received handles one capsule.
func (c *Controller) received(wc *rdma.WC) {
	b, scarce := c.link.Received(wc)
	if wc.Status != rdma.StatusSuccess {
		b.Free()
		return
	}
	c.mu.Lock()
	k, err := c.commandLocked(b.Msg(wc.ByteLen), wc)
	switch {
	case err != nil:
		c.breachLocked(err)
	case k == nil:
	case len(k.Data) > 0 && !scarce:
		k.recv = b
		b = nil
	case len(k.Data) > 0:
		k.Data, k.NoRoom = nil, true
	}
	c.mu.Unlock()
	if b != nil {
		b.Free()
	}
	if k != nil {
		c.up.Command(&k.Command)
	}
}

// commandLocked takes a slot for a command. nil without an error: it is not wanted any
// more.
func (c *Controller) commandLocked(msg []byte, wc *rdma.WC) (*command, error) {
	if c.st != stateReady || c.cause != nil || c.up == nil {
		return nil, nil
	}
	sqe, data, err := ParseCapsule(msg)
	switch {
	case err != nil:
		return nil, err
	case wc.Flags&rdma.WCWithInv != 0:
		return nil, fmt.Errorf("nvmerdma: a capsule invalidates STag %#08x; only responses do", wc.InvSTag)
	case c.open+c.pump.Waiting() >= c.entries:
		return nil, fmt.Errorf("nvmerdma: more commands are outstanding than the %d that the queue has room for", c.entries)
	}
	k := c.slots.take()
	k.SQE, k.Data = *sqe, data
	c.open++
	c.stats.capsulesIn.Add(1)
	c.stats.payloadIn.Add(uint64(len(data)))
	c.stats.copied.Add(uint64(len(data)))
	return k, nil
}

// ParseCapsule takes a command capsule apart. What it returns lies in b.
func ParseCapsule(b []byte) (sqe *nvme.SQE, data []byte, err error) {
	if len(b) < nvme.SQELen {
		return nil, nil, fmt.Errorf("nvmerdma: a capsule of %d bytes; a command alone has %d", len(b), nvme.SQELen)
	}
	return (*nvme.SQE)(b), b[nvme.SQELen:], nil
}

// sendHandler is the handler of the send completion queue: what was sent or read is
// complete.
func (c *Controller) sendHandler(cq *rdma.CQ) { c.reapSends(cq, c.sendWC[:]) }

func (c *Controller) reapSends(cq *rdma.CQ, wcs []rdma.WC) {
	for {
		n := cq.Poll(wcs)
		if n == 0 {
			return
		}
		c.mu.Lock()
		for i := range wcs[:n] {
			c.pump.Reap(&wcs[i])
		}
		c.mu.Unlock()
		c.Push()
	}
}

// remote is the host's memory of a command, from offset off on.
func (k *command) remote(off uint32) rdma.RemoteAddr {
	d := k.SQE.SGL()
	return rdma.RemoteAddr{STag: d.Key(), TO: d.Address() + uint64(off)}
}

// within reports whether [off, off+n) lies in the host's memory of a command, and is not
// empty.
func (k *command) within(off uint32, n int) bool {
	d := k.SQE.SGL()
	size := uint64(d.Length())
	return d.Keyed() && n > 0 && uint64(off) <= size && uint64(n) <= size-uint64(off)
}
