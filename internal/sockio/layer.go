package sockio

import (
	"net"
	"syscall"
	"unsafe"
)

// Layer is a net.Conn that changes the bytes of a stream on their way between the callers of
// a Conn and its socket. Its methods are the Conn's calls, on the same goroutines; like them
// they never wait. It moves bytes itself with Recv and Send.
type Layer interface {
	net.Conn
	// NetConn returns the connection below.
	NetConn() net.Conn
	ReadvLayer(c *Conn, v []Vec) (int, error)
	ReadLayer(c *Conn, p []byte) (int, error)
	PeekLayer(c *Conn, p []byte) (int, error)
	// WritevLayer returns how much it has taken, once everything of that is in the
	// socket. After ErrAgain it is called with the same bytes again.
	WritevLayer(c *Conn, v []Vec) (int, error)
	// Holds reports whether ReadLayer would return something without asking the socket.
	Holds() bool
	// End is called before FIN is sent behind everything that was written. After ErrAgain it is called
	// again, or FIN goes without what it has to say.
	End(c *Conn) error
}

// Finish has the layer of c, if there is one, say that nothing follows what has been written. ErrAgain: the socket is
// full, and Finish is to be called again when it has room.
func Finish(c *Conn) error {
	if c.ly == nil {
		return nil
	}
	return c.ly.End(c)
}

// Recv is what Read is without layers.
func (c *Conn) Recv(p []byte) (int, error) { return c.recv(p, syscall.MSG_DONTWAIT) }

// Send is what Writev is without layers, of one piece. It does not read or write memory of
// the caller's but p.
func (c *Conn) Send(p []byte) (int, error) {
	Set(&c.one, p)
	n, err := c.send(unsafe.Slice(&c.one, 1), sendFlags, true)
	c.one = Vec{}
	return n, err
}

// Bytes returns the memory that v names.
func Bytes(v *Vec) []byte { return unsafe.Slice(v.Base, v.Len) }
