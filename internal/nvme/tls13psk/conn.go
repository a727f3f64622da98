package tls13psk

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection whose handshake has succeeded. As a net.Conn it has one reader and
// one writer at a time. Handed to sockio.New, it moves to the calls of a sockio.Conn.
type Conn struct {
	net.Conn
	client   bool
	identity string
	suite    Suite

	// Owned by the reader.
	in      half
	buf     []byte // buf[r:w] has come and has not been opened
	r, w    int
	plain   []byte // opened, in buf, and not given away
	hs      []byte // handshake messages that are not complete
	useless int    // records since the last that had data
	done    bool   // the handshake is over
	eof     bool   // close_notify has come
	failed  *Error

	answer atomic.Bool // the peer wants our key changed too

	mu     sync.Mutex // guards what follows: the writer's, and alerts of the reader
	out    half
	wbuf   []byte // sealed; wbuf[woff:] has not been written
	woff   int
	lent   *[]byte // the memory of wbuf, if it is from sealed
	taken  int     // bytes of data in wbuf
	closed bool    // close_notify or a fatal alert is in wbuf, or has been
}

// bufLen is the size of the receive buffer: several records, so that few system calls are
// needed.
const bufLen = 4 * (headerLen + maxCipher)

// maxUseless is how many records without data may come one after the other, so that a peer
// cannot keep this end busy with them.
const maxUseless = 32

// maxHandshake bounds a handshake message, bytes.
const maxHandshake = 16 << 10

// Identity returns the name of the key that both ends have.
func (c *Conn) Identity() string { return c.identity }

// Suite returns the cipher suite.
func (c *Conn) Suite() Suite { return c.suite }

// NetConn returns the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// errMore says that the buffer holds no whole record.
var errMore = errors.New("tls13psk: more is needed")

// record takes the next record out of the buffer and opens it.
func (c *Conn) record() (byte, []byte, error) {
	for {
		b := c.buf[c.r:c.w]
		if len(b) < headerLen {
			return 0, nil, errMore
		}
		n, limit := int(binary.BigEndian.Uint16(b[3:])), maxPlain
		if c.in.aead != nil {
			limit = maxCipher
		}
		if n > limit {
			return 0, nil, failf(RecordOverflow, "a record of %d bytes", n)
		}
		if len(b) < headerLen+n {
			return 0, nil, errMore
		}
		head, body := b[:headerLen], b[headerLen:headerLen+n]
		c.r += headerLen + n
		if c.useless++; c.useless > maxUseless {
			return 0, nil, failf(UnexpectedMessage, "%d records without data", c.useless)
		}
		// Middlebox compatibility: allowed until the handshake is over (RFC 8446 §5).
		if head[0] == typeCCS && !c.done {
			if n != 1 || body[0] != 1 {
				return 0, nil, failf(UnexpectedMessage, "change_cipher_spec of %d bytes", n)
			}
			continue
		}
		if c.in.aead == nil {
			if head[0] != typeHandshake && head[0] != typeAlert || n == 0 {
				return 0, nil, failf(UnexpectedMessage, "a record of type %d and %d bytes in the handshake", head[0], n)
			}
			return head[0], body, nil
		}
		typ, p, e := c.in.open(head, body)
		if e != nil {
			return 0, nil, e
		}
		return typ, p, nil
	}
}

// room makes room in the buffer for the rest of a record and returns where to read to.
func (c *Conn) room() []byte {
	if c.buf == nil {
		c.buf = make([]byte, bufLen)
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if len(c.buf)-c.r < headerLen+maxCipher {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	return c.buf[c.w:]
}

// advance opens records until there is data, or the end of the stream; errMore: the buffer
// has no more.
func (c *Conn) advance() error {
	for len(c.plain) == 0 {
		switch {
		case c.failed != nil:
			return c.failed
		case c.eof:
			return io.EOF
		}
		typ, p, err := c.record()
		if err == nil {
			err = c.accept(typ, p)
		}
		if e, ok := err.(*Error); ok { // nothing here wraps one
			c.fail(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// accept handles a record behind the handshake.
func (c *Conn) accept(typ byte, p []byte) error {
	if len(c.hs) > 0 && typ != typeHandshake {
		return failf(UnexpectedMessage, "a record of type %d within a handshake message", typ)
	}
	switch typ {
	case typeData:
		c.plain = p
		if len(p) > 0 {
			c.useless = 0
		}
		return nil
	case typeAlert:
		return c.alerted(p)
	case typeHandshake:
		if len(p) == 0 {
			return failf(UnexpectedMessage, "an empty handshake record")
		}
		c.hs = append(c.hs, p...)
		for {
			msg, e := c.message()
			if e != nil {
				return e
			}
			if msg == nil {
				return nil
			}
			if e := c.posted(msg); e != nil {
				return e
			}
		}
	}
	return failf(UnexpectedMessage, "a record of type %d", typ)
}

// message takes a whole handshake message out of hs; nil: it is not complete. It is good
// until the next record.
func (c *Conn) message() ([]byte, *Error) {
	if len(c.hs) < 4 {
		return nil, nil
	}
	n := 4 + int(c.hs[1])<<16 + int(c.hs[2])<<8 + int(c.hs[3])
	if n > maxHandshake {
		return nil, failf(IllegalParameter, "a handshake message of %d bytes", n)
	}
	if len(c.hs) < n {
		return nil, nil
	}
	msg := c.hs[:n:n]
	if c.hs = c.hs[n:]; len(c.hs) == 0 {
		c.hs = nil
	}
	return msg, nil
}

// posted handles a message behind the handshake.
func (c *Conn) posted(msg []byte) *Error {
	switch {
	case msg[0] == msgKeyUpdate:
		if len(msg) != 5 || msg[4] > 1 {
			return failf(IllegalParameter, "KeyUpdate of %d bytes", len(msg))
		}
		if len(c.hs) > 0 {
			return failf(UnexpectedMessage, "more with the old key behind KeyUpdate")
		}
		c.in.update()
		if msg[4] == 1 {
			c.answer.Store(true)
		}
	case msg[0] == msgNewSessionTicket && c.client:
		// Nothing is resumed.
	default:
		return failf(UnexpectedMessage, "handshake message %d", msg[0])
	}
	return nil
}

// alerted handles an alert.
func (c *Conn) alerted(p []byte) error {
	if len(p) != 2 {
		return failf(DecodeError, "an alert of %d bytes", len(p))
	}
	switch a := Alert(p[1]); a {
	case CloseNotify:
		c.eof = true
		return nil
	case UserCanceled:
		return nil
	default:
		return &Error{Alert: a, Peer: true}
	}
}

// fail ends the connection, and queues the alert for the peer.
func (c *Conn) fail(e *Error) {
	if c.failed == nil {
		c.failed = e
	}
	if !e.Peer {
		c.mu.Lock()
		c.alertLocked(e.Alert)
		c.mu.Unlock()
	}
}

// alertLocked seals an alert behind what is waiting. Nothing follows it.
func (c *Conn) alertLocked(a Alert) {
	if c.closed {
		return
	}
	level := byte(alertLevelFatal)
	if a == CloseNotify {
		level = alertLevelWarning
	}
	c.appendLocked(typeAlert, []byte{level, byte(a)})
	c.closed = true
}

// appendLocked seals p, which is no data.
func (c *Conn) appendLocked(typ byte, p []byte) {
	at := len(c.wbuf)
	c.wbuf = append(c.wbuf, make([]byte, headerLen)...)
	c.wbuf = c.out.seal(append(c.wbuf, p...), at, typ)
}

// rekeyLocked changes the key if the peer has asked for it or it has sealed enough.
func (c *Conn) rekeyLocked() {
	if c.answer.Swap(false) || c.out.seq >= rekeyAfter {
		c.appendLocked(typeHandshake, []byte{msgKeyUpdate, 0, 0, 1, 0})
		c.out.update()
	}
}

var errClosed = errors.New("TLS: the connection is closed")

// flushLocked writes what is sealed, with the calls of net.Conn.
func (c *Conn) flushLocked() error {
	_, err := c.Conn.Write(c.wbuf[c.woff:])
	c.wbuf, c.woff, c.taken = c.wbuf[:0], 0, 0
	return err
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		err := c.advance()
		if err == nil {
			n := copy(p, c.plain)
			c.plain = c.plain[n:]
			return n, nil
		}
		if err != errMore {
			c.mu.Lock()
			if len(c.wbuf) > 0 {
				_ = c.flushLocked()
			}
			c.mu.Unlock()
			return 0, err
		}
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
}

// fill reads once from the connection below.
func (c *Conn) fill() error {
	n, err := c.Conn.Read(c.room())
	c.w += n
	if n > 0 {
		return nil
	}
	if err == nil || err == io.EOF {
		err = errTruncated
	}
	return err
}

// errTruncated is the end of a stream that nobody has vouched for.
var errTruncated = &truncated{}

type truncated struct{}

func (*truncated) Error() string { return "TLS: the connection ended without close_notify" }

// Unwrap makes it an unexpected end.
func (*truncated) Unwrap() error { return io.ErrUnexpectedEOF }

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(p) > 0 {
		if c.closed {
			return n, errClosed
		}
		c.rekeyLocked()
		k := min(len(p), maxPlain)
		c.appendLocked(typeData, p[:k])
		if err := c.flushLocked(); err != nil {
			return n, err
		}
		n, p = n+k, p[k:]
	}
	return n, nil
}

// closeTime is how long Close may wait for a socket that is full.
const closeTime = 100 * time.Millisecond

// Close closes the connection, and says so to the peer if nothing is in the way.
func (c *Conn) Close() error {
	if c.mu.TryLock() {
		if len(c.wbuf) == 0 && !c.closed {
			c.alertLocked(CloseNotify)
			_ = c.SetWriteDeadline(time.Now().Add(closeTime))
			_ = c.flushLocked()
		}
		c.mu.Unlock()
	}
	return c.Conn.Close()
}

// CloseWrite says to the peer that nothing follows, and sends FIN.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alertLocked(CloseNotify)
	if err := c.flushLocked(); err != nil {
		return err
	}
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}
