package portal

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"softiser/rdma"
)

// Frontend serves one protocol, over every transport that carries it, on all portals. It
// is registered with Server.Handle.
type Frontend interface {
	// Accept takes a connection over, on a goroutine that belongs to it until it
	// returns. Nothing has been read from the connection. With an error it is the
	// caller's again, who closes it and gives its place back; without one the front
	// end does both, and calls Conn.OnEvict before anything may wait for the peer.
	Accept(c *Conn) error
	// Drain asks the peers to leave and waits until they have. When ctx is done it
	// cuts off those that are left and returns ctx's error; in any case nobody is
	// served any more, but storage may still have commands. No connection comes from
	// then on.
	Drain(ctx context.Context) error
	// Close gives back what is left, when no Accept runs any more. Volumes are
	// flushed; the error is what went wrong there, or ErrVolumesHeld with the names
	// of volumes that have not answered when ctx is done. Then the rest goes on, and
	// Close is called again, perhaps by several at once, to wait for it.
	Close(ctx context.Context) error
}

// Conn is a connection on its way to a front end, which may keep it.
type Conn struct {
	Net           *net.TCPConn      // nil over RoCE
	Request       *rdma.ConnRequest // over RoCE only: to be answered
	Portal        *Portal
	Local, Remote netip.AddrPort
	Opened        time.Time
	Deadline      time.Time   // until when the transport must be ready; zero: no limit
	Log           *zap.Logger // tells portal and peer
	Place         *Place      // until login is done
	Hello

	closer  atomic.Pointer[func()]
	evicted atomic.Bool
}

// OnEvict says how the connection is closed from now on when it has to make room for
// others before its login is done. Before that its socket is closed, or, where there is
// none, it is closed now.
func (c *Conn) OnEvict(f func()) {
	c.closer.Store(&f)
	if c.Net == nil && c.evicted.Load() {
		f()
	}
}

// evict closes the connection because it has to give way.
func (c *Conn) evict() {
	c.Portal.evicted.Add(1)
	c.evicted.Store(true)
	if f := c.closer.Load(); f != nil {
		(*f)()
	} else if c.Net != nil {
		c.Net.Close()
	}
}
