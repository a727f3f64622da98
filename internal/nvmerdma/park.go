package nvmerdma

import (
	"errors"
	"fmt"
	"net"

	"softiser/internal/handover"
	"softiser/internal/nvme"
	"softiser/rdma"
)

// A connection over iWARP goes from one process to the next while it is parked: its queue pair
// has stopped reading between two capsules, it has said what was queued, and is silent. While
// data of a command is fetched a controller's queue pair reads on, and the commands that come
// meanwhile are kept.
//
//	Park ──▶ begins no more commands ──▶ stands ──▶ Still: nothing is queued ──▶ Carry ─▶ Restore
//	             ▲        ▲── GetData of a command ──┘      nothing is posted any more
//	             └─ Unpark: commands that were kept begin

// parking is the wish that a connection is parked. Guarded by conn.mu.
type parking struct {
	may  func() bool // asked by the receive goroutine, without locks
	mute bool        // nothing is posted any more
}

// silent reports whether nothing may be sent.
func (p *parking) silent() bool { return p != nil && p.mute }

// Park makes the receive goroutine begin no more commands, and stop in front of a capsule, as
// soon as no data is due and may, which it calls, reports true; Nudge makes it ask again though
// nothing comes. A host's may holds it while a command is outstanding whose answer is near. It
// reports false for a connection that is not ready, parked, or not over iWARP.
func (c *conn) Park(may func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != stateReady || c.cause != nil || c.park != nil || !c.qp.Park(may, func() {}, c.role.resumed) {
		return false
	}
	c.park = &parking{may: may}
	return true
}

// Nudge makes the receive goroutine ask whether it may stop.
func (c *conn) Nudge() { c.qp.Nudge() }

// Stands reports whether no command begins, as long as those that have begun ask for no data.
func (c *conn) Stands() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qp.Nudge()
	return c.stillLocked()
}

func (c *conn) stillLocked() bool {
	return c.park != nil && c.st == stateReady && c.cause == nil && c.pump.Resting() && c.role.settledLocked() && c.qp.Still()
}

// Still reports whether the connection stands and has sent what was queued. From then on it
// is silent: what is queued waits for Unpark.
func (c *conn) Still() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stillLocked() {
		return false
	}
	c.park.mute = true
	return true
}

// parkedLocked reports whether the connection can be carried.
func (c *conn) parkedLocked() bool { return c.park.silent() && c.stillLocked() }

// Unpark makes the connection go on.
func (c *conn) Unpark() {
	c.mu.Lock()
	parked := c.park != nil
	c.park = nil
	c.mu.Unlock()
	if parked {
		c.qp.Unpark()
		c.role.push(nil, nil)
	}
}

// settledLocked implements role.
func (c *Controller) settledLocked() bool { return c.due.head == nil && c.upcalling == 0 }

// keeps reports whether a command that has come is kept for later. Those that were kept begin
// ahead of it. It is called by the receive goroutine.
func (c *Controller) keeps(k *command) bool {
	c.mu.Lock()
	p, none := c.park, len(c.kept) == 0
	c.mu.Unlock()
	switch {
	case p == nil && none:
		return false
	case p == nil:
		c.beginKept()
		return false
	case none && !p.may():
		return false
	}
	c.mu.Lock()
	c.kept = append(c.kept, k)
	c.mu.Unlock()
	return true
}

// resumed implements role.
func (c *Controller) resumed() {
	c.mu.Lock()
	parked := c.park != nil
	c.mu.Unlock()
	if !parked { // again
		c.beginKept()
		c.Push()
	}
}

// beginKept begins the commands that were kept, in their order.
func (c *Controller) beginKept() {
	c.mu.Lock()
	kept := c.kept
	c.kept = nil
	c.mu.Unlock()
	for _, k := range kept {
		c.up.Command(&k.Command)
	}
}

// dropKeptLocked gives up what was kept, at the end of the connection.
func (c *Controller) dropKeptLocked() {
	for _, k := range c.kept {
		c.slots.put(k)
	}
	c.kept = nil
}

// Carried is what a parked connection of a controller knows.
type Carried struct {
	QP      rdma.Carried `json:"queue_pair"`
	Entries int          `json:"entries"`        // see Controller.SetEntries
	Kept    []Kept       `json:"kept,omitempty"` // commands that have not begun
}

// Kept is a command that has come and has not begun.
type Kept struct {
	SQE    []byte `json:"sqe"`
	Data   []byte `json:"data,omitempty"`
	NoRoom bool   `json:"no_room,omitempty"`
}

// Carry returns what goes to another process, and a descriptor of the connection, which is
// the caller's. Preconditions: Still.
func (c *Controller) Carry() (k Carried, fd int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.parkedLocked() {
		return k, -1, errors.New("nvmerdma: the connection is not parked")
	}
	k.Entries = c.entries
	for _, x := range c.kept {
		k.Kept = append(k.Kept, Kept{SQE: append([]byte(nil), x.SQE[:]...), Data: append([]byte(nil), x.Data...), NoRoom: x.NoRoom})
	}
	var nc net.Conn
	if k.QP, nc, err = c.qp.Carry(); err != nil {
		return k, -1, fmt.Errorf("nvmerdma: %w", err)
	}
	if fd, err = handover.DupTCP(nc); err != nil {
		return k, -1, fmt.Errorf("nvmerdma: %w", err)
	}
	return k, fd, nil
}

const maxEntries = 1 << 16

// Check says what is wrong with what has come from another process.
func (k *Carried) Check() error {
	switch {
	case k.QP.Initiator:
		return errors.New("nvmerdma: that is no connection of a controller")
	case k.Entries < 1 || k.Entries > maxEntries:
		return fmt.Errorf("nvmerdma: a queue of %d entries; want 1 to %d", k.Entries, maxEntries)
	case len(k.Kept) > k.Entries:
		return fmt.Errorf("nvmerdma: %d commands in a queue of %d entries", len(k.Kept), k.Entries)
	}
	for i := range k.Kept {
		if n := len(k.Kept[i].SQE); n != nvme.SQELen {
			return fmt.Errorf("nvmerdma: a command of %d bytes; want %d", n, nvme.SQELen)
		}
		if n := len(k.Kept[i].Data); n > InCapsule {
			return fmt.Errorf("nvmerdma: a command with %d bytes of data in a capsule of %d", n, InCapsule)
		}
	}
	if err := k.QP.Check(); err != nil {
		return fmt.Errorf("nvmerdma: %w", err)
	}
	return nil
}

// Restore makes a controller's connection of one that another process has carried. nc
// belongs to it from now on, unless there is an error. What has arrived before Start waits.
func (d *Device) Restore(nc net.Conn, p rdma.ConnParams, k *Carried) (*Controller, error) {
	if err := k.Check(); err != nil {
		return nil, err
	}
	c, err := d.newController()
	if err != nil {
		return nil, err
	}
	c.entries = k.Entries
	for i := range k.Kept {
		q := &k.Kept[i]
		x := c.Outstanding((*nvme.SQE)(q.SQE))
		c.slots.all[x.Slot].Data, x.NoRoom = append([]byte(nil), q.Data...), q.NoRoom
		c.kept = append(c.kept, c.slots.all[x.Slot])
	}
	if err := c.qp.Adopt(nc, &k.QP, &p); err != nil {
		c.discard()
		return nil, fmt.Errorf("nvmerdma: %w", err)
	}
	c.connected()
	return c, nil
}

// Outstanding returns a command of a restored connection that the other process has taken
// and not answered; nil: there are as many as the queue has entries. Preconditions: Start has
// not been called.
func (c *Controller) Outstanding(e *nvme.SQE) *nvme.Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open >= c.entries {
		return nil
	}
	c.open++
	k := c.slots.take()
	k.SQE = *e
	return &k.Command
}
