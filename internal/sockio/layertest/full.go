package layertest

import (
	"net"

	"softiser/internal/sockio"
)

// Filled is a layer that changes nothing, and finds the socket full when the stream is to end: it fills it. What it
// has to say then is Said.
type Filled struct {
	net.Conn

	buf    []byte // has been read from the socket
	filled bool
}

// Said ends the stream of a Filled.
const Said = 'E'

// NetConn implements sockio.Layer, as do the others.
func (f *Filled) NetConn() net.Conn { return f.Conn }

// Holds implements sockio.Layer.
func (f *Filled) Holds() bool { return len(f.buf) > 0 }

func (f *Filled) more(c *sockio.Conn) error {
	if len(f.buf) > 0 {
		return nil
	}
	b := make([]byte, 4096)
	n, err := c.Recv(b)
	f.buf = b[:max(n, 0)]
	return err
}

// ReadvLayer implements sockio.Layer.
func (f *Filled) ReadvLayer(c *sockio.Conn, v []sockio.Vec) (int, error) {
	return f.ReadLayer(c, sockio.Bytes(&v[0]))
}

// ReadLayer implements sockio.Layer.
func (f *Filled) ReadLayer(c *sockio.Conn, p []byte) (int, error) {
	n, err := f.PeekLayer(c, p)
	if err == nil {
		f.buf = f.buf[n:]
	}
	return n, err
}

// PeekLayer implements sockio.Layer.
func (f *Filled) PeekLayer(c *sockio.Conn, p []byte) (int, error) {
	if err := f.more(c); err != nil {
		return 0, err
	}
	return copy(p, f.buf), nil
}

// WritevLayer implements sockio.Layer.
func (f *Filled) WritevLayer(c *sockio.Conn, v []sockio.Vec) (n int, err error) {
	for i := range v {
		k, err := c.Send(sockio.Bytes(&v[i]))
		if n += max(k, 0); n > 0 && (err != nil || k < int(v[i].Len)) {
			return n, nil
		} else if err != nil {
			return 0, err
		}
	}
	return n, nil
}

// End implements sockio.Layer.
func (f *Filled) End(c *sockio.Conn) error {
	for b := make([]byte, 64<<10); !f.filled; {
		if _, err := c.Send(b); err != nil {
			f.filled = true
			return err
		}
	}
	_, err := c.Send([]byte{Said})
	return err
}

var _ sockio.Layer = (*Filled)(nil)
