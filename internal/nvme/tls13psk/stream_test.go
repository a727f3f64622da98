package tls13psk

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"softiser/internal/alloctest"
	"softiser/internal/sockio"
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

// vecs cuts p into pieces.
func vecs(r *rand.Rand, p []byte) (v []sockio.Vec) {
	for len(p) > 0 && len(v) < 20 {
		n := min(1+r.IntN(60_000), len(p))
		if r.IntN(3) == 0 {
			n = min(n, 1+r.IntN(100))
		}
		v = sockio.Append(v, p[:n])
		p = p[n:]
	}
	return v
}

// writeAll writes as nvmetcp does: what the socket does not take is offered again.
func writeAll(s *sockio.Conn, r *rand.Rand, p []byte) error {
	var err error
	werr := s.WriteLoop(func(uintptr) bool {
		for len(p) > 0 {
			var n int
			n, err = s.Writev(vecs(r, p), false)
			if err == sockio.ErrAgain {
				err = nil
				return false
			}
			if err != nil {
				return true
			}
			p = p[n:]
		}
		return true
	})
	return errors.Join(werr, err)
}

// readAll reads until the end of the stream.
func readAll(s *sockio.Conn, r *rand.Rand) ([]byte, error) {
	var all []byte
	var err error
	b := make([]byte, 300_000)
	rerr := s.ReadLoop(func(uintptr) bool {
		for {
			var n int
			if r.IntN(4) == 0 {
				n, err = s.Read(b[:1+r.IntN(1000)])
			} else {
				n, err = s.Readv(vecs(r, b[:1+r.IntN(len(b))]), false)
			}
			if err == sockio.ErrAgain {
				return false
			}
			if err != nil || n == 0 {
				return true
			}
			if len(all) == 0 { // what is peeked at comes again
				var p [1]byte
				if n, err := s.Peek(p[:]); n == 1 && err == nil && !s.Readable() {
					panic("what was peeked at is not readable")
				}
			}
			all = append(all, b[:n]...)
		}
	})
	return all, errors.Join(rerr, err)
}

// Data of any shape, both ways at once, with small socket buffers, keys that change, and an
// end that both have vouched for.
func TestStream(t *testing.T) {
	a, b, client, server := ends(t, sockio.Options{SendBuffer: 20_000, RecvBuffer: 20_000})
	client.answer.Store(true)
	server.answer.Store(true)
	r := rand.New(rand.NewPCG(1, 2))
	data := [2][]byte{make([]byte, 5<<20), make([]byte, 3<<20)}
	for i := range data {
		for j := range data[i] {
			data[i][j] = byte(r.Uint32())
		}
	}
	var wg sync.WaitGroup
	for i, s := range []*sockio.Conn{a, b} {
		wg.Go(func() {
			if err := writeAll(s, rand.New(rand.NewPCG(3, uint64(i))), data[i]); err != nil {
				t.Error(err)
			}
			if err := s.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			got, err := readAll(s, rand.New(rand.NewPCG(4, uint64(i))))
			if err != nil || !bytes.Equal(got, data[1-i]) {
				t.Errorf("%d bytes of %d, %v", len(got), len(data[1-i]), err)
			}
		})
	}
	wg.Wait()
}

// A stream that is cut, or changed, is an error, and the peer learns of the change.
func TestStreamBreaks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	a, b, client, _ := ends(t, sockio.Options{})
	client.Conn.Close()
	if _, err := readAll(b, r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %v", err)
	}
	a, b, client, _ = ends(t, sockio.Options{})
	client.mu.Lock()
	client.appendLocked(typeData, []byte("x"))
	client.wbuf[7] ^= 1
	client.flushLocked()
	client.mu.Unlock()
	_, err := readAll(b, r)
	wants(t, "changed", err, BadRecordMAC, false)
	_, err = readAll(a, r)
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
