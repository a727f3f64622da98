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
	// Accept takes over a connection from which nothing has been read. It runs on the
	// connection's own goroutine. If it returns nil, the front end owns the connection:
	// it closes it, ends its Place, and has called Conn.OnEvict before anything may wait
	// for the peer. If it returns an error, the caller still owns the connection, and closes it.
	Accept(c *Conn) error
	// Drain asks the peers to leave and waits until all have left. When ctx is done, it
	// closes the remaining connections and returns the error of ctx. After Drain no peer
	// is served, but commands may still be waiting for storage. Accept refuses connections
	// as soon as Drain has begun.
	Drain(ctx context.Context) error
	// Close flushes the volumes and releases everything else. It is called after Drain,
	// when no Accept is running. The error is that of the flushes, or ErrVolumesHeld with
	// the names of the volumes that had not answered when ctx was done; the work then
	// continues, and Close may be called again, also concurrently, to wait for it.
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

// OnEvict sets the function that closes the connection if it is evicted, that is, has to
// make room for another one before its login is done. Without a function, eviction closes
// the socket. Over RoCE, where there is none, OnEvict calls f at once if the connection has
// been evicted already.
func (c *Conn) OnEvict(f func()) {
	c.closer.Store(&f)
	if c.Net == nil && c.evicted.Load() {
		f()
	}
}

// evict closes the connection to make room for another one.
func (c *Conn) evict() {
	c.Portal.evicted.Add(1)
	c.evicted.Store(true)
	if f := c.closer.Load(); f != nil {
		(*f)()
	} else if c.Net != nil {
		c.Net.Close()
	}
}
