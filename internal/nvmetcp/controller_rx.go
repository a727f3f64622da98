package nvmetcp

import (
	"fmt"

	"softiser/internal/pdustream"
	"softiser/internal/segs"
)

// limits implements role.
func (c *Controller) limits(t Type) Limits {
	l := Limits{FromHost: true, Digests: c.digests, MaxData: c.cfg.MaxH2CData}
	if t == TypeCapsuleCmd {
		l.MaxData = c.cfg.InCapsule
	}
	return l
}

// aheadLocked implements role: while data for transfers is expected only the next
// header is read ahead, so that what follows it need not be copied.
func (c *Controller) aheadLocked() int {
	if c.gets.live == 0 {
		return pdustream.Everything
	}
	return c.nextHeader()
}

func (c *Controller) batchEnd() {
	if c.park.Load() != nil {
		c.nudge()
	}
}

// icReq agrees to what the host wants of the connection.
func (c *Controller) icReq(b []byte) *Fault {
	q, f := ParseICReq(b)
	if f != nil {
		return f
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.tx.alloc()
	p.Head = (&ICResp{Digests: q.Digests, MaxH2CData: c.cfg.MaxH2CData}).AppendTo(p.Head)
	c.tx.push(p)
	c.digests, c.align = q.Digests, (int(q.HPDA)+1)*4
	c.toLocked(stateReady)
	return nil
}

// dispatch implements role.
func (c *Controller) dispatch(t Type) *Fault {
	c.cmd, c.get = nil, nil
	if t == TypeCapsuleCmd {
		return c.capsule()
	}
	return c.h2cData()
}

// capsule takes a slot for a command.
func (c *Controller) capsule() *Fault {
	r := &c.rx
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.slots.take(r.Left())
	if k == nil {
		return &Fault{FESSequence, 0, fmt.Errorf("nvmetcp: more than %d commands are outstanding", len(c.slots.all)/2)}
	}
	k.SQE = *(*CapsuleCmd)(r.header[:]).SQE()
	c.cmd = k
	if r.Left() > 0 && !k.NoRoom {
		c.one[0] = k.Data
		r.Aim(segs.Of(c.one[:], 0, r.Left()), k)
	}
	return nil
}

// h2cData finds the memory that a transfer's data goes to.
func (c *Controller) h2cData() *Fault {
	r := &c.rx
	d := (*Data)(r.header[:])
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.gets.find(d.TTAG())
	off, n := d.Offset(), d.Length()
	switch {
	case g == nil:
		return &Fault{FESInvalidHeader, AtTTAG, fmt.Errorf("nvmetcp: H2CData with tag %d, which no R2T has", d.TTAG())}
	case !g.stale && d.CCCID() != g.cmd.SQE.CID():
		return &Fault{FESInvalidHeader, AtCCCID, fmt.Errorf("nvmetcp: H2CData of command %d with the tag of command %d", d.CCCID(), g.cmd.SQE.CID())}
	case n != uint32(r.Left()) || n == 0:
		return &Fault{FESInvalidHeader, AtLength, fmt.Errorf("nvmetcp: H2CData of %d bytes with %d", n, r.Left())}
	case off != g.off+g.got:
		return &Fault{FESOutOfRange, 0, fmt.Errorf("nvmetcp: H2CData at offset %d, expected %d", off, g.off+g.got)}
	case n > g.n-g.got:
		return &Fault{FESOutOfRange, 0, fmt.Errorf("nvmetcp: H2CData of %d bytes, %d are left of what was asked for", n, g.n-g.got)}
	case d.CH().Flags()&FlagLast != 0 && n != g.n-g.got:
		return &Fault{FESInvalidHeader, atFlags, fmt.Errorf("nvmetcp: the last H2CData leaves %d bytes out", g.n-g.got-n)}
	}
	c.get = g
	if !g.stale && !g.fault {
		r.Aim(g.view(g.got, n), g)
	}
	if !g.stale {
		c.stats.payloadIn.Add(uint64(n))
	}
	return nil
}

// claim implements role, of the memory of a transfer.
func (c *Controller) claim() bool {
	if c.get == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.get.stale {
		return false
	}
	c.placing = c.get
	return true
}

// release implements role.
func (c *Controller) release() {
	if c.get == nil {
		return
	}
	c.mu.Lock()
	c.placing = nil
	c.cond.Broadcast()
	c.mu.Unlock()
}

// faulted implements role.
func (c *Controller) faulted() {
	if c.get == nil {
		return
	}
	c.mu.Lock()
	c.get.fault = true
	c.mu.Unlock()
}

// finish implements role.
func (c *Controller) finish(good bool) {
	if k := c.cmd; k != nil {
		c.cmd, c.one[0] = nil, nil
		k.Corrupt = !good
		if c.keeps(k) {
			return
		}
		c.up.Command(&k.Command)
		return
	}
	if c.get != nil {
		c.placed(good)
	}
}
