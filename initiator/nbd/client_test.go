package nbd

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// client is a small NBD client that says exactly what a test wants said.
type client struct {
	t          testing.TB
	nc         net.Conn
	structured bool
	flags      TransmissionFlags
	size       uint64
}

func dial(t testing.TB, path string) *client {
	t.Helper()
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(60 * time.Second))
	t.Cleanup(func() { nc.Close() })
	c := &client{t: t, nc: nc}
	p := c.read(18)
	if binary.BigEndian.Uint64(p) != magicInit || binary.BigEndian.Uint64(p[8:]) != magicOption || p[17] != 3 {
		t.Fatalf("greeting % x", p)
	}
	c.write([]byte{0, 0, 0, 3})
	return c
}

// connect negotiates as a modern client does.
func connect(t testing.TB, path, name string) *client {
	t.Helper()
	c := dial(t, path)
	if typ, _ := c.option(optStructuredReply, nil); typ != repAck {
		t.Fatalf("structured replies: %#x", typ)
	}
	c.structured = true
	if typ, p := c.option(optSetMeta, metaQuery(name, contextAllocation)); typ != repMetaContext || string(p[4:]) != contextAllocation {
		t.Fatalf("meta context: %#x % x", typ, p)
	}
	c.optionReply(optSetMeta)
	c.goExport(name)
	return c
}

func (c *client) goExport(name string) {
	c.t.Helper()
	typ, p := c.option(optGo, goData(name))
	for typ == repInfo {
		if binary.BigEndian.Uint16(p) == infoExport {
			c.size = binary.BigEndian.Uint64(p[2:])
			c.flags = TransmissionFlags(binary.BigEndian.Uint16(p[10:]))
		}
		typ, p = c.optionReply(optGo)
	}
	if typ != repAck {
		c.t.Fatalf("GO: %#x %q", typ, p)
	}
}

func goData(name string, types ...uint16) []byte {
	p := append(binary.BigEndian.AppendUint32(nil, uint32(len(name))), name...)
	p = binary.BigEndian.AppendUint16(p, uint16(len(types)))
	for _, t := range types {
		p = binary.BigEndian.AppendUint16(p, t)
	}
	return p
}

func metaQuery(name string, queries ...string) []byte {
	p := append(binary.BigEndian.AppendUint32(nil, uint32(len(name))), name...)
	p = binary.BigEndian.AppendUint32(p, uint32(len(queries)))
	for _, q := range queries {
		p = append(binary.BigEndian.AppendUint32(p, uint32(len(q))), q...)
	}
	return p
}

func (c *client) read(n int) []byte {
	c.t.Helper()
	p := make([]byte, n)
	if _, err := io.ReadFull(c.nc, p); err != nil {
		c.t.Fatalf("read of %d bytes: %v", n, err)
	}
	return p
}

func (c *client) write(p []byte) {
	c.t.Helper()
	if _, err := c.nc.Write(p); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

// option sends an option and returns its first reply.
func (c *client) option(opt uint32, data []byte) (typ uint32, reply []byte) {
	c.t.Helper()
	c.write(optionBytes(opt, data))
	return c.optionReply(opt)
}

func optionBytes(opt uint32, data []byte) []byte {
	p := binary.BigEndian.AppendUint64(nil, magicOption)
	p = binary.BigEndian.AppendUint32(p, opt)
	p = binary.BigEndian.AppendUint32(p, uint32(len(data)))
	return append(p, data...)
}

func (c *client) optionReply(opt uint32) (typ uint32, reply []byte) {
	c.t.Helper()
	h := c.read(20)
	if binary.BigEndian.Uint64(h) != magicOptReply || binary.BigEndian.Uint32(h[8:]) != opt {
		c.t.Fatalf("option reply % x", h)
	}
	return binary.BigEndian.Uint32(h[12:]), c.read(int(binary.BigEndian.Uint32(h[16:])))
}

// send sends a request; payload may be nil.
func (c *client) send(flags uint16, cmd Command, cookie, off uint64, n uint32, payload []byte) {
	c.t.Helper()
	c.write(append(requestBytes(flags, cmd, cookie, off, n), payload...))
}

func requestBytes(flags uint16, cmd Command, cookie, off uint64, n uint32) []byte {
	p := make([]byte, requestSize)
	be := binary.BigEndian
	be.PutUint32(p, magicRequest)
	be.PutUint16(p[4:], flags)
	be.PutUint16(p[6:], uint16(cmd))
	be.PutUint64(p[8:], cookie)
	be.PutUint64(p[16:], off)
	be.PutUint32(p[24:], n)
	return p
}

// reply is one decoded reply.
type reply struct {
	cookie uint64
	errno  uint32
	msg    string
	typ    uint16
	data   []byte
}

// recv reads one reply; n is the payload of a simple READ reply.
func (c *client) recv(n int) (r reply) {
	c.t.Helper()
	be := binary.BigEndian
	if !c.structured {
		h := c.read(16)
		if be.Uint32(h) != magicSimple {
			c.t.Fatalf("reply % x", h)
		}
		r.errno, r.cookie = be.Uint32(h[4:]), be.Uint64(h[8:])
		if r.errno == 0 {
			r.data = c.read(n)
		}
		return r
	}
	h := c.read(20)
	if be.Uint32(h) != magicStructured || be.Uint16(h[4:]) != chunkDone {
		c.t.Fatalf("chunk % x", h)
	}
	r.typ, r.cookie = be.Uint16(h[6:]), be.Uint64(h[8:])
	p := c.read(int(be.Uint32(h[16:])))
	switch r.typ {
	case chunkError:
		r.errno, r.msg = be.Uint32(p), string(p[6:])
		if int(be.Uint16(p[4:])) != len(r.msg) {
			c.t.Fatalf("error message of %d bytes, said %d", len(r.msg), be.Uint16(p[4:]))
		}
	case chunkOffsetData:
		r.data = p[8:]
	case chunkBlockStatus:
		r.data = p[4:]
	case chunkNone:
	default:
		c.t.Fatalf("chunk type %d", r.typ)
	}
	return r
}

// do sends a request and returns its reply.
func (c *client) do(flags uint16, cmd Command, off uint64, n uint32, payload []byte) reply {
	c.t.Helper()
	c.send(flags, cmd, off^0x5a5a, off, n, payload)
	size := 0
	if cmd == CmdRead {
		size = int(n)
	}
	r := c.recv(size)
	if r.cookie != off^0x5a5a {
		c.t.Fatalf("cookie %#x", r.cookie)
	}
	return r
}

// gone reports whether the server hangs up.
func (c *client) gone() error {
	c.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, c.nc); err != nil {
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			return fmt.Errorf("the server did not hang up")
		}
	}
	return nil
}
