package nvmetcp

import (
	"errors"
	"fmt"
	"net"
	"time"

	"softiser/internal/handover"
	"softiser/internal/nvme"
	"softiser/internal/pdustream"
	"softiser/internal/sockio"
)

// A connection goes from one process to the next while it is parked: it has stopped reading
// in front of a PDU, has said what was queued, and is silent. While data is still to come that
// a controller has asked for it reads on, and keeps the commands between.
//
//	Park ──▶ reads on until no data is due ──▶ stands ──▶ Still: the queue is empty ──▶ Carry ─▶ Restore
//	             ▲      ▲── GetData of a command ─┘             nothing is sent any more
//	             └─ Unpark: commands that were kept begin

// parking is the wish that a connection is parked. Its fields are guarded by conn.mu.
type parking struct {
	may    func() bool // asked by the receive goroutine; never changed
	stands bool        // the receive goroutine waits
	mute   bool        // nothing is sent any more
}

// silent reports whether nothing may be sent.
func (p *parking) silent() bool { return p != nil && p.mute }

// errParked ends a run of the receiver in front of a PDU.
var errParked = errors.New("nvmetcp: the connection is to be parked")

// passed is a deadline that ends waiting at once.
var passed = time.Unix(1, 0)

// Park makes the receive goroutine begin no more commands, and stop in front of a PDU, as soon
// as no data is due and may, which it calls, reports true; Nudge makes it ask again though
// nothing comes. A host's may holds it while a command is outstanding whose answer is near. It
// reports false for a connection that is not ready, or parked.
func (c *conn) Park(may func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != stateReady || c.park.Load() != nil {
		return false
	}
	c.park.Store(&parking{may: may})
	c.sk.SetReadDeadline(passed)
	return true
}

// Nudge makes the receive goroutine ask whether it may stop.
func (c *conn) Nudge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.park.Load(); p != nil && !p.stands && c.st == stateReady {
		c.sk.SetReadDeadline(passed)
	}
}

// Stands reports whether no command begins, as long as those that have begun ask for no data.
func (c *conn) Stands() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.park.Load()
	return p != nil && p.stands && c.st == stateReady
}

// Still reports whether the connection stands and has sent what was queued. From then on it
// is silent: what is queued waits for Unpark.
func (c *conn) Still() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.park.Load()
	if p == nil || !p.stands || !c.quietLocked() {
		return false
	}
	p.mute = true
	return true
}

func (c *conn) quietLocked() bool {
	return c.st == stateReady && c.tx.Empty() && !c.tx.Busy() && !c.tx.Sending() && c.role.settledLocked()
}

// parkedLocked reports whether the connection can be carried.
func (c *conn) parkedLocked() bool {
	p := c.park.Load()
	return p.silent() && p.stands && c.quietLocked()
}

// Unpark makes the connection go on.
func (c *conn) Unpark() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.park.Swap(nil) == nil {
		return
	}
	if c.st == stateReady {
		c.sk.SetReadDeadline(passed) // for again
	}
	c.cond.Broadcast()
	c.tx.handOver()
}

// stops reports whether the receive goroutine is to stop in front of a PDU.
func (c *conn) stops() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopsLocked()
}

func (c *conn) stopsLocked() bool {
	p := c.park.Load()
	return p != nil && c.st == stateReady && !c.role.owedLocked() && p.may()
}

// again reports whether the receiver is to go on that has ended with err. When that was for
// Park it waits first, as long as the connection is parked, and no data is due.
func (c *conn) again(err error) bool {
	c.mu.Lock()
	if err != errParked && !sockio.IsTimeout(err) || c.st == stateDead || c.finSent {
		c.mu.Unlock()
		return false
	}
	c.sk.SetReadDeadline(time.Time{}) // before it is looked at: another nudge counts
	c.mu.Unlock()
	c.tx.Turn(pdustream.RxBytes)
	c.mu.Lock()
	if c.rx.Unread() != nil {
		c.rx.Rewind()
		for c.stopsLocked() {
			p := c.park.Load()
			p.stands = true
			c.cond.Wait()
			p.stands = false
		}
	}
	parked := c.park.Load() != nil
	c.mu.Unlock()
	if !parked {
		c.role.resumed()
		c.tx.Turn(pdustream.RxBytes)
	}
	c.rx.Rewind()
	return true
}

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
