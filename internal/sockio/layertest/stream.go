// Package layertest is the suite for what lies between a sockio.Conn and its socket.
package layertest

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"softiser/internal/sockio"
)

// BothWays sends data of any shape both ways at once, and an end that both vouch for. a and b are
// the ends of one connection, best with small socket buffers.
func BothWays(t *testing.T, a, b *sockio.Conn) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	data := [2][]byte{noise(r, 5<<20), noise(r, 3<<20)}
	var wg sync.WaitGroup
	for i, s := range []*sockio.Conn{a, b} {
		wg.Go(func() {
			if err := writeAll(s, rand.New(rand.NewPCG(3, uint64(i))), data[i]); err != nil {
				t.Error(err)
			}
			if err := finish(s); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			got, err := ReadAll(s, rand.New(rand.NewPCG(4, uint64(i))))
			if err != nil || !bytes.Equal(got, data[1-i]) {
				t.Errorf("%d bytes of %d, %v", len(got), len(data[1-i]), err)
			}
		})
	}
	wg.Wait()
}

// ReadAll reads s in pieces of random lengths, in each of the ways there are, until the end of the stream.
func ReadAll(s *sockio.Conn, r *rand.Rand) ([]byte, error) {
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

// writeAll writes as iscsitcp and nvmetcp do: what the socket does not take is offered again.
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

// finish ends the stream, once the layer has said so.
func finish(s *sockio.Conn) (err error) {
	werr := s.WriteLoop(func(uintptr) bool {
		err = sockio.Finish(s)
		return err != sockio.ErrAgain
	})
	return errors.Join(werr, err, s.CloseWrite())
}

// Full ends a stream whose last data has filled the socket: both vouch for that end, too. a and b are the ends of one
// connection, best with small socket buffers.
func Full(t *testing.T, a, b *sockio.Conn) {
	t.Helper()
	n, p := 0, make([]byte, 1000)
	for full := 0; full < 20; { // what is on its way to b makes room yet
		k, err := a.Writev(sockio.Append(nil, p), false)
		switch n += k; {
		case err == sockio.ErrAgain:
			full++
			time.Sleep(time.Millisecond)
		case err != nil:
			t.Fatal(err)
		default:
			full = 0
		}
	}
	done := make(chan error, 1)
	go func() { done <- finish(a) }()
	got, err := ReadAll(b, rand.New(rand.NewPCG(1, 2)))
	if err = errors.Join(err, <-done); err != nil || len(got) != n && len(got) != n+len(p) {
		t.Errorf("%d bytes of %d, %v", len(got), n, err)
	}
}

func noise(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// Crowd is what the ends for Turns are in; nobody else is.
var Crowd sockio.Crowd

// turns is a receiver whose turns end long before all has been read.
type turns struct {
	c    *sockio.Conn
	w    sockio.Waiter
	left int
	err  error
}

// Between implements sockio.Receiver, as do the next two.
func (r *turns) Between() bool { return true }
func (r *turns) Within() bool  { return false }
func (r *turns) Ready() bool {
	for p := make([]byte, 1000); r.left > 0; {
		n, err := r.c.Read(p)
		if err == sockio.ErrAgain {
			return false
		}
		if r.left -= n; err != nil || n == 0 {
			r.err = errors.Join(err, io.ErrUnexpectedEOF)
			return true
		}
		time.Sleep(time.Millisecond) // longer than a turn is beside others
		if r.w.Enough() {
			return false
		}
	}
	return true
}

// idle is another receiver.
type idle struct{}

func (idle) Between() bool { return true }
func (idle) Within() bool  { return false }
func (idle) Ready() bool   { return true }

// Turns sends from a what b has in one segment, and reads it in many turns. a and b are the ends of one
// connection, in Crowd.
func Turns(t *testing.T, a, b *sockio.Conn) {
	t.Helper()
	const n = 20_000
	if k, err := a.Writev(sockio.Append(nil, make([]byte, n)), false); k != n || err != nil {
		t.Fatal(k, err)
	}
	r := &turns{c: b, left: n}
	r.w.Init(b, r)
	var other sockio.Waiter
	other.Init(a, idle{})
	done := make(chan error, 1)
	go func() {
		done <- b.ReadLoop(func(fd uintptr) bool {
			other.Ready(fd)
			return r.w.Ready(fd)
		})
	}()
	select {
	case err := <-done:
		if err = errors.Join(err, r.err); err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		b.Interrupt()
		<-done
		t.Errorf("it waits for an event though %d bytes can be read", r.left)
	}
}
