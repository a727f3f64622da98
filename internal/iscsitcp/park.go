package iscsitcp

import (
	"errors"
	"fmt"
	"net"
	"time"

	"softiser/internal/handover"
	"softiser/internal/iscsi"
	"softiser/internal/pdustream"
	"softiser/internal/sockio"
)

// A connection goes from one process to the next while it is parked: it has
// stopped reading in front of a PDU, has said what was queued, and is silent.
//
//	Park ──▶ reads on until may says so ──▶ stands ──▶ Still: the queue is empty ──▶ Carry ─▶ Restore
//	             ▲                            │            nothing is sent any more
//	             └────────── Unpark ──────────┘

// parking is the wish that a connection is parked. Guarded by Conn.mu.
type parking struct {
	may     func() bool // asked in front of a PDU
	changed func()      // there is reason to ask Still again
	stands  bool        // the receive goroutine waits
	mute    bool        // nothing is sent any more
}

// silent reports whether nothing may be sent.
func (p *parking) silent() bool { return p != nil && p.mute }

func (p *parking) tell() {
	if p != nil {
		p.changed()
	}
}

// errParked ends a run of the receiver in front of a PDU.
var errParked = errors.New("iscsitcp: the connection is to be parked")

// passed is a deadline that ends waiting at once.
var passed = time.Unix(1, 0)

// Park makes the receive goroutine stop in front of the next PDU for which may, which it
// calls without locks held, reports true; Nudge makes it ask again though nothing comes.
// changed is called, with locks held, when Still may have become true. Only a connection in
// the full feature phase that keeps nothing for recovery can be parked; for others Park
// reports false. An initiator's may holds it while a command is outstanding.
func (c *Conn) Park(may func() bool, changed func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != iscsi.ConnFull || c.rec != nil || c.upgradingLocked() || c.park != nil {
		return false
	}
	c.park = &parking{may: may, changed: changed}
	c.sk.SetReadDeadline(passed)
	return true
}

// Nudge makes the receive goroutine ask whether it may stop.
func (c *Conn) Nudge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.park != nil && !c.park.stands && c.st == iscsi.ConnFull {
		c.sk.SetReadDeadline(passed)
	}
}

// Still reports whether the connection stands and has sent what was queued. From then on
// it is silent: what is queued waits for Unpark.
func (c *Conn) Still() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.park
	if p == nil || !p.stands || c.st != iscsi.ConnFull || !c.tx.Empty() || c.tx.Sending() || c.tx.doneHead != nil {
		return false
	}
	p.mute = true
	return true
}

// Unpark makes the connection go on.
func (c *Conn) Unpark() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.park == nil {
		return
	}
	c.park = nil
	if c.st == iscsi.ConnFull {
		c.sk.SetReadDeadline(time.Time{})
	}
	c.cond.Broadcast()
	c.tx.handOver()
}

// mayPark asks whether to stop in front of a PDU.
func (c *Conn) mayPark() bool {
	c.mu.Lock()
	p := c.park
	c.mu.Unlock()
	return p != nil && p.may()
}

// stands is called when Run has ended with err. If that was for Park it waits as long as the
// connection is parked, or is to read on, and reports true: Run is to go on.
func (r *receiver) stands(err error) bool {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != errParked && !sockio.IsTimeout(err) || c.st == iscsi.ConnDead || c.fin.Begun() {
		return false
	}
	c.sk.SetReadDeadline(time.Time{}) // first, so that a Nudge from now on is not lost
	c.mu.Unlock()
	r.Batch()
	may := r.Unread() != nil && c.mayPark()
	c.mu.Lock()
	if p := c.park; may && p != nil {
		r.Rewind()
		p.stands = true
		p.tell()
		for c.park == p && c.st != iscsi.ConnDead {
			c.cond.Wait()
		}
	}
	r.Rewind()
	return true
}

// Carried is what a parked connection knows, beside what has been negotiated.
type Carried struct {
	Unread []byte   `json:"unread,omitempty"` // from the socket, of PDUs that nobody has seen
	Tags   []uint32 `json:"tags,omitempty"`   // see getTable.carry
}

// Carry returns what goes to another process, and a descriptor of the connection, which is
// the caller's. Preconditions: Still.
func (c *Conn) Carry() (k Carried, fd int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.park.silent() || c.st != iscsi.ConnFull {
		return k, -1, errors.New("iscsitcp: the connection is not parked")
	}
	k = Carried{Unread: append([]byte(nil), c.rx.Unread()...), Tags: c.gets.carry()}
	if fd, err = handover.DupTCP(c.Net()); err != nil {
		return k, -1, fmt.Errorf("iscsitcp: %w", err)
	}
	return k, fd, nil
}

// Check says what is wrong with what has come from another process.
func (k *Carried) Check() error {
	if len(k.Unread) > pdustream.DeepReadAhead {
		return fmt.Errorf("iscsitcp: %d bytes that nobody has seen; %d is the limit", len(k.Unread), pdustream.DeepReadAhead)
	}
	return new(getTable).restore(k.Tags)
}

// Restore makes a connection of a target of one that another process has carried, in the
// full feature phase with p. nc belongs to it from now on, unless there is an error.
func Restore(nc net.Conn, cfg Config, p *iscsi.Params, k *Carried) (*Conn, error) {
	return restore(nc, iscsi.RoleTarget, cfg, p, k)
}

// RestoreInitiator is Restore for the connection of an initiator.
func RestoreInitiator(nc net.Conn, cfg Config, p *iscsi.Params, k *Carried) (*Conn, error) {
	if len(k.Tags) > 0 {
		return nil, errors.New("iscsitcp: an initiator has no target transfer tags")
	}
	return restore(nc, iscsi.RoleInitiator, cfg, p, k)
}

func restore(nc net.Conn, role iscsi.Role, cfg Config, p *iscsi.Params, k *Carried) (*Conn, error) {
	if err := k.Check(); err != nil {
		return nil, err
	}
	c, err := New(nc, role, cfg)
	if err != nil {
		return nil, err
	}
	c.NoticeKeyValues(p)
	if err := errors.Join(c.Enable(), c.gets.restore(k.Tags), c.rx.Preload(k.Unread)); err != nil {
		return nil, err
	}
	return c, nil
}

// A tag that has been used has a generation, which is carried with a bit that says whether
// all of them have been: data for tags that were given up may still come.
const allGens = 1 << 16

func (t *getTable) carry() (tags []uint32) {
	for _, r := range t.r2ts {
		n := uint32(r.gen)
		if r.again {
			n |= allGens
		}
		tags = append(tags, n)
	}
	return tags
}

func (t *getTable) restore(tags []uint32) error {
	if len(tags) > 1<<16 {
		return fmt.Errorf("iscsitcp: %d target transfer tags; %d is the limit", len(tags), 1<<16)
	}
	for i, n := range tags {
		if n&^allGens > maxGen || n > allGens|maxGen {
			return fmt.Errorf("iscsitcp: target transfer tag %d has the generation %#x", i, n)
		}
		t.r2ts = append(t.r2ts, &r2t{index: i, gen: uint16(n &^ allGens), again: n&allGens != 0})
		t.freeR2Ts = append(t.freeR2Ts, i)
	}
	return nil
}
