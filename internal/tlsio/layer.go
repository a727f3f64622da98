package tlsio

import (
	"errors"
	"io"
	"sync"

	"softiser/internal/segs"
	"softiser/internal/sockio"
)

const (
	maxPlain  = 16 << 10     // data of a record, at most (RFC 8446 §5.1)
	sealBytes = 8 * maxPlain // data that is sealed for one system call
	overhead  = 256          // more than what a record has beside data
)

// Memory of a connection that has something to write: what is to be sealed, and what is.
var (
	toSeal = sync.Pool{New: func() any { return new([sealBytes]byte) }}
	sealed = sync.Pool{New: func() any { b := make([]byte, 0, sealBytes+9*overhead); return &b }}
)

// maxOwed bounds what may wait to be sent that is not the writer's, bytes: answers to a peer
// that asks for new keys and does not read.
const maxOwed = 16 << 10

var errOwed = errors.New("TLS: the peer asks for new keys again and again, and does not read")

// Holds implements sockio.Layer. crypto/tls has read what the socket had before it says that
// there is no more, and part of a record is nothing yet.
func (c *Conn) Holds() bool { return c.r < c.w || c.failed != nil || !c.empty }

// more gets plaintext, from the socket if need be.
func (c *Conn) more(s *sockio.Conn) error {
	if c.r < c.w {
		return nil
	}
	if c.failed != nil {
		return c.failed
	}
	if c.buf == nil {
		c.buf = make([]byte, maxPlain)
	}
	c.sk, c.empty = s, false
	n, err := c.tls.Read(c.buf)
	c.sk = nil
	if n > 0 {
		c.r, c.w = 0, n
		return nil // an error comes again
	}
	if err == errAgain {
		return c.pay(s)
	}
	c.failed = c.readError(err)
	_ = c.pay(s)
	return c.failed
}

// pay sends what the reader has to say: alerts, and new keys. It returns ErrAgain when all
// is well.
func (c *Conn) pay(s *sockio.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := sockio.ErrAgain
	if c.taken == 0 { // else the writer is about to send it
		err = c.flushNowLocked(s)
	}
	if len(c.wbuf)-c.woff > c.taken+c.taken/maxPlain*overhead+maxOwed {
		err, c.failed = errOwed, errOwed
	}
	if err == nil {
		err = sockio.ErrAgain
	}
	return err
}

// ReadLayer implements sockio.Layer.
func (c *Conn) ReadLayer(s *sockio.Conn, p []byte) (int, error) {
	if err := c.more(s); err == io.EOF {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return c.take(p), nil
}

// PeekLayer implements sockio.Layer.
func (c *Conn) PeekLayer(s *sockio.Conn, p []byte) (int, error) {
	if err := c.more(s); err == io.EOF {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return copy(p, c.buf[c.r:c.w]), nil
}

// ReadvLayer implements sockio.Layer.
func (c *Conn) ReadvLayer(s *sockio.Conn, v []sockio.Vec) (n int, err error) {
	for i := range v {
		for p := sockio.Bytes(&v[i]); len(p) > 0; {
			if err := c.more(s); n > 0 && err != nil {
				return n, nil // the next call tells
			} else if err == io.EOF {
				return 0, nil
			} else if err != nil {
				return 0, err
			}
			k, ok := segs.Copy(p, c.buf[c.r:c.w])
			if !ok {
				if n > 0 {
					return n, nil
				}
				return 0, sockio.ErrFault
			}
			c.r += k
			p, n = p[k:], n+k
		}
	}
	return n, nil
}

// WritevLayer implements sockio.Layer.
func (c *Conn) WritevLayer(s *sockio.Conn, v []sockio.Vec) (int, error) {
	if n, err := c.before(s); n > 0 || err != nil {
		return n, err
	}
	plain := toSeal.Get().(*[sealBytes]byte)
	n, ok := gather(plain[:], v)
	if n == 0 && !ok {
		toSeal.Put(plain)
		return 0, sockio.ErrFault
	}
	c.setTaken(n)
	_, err := c.tls.Write(plain[:n])
	toSeal.Put(plain)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.taken = 0
		return 0, explain(err)
	}
	if err := c.flushNowLocked(s); err != nil {
		return 0, err
	}
	c.taken = 0
	return n, nil
}

// before sends what waits, and returns how much of that is the data that the writer offers
// again. Nothing waits when it returns 0 without an error.
func (c *Conn) before(s *sockio.Conn) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.flushNowLocked(s); err != nil {
		return 0, err
	}
	n, c.taken = c.taken, 0
	if n == 0 {
		c.lent = sealed.Get().(*[]byte)
		c.wbuf = (*c.lent)[:0]
	}
	return n, nil
}

func (c *Conn) setTaken(n int) {
	c.mu.Lock()
	c.taken = n
	c.mu.Unlock()
}

// gather copies what v names into b, as far as it fits, and ends before memory that cannot
// be read; ok is false then.
func gather(b []byte, v []sockio.Vec) (n int, ok bool) {
	for i := range v {
		p := sockio.Bytes(&v[i])
		k, ok := segs.Copy(b[n:], p)
		if !ok {
			return n, false
		}
		if n += k; k < len(p) {
			break
		}
	}
	return n, true
}

// flushNowLocked sends what is sealed, without waiting.
func (c *Conn) flushNowLocked(s *sockio.Conn) error {
	for c.woff < len(c.wbuf) {
		n, err := s.Send(c.wbuf[c.woff:])
		if err != nil {
			return err
		}
		c.woff += n
	}
	if c.lent != nil {
		*c.lent = c.wbuf[:0]
		sealed.Put(c.lent)
		c.lent = nil
	}
	c.wbuf, c.woff = nil, 0
	return nil
}

// End implements sockio.Layer.
func (c *Conn) End(s *sockio.Conn) error {
	_ = c.tls.CloseWrite() // says it once
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flushNowLocked(s)
}

var _ sockio.Layer = (*Conn)(nil)
