package tls13psk

import (
	"io"
	"sync"

	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// sealBytes is how much data is sealed for one system call.
const sealBytes = 8 * maxPlain

// sealed are buffers for that. A connection has one while it has something to write.
var sealed = sync.Pool{New: func() any { b := make([]byte, 0, 9*recordRoom); return &b }}

// Holds implements sockio.Layer. Part of a record is nothing yet, and the socket tells when
// the rest comes.
func (c *Conn) Holds() bool { return len(c.plain) > 0 || c.eof || c.failed != nil || c.whole() }

// whole reports whether the buffer has a whole record.
func (c *Conn) whole() bool {
	b := c.buf[c.r:c.w]
	return len(b) >= headerLen && len(b) >= headerLen+(int(b[3])<<8|int(b[4]))
}

// more gets plaintext, from the socket if need be.
func (c *Conn) more(s *sockio.Conn) error {
	for {
		err := c.advance()
		if err == errMore {
			n, err := s.Recv(c.room())
			if err != nil {
				return err
			}
			if n == 0 {
				return errTruncated
			}
			c.w += n
			continue
		}
		if err != nil && err != io.EOF {
			c.mu.Lock()
			c.flushNowLocked(s)
			c.mu.Unlock()
		}
		return err
	}
}

// ReadLayer implements sockio.Layer.
func (c *Conn) ReadLayer(s *sockio.Conn, p []byte) (int, error) {
	n, err := c.PeekLayer(s, p)
	if n > 0 {
		c.plain = c.plain[n:]
	}
	return n, err
}

// PeekLayer implements sockio.Layer.
func (c *Conn) PeekLayer(s *sockio.Conn, p []byte) (int, error) {
	if err := c.more(s); err == io.EOF {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return copy(p, c.plain), nil
}

// ReadvLayer implements sockio.Layer.
func (c *Conn) ReadvLayer(s *sockio.Conn, v []sockio.Vec) (n int, err error) {
	for i := range v {
		for p := sockio.Bytes(&v[i]); len(p) > 0; {
			if n == 0 {
				err = c.more(s)
			} else if len(c.plain) == 0 && c.advance() != nil {
				return n, nil // the next call tells
			}
			if err == io.EOF {
				return 0, nil
			} else if err != nil {
				return 0, err
			}
			k, ok := segs.Copy(p, c.plain)
			if !ok {
				if n > 0 {
					return n, nil
				}
				return 0, sockio.ErrFault
			}
			c.plain, p, n = c.plain[k:], p[k:], n+k
		}
	}
	return n, nil
}

// WritevLayer implements sockio.Layer.
func (c *Conn) WritevLayer(s *sockio.Conn, v []sockio.Vec) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.wbuf) > 0 {
		n := c.taken
		if err := c.flushNowLocked(s); err != nil {
			return 0, err
		}
		if n > 0 {
			return n, nil
		}
	}
	if c.closed {
		return 0, errClosed
	}
	c.lent = sealed.Get().(*[]byte)
	c.wbuf = (*c.lent)[:0]
	c.rekeyLocked()
	if c.sealLocked(v); c.taken == 0 && totalOf(v) > 0 {
		return 0, sockio.ErrFault
	}
	n := c.taken
	if err := c.flushNowLocked(s); err != nil {
		return 0, err
	}
	return n, nil
}

func totalOf(v []sockio.Vec) (n int) {
	for i := range v {
		n += int(v[i].Len)
	}
	return n
}

// sealLocked seals as much of v as fits the buffer, and ends before memory that cannot be
// read.
func (c *Conn) sealLocked(v []sockio.Vec) {
	var p []byte
	i, fault := 0, false
	for c.taken < sealBytes && !fault {
		at := len(c.wbuf)
		b := append(c.wbuf, 0, 0, 0, 0, 0)
		for n := 0; n < maxPlain && !fault; {
			if len(p) == 0 {
				if i == len(v) {
					break
				}
				p = sockio.Bytes(&v[i])
				i++
				continue
			}
			k := min(len(p), maxPlain-n)
			to := len(b)
			b = b[:to+k]
			if _, ok := segs.Copy(b[to:], p[:k]); !ok {
				b, fault = b[:to], true
				break
			}
			p, n = p[k:], n+k
		}
		n := len(b) - at - headerLen
		if n == 0 {
			return
		}
		c.wbuf = c.out.seal(b, at, typeData)
		c.taken += n
	}
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
		sealed.Put(c.lent)
		c.lent = nil
	}
	c.wbuf, c.woff, c.taken = nil, 0, 0
	return nil
}

// End implements sockio.Layer.
func (c *Conn) End(s *sockio.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alertLocked(CloseNotify)
	return c.flushNowLocked(s)
}

var _ sockio.Layer = (*Conn)(nil)
