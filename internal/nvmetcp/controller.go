package nvmetcp

import (
	"net"
	"time"

	"softiser/internal/nvme"
	"softiser/internal/pdustream"
	"softiser/internal/sockio"
)

// Config of a controller's connections. The zero value is good.
type Config struct {
	Socket sockio.Options
	// MaxH2CData is the most data that a host may send in one PDU, bytes; a
	// multiple of 4096. Default 4 MiB, as Linux's target.
	MaxH2CData uint32
	// InCapsule is the most in-capsule data that a command may have, bytes. Every
	// Fabrics and admin command may have 8192, so it is no less. Default 16 KiB.
	InCapsule uint32
	// Memory bounds the in-capsule data of all connections; nil: nothing does.
	Memory nvme.Memory
	// Linger is how long a connection that ends waits for the peer to close its
	// side, so that it reads why. Default two seconds.
	Linger time.Duration
}

const (
	defaultMaxH2CData = 4 << 20
	defaultInCapsule  = 16 << 10
	minInCapsule      = 8 << 10
	defaultLinger     = 2 * time.Second
)

func (c *Config) fill() {
	if c.MaxH2CData == 0 {
		c.MaxH2CData = defaultMaxH2CData
	}
	if c.InCapsule == 0 {
		c.InCapsule = defaultInCapsule
	}
	c.InCapsule = max(c.InCapsule, minInCapsule)
	if c.Linger == 0 {
		c.Linger = defaultLinger
	}
}

// Controller is the controller's side of one queue's connection; it implements
// nvme.QueueTransport.
type Controller struct {
	conn
	cfg Config
	up  nvme.QueueUpper

	// Guarded by mu.
	slots   slots
	gets    getTable
	placing *get // whose memory the receive goroutine fills now
	// cancelling counts who is about to tell, or telling, of a cancelled transfer: Ended
	// comes behind that.
	cancelling int
	done       *command // whose responses have gone

	// Owned by the receive goroutine: what the data of the PDU under way belongs to.
	cmd *command
	get *get
	one [1][]byte // the buffer of cmd

	kept []*command // while it is parked: they have not begun
}

// NewController makes the controller's side of an established TCP connection, which
// belongs to it from now on.
func NewController(nc net.Conn, cfg Config) (*Controller, error) {
	cfg.fill()
	c := &Controller{cfg: cfg}
	if err := c.init(c, nc, cfg.Socket, cfg.Linger, ICLen, pdustream.ReadAhead); err != nil {
		return nil, err
	}
	c.first, c.rx.setup = c.icReq, true
	c.slots.init(c, 1, cfg.Memory)
	return c, nil
}

// Start implements nvme.QueueTransport.
func (c *Controller) Start(u nvme.QueueUpper) {
	c.up = u
	c.begin()
}

// SetEntries implements nvme.QueueTransport.
func (c *Controller) SetEntries(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slots.grow(c, n)
}

// MaxInCapsule implements nvme.QueueTransport.
func (c *Controller) MaxInCapsule() int { return int(c.cfg.InCapsule) }

// NamesHostMemory implements nvme.QueueTransport.
func (c *Controller) NamesHostMemory(k nvme.SGLKind) bool { return k == nvme.SGLTransport }

func (c *Controller) termReq() Type { return TypeC2HTermReq }

// end implements role.
func (c *Controller) end(err error) {
	c.mu.Lock()
	for c.cancelling > 0 {
		c.cond.Wait()
	}
	c.slots.cut(c.cmd)
	c.cmd = nil
	for _, k := range c.kept {
		c.slots.put(k)
	}
	c.kept = nil
	gets := c.gets.purge()
	c.mu.Unlock()
	lost := err
	if lost == nil {
		lost = net.ErrClosed
	}
	for _, g := range gets {
		c.up.DataArrived(&g.cmd.Command, lost)
	}
	c.mu.Lock()
	c.settleLocked()
	c.tx.Yield()
	c.mu.Unlock()
	c.Push() // completes transfers that the upper layer has queued in DataArrived
	_ = c.sk.Close()
	c.up.Ended(err)
}
