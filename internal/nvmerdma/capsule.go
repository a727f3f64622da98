package nvmerdma

import (
	"fmt"

	"softiser/internal/nvme"
	"softiser/rdma"
)

func (c *Controller) batchEnd() {}

// received implements role: a message is a capsule.
func (c *Controller) received(wc *rdma.WC) {
	b := c.link.Received(wc)
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
	case len(k.Data) == 0:
	case c.link.Keep(b):
		k.Data, k.NoRoom = nil, true
	default:
		k.recv = b
		b = nil
	}
	parked := c.park != nil || len(c.kept) > 0
	c.mu.Unlock()
	if b != nil {
		b.Free()
	}
	if k != nil && !(parked && c.keeps(k)) {
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
