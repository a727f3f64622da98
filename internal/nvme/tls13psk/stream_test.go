package tls13psk

import (
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"softiser/internal/alloctest"
	"softiser/internal/sockio"
	"softiser/internal/sockio/layertest"
)

// ends are both ends of a secure connection as sockio.Conns.
func ends(t testing.TB, o sockio.Options) (a, b *sockio.Conn, client, server *Conn) {
	t.Helper()
	k := key("a", AES128GCMSHA256)
	cr, sr := pair(t, ClientConfig{Keys: []Key{k}}, lookup(k))
	if cr.err != nil || sr.err != nil {
		t.Fatal(cr.err, sr.err)
	}
	var err error
	if a, err = sockio.New(cr.c, o); err != nil {
		t.Fatal(err)
	}
	if b, err = sockio.New(sr.c, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b, cr.c, sr.c
}

// Keys change while data go both ways.
func TestStream(t *testing.T) {
	a, b, client, server := ends(t, sockio.Options{SendBuffer: 20_000})
	client.answer.Store(true)
	server.answer.Store(true)
	layertest.BothWays(t, a, b)
}

// The end of a stream is said though the last data has filled the socket.
func TestStreamEndsFull(t *testing.T) {
	a, b, _, _ := ends(t, sockio.Options{SendBuffer: 20_000})
	layertest.Full(t, a, b)
}

// What has been read from the socket and not been opened is not forgotten when a turn ends.
func TestStreamInTurns(t *testing.T) {
	a, b, _, _ := ends(t, sockio.Options{Crowd: &layertest.Crowd})
	layertest.Turns(t, a, b)
}

// A stream that is cut, or changed, is an error, and the peer learns of the change.
func TestStreamBreaks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	_, b, client, _ := ends(t, sockio.Options{})
	client.Conn.Close()
	if _, err := layertest.ReadAll(b, r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %v", err)
	}
	a, b, client, _ := ends(t, sockio.Options{})
	client.mu.Lock()
	client.appendLocked(typeData, []byte("x"))
	client.wbuf[7] ^= 1
	client.flushLocked()
	client.mu.Unlock()
	_, err := layertest.ReadAll(b, r)
	wants(t, "changed", err, BadRecordMAC, false)
	_, err = layertest.ReadAll(a, r)
	wants(t, "changed", err, BadRecordMAC, true)
	if _, err := b.Writev(sockio.Append(nil, []byte("x")), false); err == nil {
		t.Error("a write after an alert")
	}
}

// Nothing is allocated for what goes through.
func TestStreamAllocates(t *testing.T) {
	a, b, _, _ := ends(t, sockio.Options{})
	p, q := make([]byte, 4096), make([]byte, 8192)
	v, w := sockio.Append(nil, p), make([]sockio.Vec, 1)
	n := alloctest.PerRun(200, func() {
		if n, err := a.Writev(v, false); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
		for got := 0; got < len(p); {
			sockio.Set(&w[0], q)
			n, err := b.Readv(w, false)
			if err != nil && err != sockio.ErrAgain {
				t.Fatal(err)
			}
			got += n
		}
	})
	if n > 0 {
		t.Errorf("%g allocations for each write and read", n)
	}
}
