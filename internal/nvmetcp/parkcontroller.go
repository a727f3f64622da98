package nvmetcp

import (
	"errors"
	"fmt"
	"net"

	"softiser/internal/handover"
	"softiser/internal/nvme"
	"softiser/internal/pdustream"
)

// nudge makes the receive goroutine look whether it is to stop though nothing comes.
func (c *Controller) nudge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopsLocked() {
		c.sk.SetReadDeadline(passed)
	}
}

// keeps reports whether a command that has come is kept for later. Those that were kept
// begin ahead of it.
func (c *Controller) keeps(k *command) bool {
	p := c.park.Load()
	if p == nil {
		c.resumed()
		return false
	}
	if len(c.kept) == 0 && !p.may() {
		return false
	}
	c.kept = append(c.kept, k)
	return true
}

// resumed implements role: it begins the commands that were kept.
func (c *Controller) resumed() {
	for i, k := range c.kept {
		c.kept[i] = nil
		c.up.Command(&k.Command)
	}
	c.kept = c.kept[:0]
}

// owedLocked implements role.
func (c *Controller) owedLocked() bool { return !c.gets.idle() }

// settledLocked implements role.
func (c *Controller) settledLocked() bool { return c.done == nil }

// Carried is what a parked connection of a controller knows.
type Carried struct {
	Digests    Digests `json:"digests"`
	Align      int     `json:"align"` // of the data that is sent, bytes
	MaxH2CData uint32  `json:"max_h2c_data"`
	InCapsule  uint32  `json:"in_capsule"`
	Entries    int     `json:"entries"`          // see Controller.SetEntries
	Kept       []Kept  `json:"kept,omitempty"`   // commands that have not begun
	Unread     []byte  `json:"unread,omitempty"` // from the socket, of PDUs that nobody has seen
}

// Kept is a command that has come and has not begun.
type Kept struct {
	SQE     []byte `json:"sqe"`
	Data    []byte `json:"data,omitempty"`
	Corrupt bool   `json:"corrupt,omitempty"`
	NoRoom  bool   `json:"no_room,omitempty"`
}

// Carry returns what goes to another process, and a descriptor of the connection, which is
// the caller's. Preconditions: Still.
func (c *Controller) Carry() (k Carried, fd int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.parkedLocked() {
		return k, -1, errors.New("nvmetcp: the connection is not parked")
	}
	k = Carried{
		Digests: c.digests, Align: c.align, MaxH2CData: c.cfg.MaxH2CData, InCapsule: c.cfg.InCapsule,
		Entries: len(c.slots.all) / 2, Unread: append([]byte(nil), c.rx.Unread()...),
	}
	for _, x := range c.kept {
		k.Kept = append(k.Kept, Kept{SQE: append([]byte(nil), x.SQE[:]...), Data: append([]byte(nil), x.Data...), Corrupt: x.Corrupt, NoRoom: x.NoRoom})
	}
	if fd, err = handover.DupTCP(c.Net()); err != nil {
		return k, -1, fmt.Errorf("nvmetcp: %w", err)
	}
	return k, fd, nil
}

const (
	maxEntries   = 1 << 16
	maxPDUData   = 1 << 30
	maxInCapsule = 1 << 20
)

// Check says what is wrong with what has come from another process.
func (k *Carried) Check() error {
	switch {
	case k.Digests&^(DigestHeader|DigestData) != 0:
		return fmt.Errorf("nvmetcp: digests %#x", uint8(k.Digests))
	case k.Align < 4 || k.Align > 128 || k.Align%4 != 0:
		return fmt.Errorf("nvmetcp: data is aligned to %d bytes", k.Align)
	case k.MaxH2CData < 4096 || k.MaxH2CData > maxPDUData || k.MaxH2CData%4096 != 0:
		return fmt.Errorf("nvmetcp: MAXH2CDATA is %d", k.MaxH2CData)
	case k.InCapsule < minInCapsule || k.InCapsule > maxInCapsule:
		return fmt.Errorf("nvmetcp: %d bytes of data in a capsule; want %d to %d", k.InCapsule, minInCapsule, maxInCapsule)
	case k.Entries < 1 || k.Entries > maxEntries:
		return fmt.Errorf("nvmetcp: a queue of %d entries; want 1 to %d", k.Entries, maxEntries)
	case len(k.Kept) > 2*k.Entries:
		return fmt.Errorf("nvmetcp: %d commands in a queue of %d entries", len(k.Kept), k.Entries)
	case len(k.Unread) > pdustream.DeepReadAhead:
		return fmt.Errorf("nvmetcp: %d bytes that nobody has seen; %d is the limit", len(k.Unread), pdustream.DeepReadAhead)
	}
	for i := range k.Kept {
		if n := len(k.Kept[i].SQE); n != nvme.SQELen {
			return fmt.Errorf("nvmetcp: a command of %d bytes; want %d", n, nvme.SQELen)
		}
		if n := len(k.Kept[i].Data); n > int(k.InCapsule) {
			return fmt.Errorf("nvmetcp: a command with %d bytes of data in a capsule of %d", n, k.InCapsule)
		}
	}
	return nil
}

// Restore makes a controller's connection of one that another process has carried. nc
// belongs to it from now on, unless there is an error.
func Restore(nc net.Conn, cfg Config, k *Carried) (*Controller, error) {
	if err := k.Check(); err != nil {
		return nil, err
	}
	cfg.MaxH2CData, cfg.InCapsule = k.MaxH2CData, k.InCapsule
	cfg.fill()
	c := &Controller{cfg: cfg}
	if err := c.init(c, nc, cfg.Socket, cfg.Linger, CHLen, pdustream.ReadAhead); err != nil {
		return nil, err
	}
	c.digests, c.align = k.Digests, k.Align
	c.toLocked(stateReady)
	c.slots.init(c, k.Entries, cfg.Memory)
	for i := range k.Kept {
		q := &k.Kept[i]
		x := c.slots.take(len(q.Data))
		x.SQE = nvme.SQE(q.SQE)
		x.Corrupt, x.NoRoom = q.Corrupt, x.NoRoom || q.NoRoom
		copy(x.Data, q.Data)
		c.kept = append(c.kept, x)
	}
	if err := c.rx.Preload(k.Unread); err != nil {
		return nil, err
	}
	c.sk.SetReadDeadline(passed) // for again, which begins what was kept
	return c, nil
}

// Outstanding returns a command of a restored connection that the other process has begun
// and not answered, and that has no data; nil: there are as many as the queue has entries.
// Preconditions: Start has not been called.
func (c *Controller) Outstanding(e *nvme.SQE) *nvme.Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.slots.take(0)
	if k == nil {
		return nil
	}
	k.SQE = *e
	return &k.Command
}
