package tls13psk

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// script is a connection whose peer says what a fuzzer likes, whatever it is told.
type script struct {
	net.Conn
	in *bytes.Reader
}

func (s *script) Read(p []byte) (int, error)       { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error)      { return len(p), nil }
func (s *script) Close() error                     { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// A hostile client.
func FuzzServer(f *testing.F) {
	k := key("a", AES128GCMSHA256)
	f.Add(records(hello(nil, k), 1<<14))
	f.Add(records(hello(func(h *clientHello) { h.shares = nil }, k), 40))
	f.Add([]byte{typeCCS, 3, 3, 0, 1, 1, typeAlert, 3, 3, 0, 2, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Server(&script{in: bytes.NewReader(b)}, lookup(k)); err == nil {
			t.Error("a client that does not know our share has finished the handshake")
		}
	})
}

// A hostile server.
func FuzzClient(f *testing.F) {
	k := key("a", AES128GCMSHA256)
	_, s, _ := x25519.generate()
	f.Add(records((&serverHello{suite: k.Suite, share: s}).encode(), 1<<14))
	f.Add(records((&serverHello{suite: k.Suite, share: s, random: retryRandom}).encode(), 30))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Client(&script{in: bytes.NewReader(b)}, ClientConfig{Keys: []Key{k}}); err == nil {
			t.Error("a server that does not know the key has finished the handshake")
		}
	})
}

// A peer that knows the keys: whatever its records have in them.
func FuzzRecords(f *testing.F) {
	f.Add(true, []byte{typeData, 3, 'a', 'b', 'c', typeHandshake, 5, msgKeyUpdate, 0, 0, 1, 1, typeData, 0, typeAlert, 2, 1, 0})
	f.Add(false, []byte{typeHandshake, 2, msgKeyUpdate, 0, typeHandshake, 3, 0, 1, 0, typeHandshake, 4, msgNewSessionTicket, 0, 0, 0})
	f.Fuzz(func(t *testing.T, client bool, b []byte) {
		secret := make([]byte, 32)
		peer := &Conn{}
		peer.out.use(AES128GCMSHA256, secret)
		for len(b) >= 2 {
			n := min(int(b[1]), len(b)-2)
			peer.appendLocked(b[0], b[2:2+n])
			if b[0] == typeHandshake && n == 5 && b[2] == msgKeyUpdate {
				peer.out.update()
			}
			b = b[2+n:]
		}
		c := &Conn{Conn: &script{in: bytes.NewReader(peer.wbuf)}, client: client, done: true}
		c.in.use(AES128GCMSHA256, secret)
		c.out.use(AES128GCMSHA256, secret)
		_, _ = io.Copy(io.Discard, c)
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a read goes on behind the end")
		}
	})
}
