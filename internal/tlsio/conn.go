// Package tlsio has crypto/tls below a sockio.Conn, whose calls never wait. It is TLS 1.3
// with certificates, for iSCSI; what NVMe/TCP has, with pre-shared keys, is package
// internal/nvme/tls13psk.
//
// crypto/tls wants a net.Conn below it. It gets one whose Read says "not now" where the
// socket is empty, with an error that crypto/tls takes for a passing one, and keeps what it
// has of a record; and whose Write takes everything, into a buffer that goes to the socket
// as it has room. While the handshake runs both wait for the socket.
//
//	conn   the handshake, and a net.Conn with TLS
//	layer  the same below a sockio.Conn
package tlsio

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"reflect"
	"sync"
	"time"

	"softiser/internal/sockio"
)

// Conn is a connection whose handshake has succeeded. As a net.Conn it has one reader and
// one writer at a time. Handed to sockio.New, it moves to the calls of a sockio.Conn.
type Conn struct {
	net.Conn
	tls *tls.Conn

	// Owned by the reader.
	sk     *sockio.Conn // of the call under way; nil: reads may wait
	raw    []byte       // from the socket: raw[rr:rw] has not been given to crypto/tls
	rr, rw int
	buf    []byte // what has been opened: buf[r:w]
	r, w   int
	ended  bool  // the socket has no more, for good
	empty  bool  // the socket had no more when it was last asked
	failed error // what every read from now on says

	// mu guards what follows, and is taken inside the locks of crypto/tls: it may not be held
	// when that is called.
	mu    sync.Mutex
	done  bool   // the handshake is over: records go to wbuf
	wbuf  []byte // sealed; wbuf[woff:] has not been written
	woff  int
	lent  *[]byte // the memory of wbuf, if it is from sealed
	taken int     // bytes of the writer's data in wbuf that it has not been told of
}

// Client does the handshake of a client over nc, which belongs to the Conn when there is no
// error. ctx bounds it.
func Client(ctx context.Context, nc net.Conn, cfg *tls.Config) (*Conn, error) {
	if len(cfg.Certificates) == 1 && cfg.GetClientCertificate == nil {
		// crypto/tls would keep back what is of an authority that the server does not name, and
		// the server would ask for what there is.
		cfg = cfg.Clone()
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cfg.Certificates[0], nil }
	}
	return handshake(ctx, nc, cfg, tls.Client)
}

// Server is Client for the other side.
func Server(ctx context.Context, nc net.Conn, cfg *tls.Config) (*Conn, error) {
	return handshake(ctx, nc, cfg, tls.Server)
}

func handshake(ctx context.Context, nc net.Conn, cfg *tls.Config, role func(net.Conn, *tls.Config) *tls.Conn) (*Conn, error) {
	c := &Conn{Conn: nc}
	cfg = cfg.Clone()
	cfg.MinVersion = tls.VersionTLS13
	cfg.SessionTicketsDisabled, cfg.ClientSessionCache = true, nil
	cfg.DynamicRecordSizingDisabled = true // of use to what shows the first bytes of a page
	c.tls = role((*below)(c), cfg)
	if err := c.tls.HandshakeContext(ctx); err != nil {
		return nil, explain(err)
	}
	c.mu.Lock()
	c.done = true
	c.mu.Unlock()
	return c, nil
}

// State tells of the handshake.
func (c *Conn) State() tls.ConnectionState { return c.tls.ConnectionState() }

// NetConn returns the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// ErrTruncated is the end of a stream that nobody has vouched for.
var ErrTruncated error = &truncated{}

type truncated struct{}

func (*truncated) Error() string { return "TLS: the connection ended without close_notify" }

// Unwrap makes it an unexpected end.
func (*truncated) Unwrap() error { return io.ErrUnexpectedEOF }

// errAgain says that the socket is empty. To crypto/tls it is a passing error of the network.
var errAgain error = again{}

type again struct{}

func (again) Error() string   { return "TLS: nothing to read now" }
func (again) Timeout() bool   { return true }
func (again) Temporary() bool { return true }

// rawLen is how much is read from the socket at once. crypto/tls itself asks for the few bytes
// of a header and what lies behind it: many system calls, and a window of TCP that opens in
// steps too small to be told of.
const rawLen = 64 << 10

// below is what crypto/tls has for a socket.
type below Conn

// Read implements net.Conn.
func (b *below) Read(p []byte) (n int, err error) {
	if b.sk == nil {
		n, err = b.Conn.Read(p)
		b.ended = err == io.EOF
		return n, err
	}
	if b.rr == b.rw {
		if b.raw == nil {
			b.raw = make([]byte, rawLen)
		}
		n, err = b.sk.Recv(b.raw)
		switch {
		case err == sockio.ErrAgain:
			b.empty = true
			return 0, errAgain
		case err != nil:
			return 0, err
		case n == 0:
			b.ended = true
			return 0, io.EOF
		}
		b.rr, b.rw = 0, n
	}
	n = copy(p, b.raw[b.rr:b.rw])
	b.rr += n
	return n, nil
}

// Write implements net.Conn.
func (b *below) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		return b.Conn.Write(p)
	}
	b.wbuf = append(b.wbuf, p...)
	return len(p), nil
}

// The rest of net.Conn. crypto/tls closes it when the handshake is given up, and sets
// deadlines around close_notify, which here only goes to the buffer.
func (b *below) Close() error                     { return b.Conn.Close() }
func (b *below) LocalAddr() net.Addr              { return b.Conn.LocalAddr() }
func (b *below) RemoteAddr() net.Addr             { return b.Conn.RemoteAddr() }
func (b *below) SetDeadline(time.Time) error      { return nil }
func (b *below) SetReadDeadline(time.Time) error  { return nil }
func (b *below) SetWriteDeadline(time.Time) error { return nil }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if c.r < c.w {
		return c.take(p), nil
	}
	n, err := c.tls.Read(p)
	return n, c.readError(err)
}

// take gives away what has been opened.
func (c *Conn) take(p []byte) int {
	n := copy(p, c.buf[c.r:c.w])
	c.r += n
	return n
}

// readError is what a read reports for an error of crypto/tls.
func (c *Conn) readError(err error) error {
	if err == io.EOF && c.ended {
		return ErrTruncated
	}
	return explain(err)
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.tls.Write(p)
	if err != nil {
		return n, explain(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return n, c.flushLocked()
}

// flushLocked writes what is sealed, with the calls of net.Conn.
func (c *Conn) flushLocked() error {
	_, err := c.Conn.Write(c.wbuf[c.woff:])
	c.wbuf, c.woff = c.wbuf[:0], 0
	return err
}

// closeTime is how long Close may wait for a socket that is full.
const closeTime = 100 * time.Millisecond

// Close closes the connection, and says so to the peer if nothing is in the way.
func (c *Conn) Close() error {
	if c.mu.TryLock() {
		waiting := len(c.wbuf) > 0
		c.mu.Unlock()
		if !waiting {
			_ = c.SetWriteDeadline(time.Now().Add(closeTime))
			_ = c.CloseWrite()
		}
	}
	return c.Conn.Close()
}

// CloseWrite says to the peer that nothing follows.
func (c *Conn) CloseWrite() error {
	if err := c.tls.CloseWrite(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flushLocked()
}

// Alert returns the alert with which the peer has ended the connection (RFC 8446 §6); 0: none is known.
func Alert(err error) uint8 {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" {
		return 0
	}
	// The type is crypto/tls' own.
	v := reflect.ValueOf(op.Err)
	if v.Kind() != reflect.Uint8 {
		return 0
	}
	return uint8(v.Uint())
}

// HandshakeFailure is the alert of a peer that finds nothing in common with us.
const HandshakeFailure = 40

// explain says in the words of an administrator what an alert of the peer means.
func explain(err error) error {
	if text := alerts[Alert(err)]; text != "" {
		return &explained{text, err}
	}
	return err
}

// alerts are those of RFC 8446 §6.2 that say what is wrong with a certificate.
var alerts = map[uint8]string{
	HandshakeFailure: "the peer finds nothing in common with us",
	42:               "the peer does not take our certificate",
	43:               "the peer does not take this kind of certificate",
	44:               "the peer says that our certificate has been revoked",
	45:               "the peer says that our certificate has expired, or is not valid yet",
	46:               "the peer does not take our certificate",
	48:               "the peer does not trust the authority that our certificate is from",
	70:               "the peer takes no TLS 1.3",
	116:              "the peer asks for a certificate, and we have none (--tls-cert)",
}

// explained is an error with what it means.
type explained struct {
	what string
	err  error
}

func (e *explained) Error() string { return "TLS: " + e.what + " (" + e.err.Error() + ")" }
func (e *explained) Unwrap() error { return e.err }
