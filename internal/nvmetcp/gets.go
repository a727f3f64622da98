package nvmetcp

import (
	"fmt"

	"softiser/internal/nvme"
	"softiser/internal/segs"
)

// get is a GetData under way: an R2T, and the H2CData that answer it.
type get struct {
	next  *get
	cmd   *command
	tag   uint16
	off   uint32 // in the command's data
	n     uint32
	got   uint32
	segs  [][]byte
	fault bool // the memory cannot be written; the rest is dropped
	bad   bool // a data digest was wrong
	stale bool // cancelled: what comes is dropped, and counted so that the tag can be used again
}

func (g *get) view(off, n uint32) segs.View { return segs.Of(g.segs, int(off), int(n)) }

// maxStale bounds the tags that a host can keep taken by having its commands
// aborted and never sending what they were asked for.
const maxStale = 1024

// getTable finds transfers by their tags. Guarded by Controller.mu.
type getTable struct {
	byTag []*get // index: the tag
	live  int    // neither nil nor stale
	stale int
	free  *get
}

func (t *getTable) add(cmd *command, off, n uint32, list [][]byte) *get {
	g := t.free
	if g == nil {
		g = &get{}
	} else {
		t.free = g.next
	}
	*g = get{cmd: cmd, off: off, n: n, segs: list}
	t.live++
	for i, x := range t.byTag {
		if x == nil {
			g.tag = uint16(i)
			t.byTag[i] = g
			return g
		}
	}
	g.tag = uint16(len(t.byTag))
	t.byTag = append(t.byTag, g)
	return g
}

// idle reports whether nothing is to come.
func (t *getTable) idle() bool { return t.live == 0 && t.stale == 0 }

func (t *getTable) find(tag uint16) *get {
	if int(tag) < len(t.byTag) {
		return t.byTag[tag]
	}
	return nil
}

// of returns the transfer of a command; nil: there is none.
func (t *getTable) of(use uint64) *get {
	for _, g := range t.byTag {
		if g != nil && !g.stale && g.cmd.Use == use {
			return g
		}
	}
	return nil
}

// stop lets go of the transfer's memory. Its tag stays taken until the host has
// sent what it was asked for.
func (t *getTable) stop(g *get) {
	g.segs, g.cmd, g.stale = nil, nil, true
	t.live--
	t.stale++
}

// remove ends a transfer of which everything has come.
func (t *getTable) remove(g *get) {
	if g.stale {
		t.stale--
	} else {
		t.live--
	}
	t.byTag[g.tag] = nil
	g.segs, g.cmd = nil, nil
	g.next, t.free = t.free, g
}

// purge empties the table and returns the transfers that somebody waits for.
func (t *getTable) purge() (live []*get) {
	for _, g := range t.byTag {
		if g != nil && !g.stale {
			live = append(live, g)
		}
	}
	t.byTag, t.free, t.live, t.stale = nil, nil, 0, 0
	return live
}

// GetData implements nvme.QueueTransport: one R2T for the whole of it.
func (c *Controller) GetData(k *nvme.Command, off uint32, list [][]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != stateReady {
		return c.endError()
	}
	n := uint32(segs.Total(list))
	g := c.gets.add(c.slots.all[k.Slot], off, n, list)
	if c.park.Load() != nil {
		c.cond.Broadcast() // the receive goroutine has to read on
	}
	p := c.tx.alloc()
	p.Head = p.Head[:DataLen]
	(*Data)(p.Head).Set(TypeR2T, 0, c.digests, k.SQE.CID(), g.tag, off, n, 0)
	c.tx.push(p)
	return nil
}

// Cancel implements nvme.QueueTransport.
func (c *Controller) Cancel(use uint64) {
	c.mu.Lock()
	g := c.gets.of(use)
	for g != nil && c.placing == g {
		c.cond.Wait()
		g = c.gets.of(use)
	}
	var k *command
	if g != nil {
		k = g.cmd
		if c.gets.stop(g); c.gets.stale > maxStale {
			c.failLocked(fmt.Errorf("nvmetcp: %d cancelled transfers are still to be sent by the host", c.gets.stale))
		}
		c.cancelling++
	}
	c.mu.Unlock()
	if k == nil {
		return
	}
	c.up.DataArrived(&k.Command, nvme.ErrCancelled)
	c.mu.Lock()
	c.cancelling--
	c.cond.Broadcast()
	c.mu.Unlock()
}

// placed ends an H2CData whose data is where it belongs.
func (c *Controller) placed(good bool) {
	g := c.get
	c.get = nil
	c.mu.Lock()
	g.got += c.rx.layout.Data
	g.bad = g.bad || !good
	if g.got < g.n {
		c.mu.Unlock()
		return
	}
	cmd, stale := g.cmd, g.stale
	var err error
	switch {
	case g.bad:
		err = nvme.ErrDataDigest
	case g.fault:
		err = nvme.ErrMemoryFault
	}
	c.gets.remove(g)
	c.mu.Unlock()
	if !stale {
		c.up.DataArrived(&cmd.Command, err)
	}
}
