package sockio

import (
	"bytes"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"softiser/internal/loopback"
)

func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	c, s := loopback.Pair(t)
	var err error
	if a, err = New(c, Options{}); err != nil {
		t.Fatal(err)
	}
	if b, err = New(s, Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func vecs(parts ...[]byte) []Vec {
	v := make([]Vec, len(parts))
	for i, p := range parts {
		Set(&v[i], p)
	}
	return v
}

func TestSkip(t *testing.T) {
	parts := [][]byte{[]byte("ab"), []byte("cde"), []byte("f")}
	for n := range 7 {
		left := Skip(vecs(parts...), n)
		total := 0
		for _, v := range left {
			total += int(v.Len)
		}
		if total != 6-n {
			t.Errorf("after %d of 6 bytes %d are left", n, total)
		}
		if n < 6 && *left[0].Base != "abcdef"[n] {
			t.Errorf("after %d bytes the next is %c", n, *left[0].Base)
		}
	}
}

func TestVectored(t *testing.T) {
	a, b := pair(t)
	if n, err := b.Read(make([]byte, 1)); n != 0 || err != ErrAgain {
		t.Fatalf("empty socket: %d, %v", n, err)
	}
	if n, err := a.Writev(vecs([]byte("he"), []byte("llo "), []byte("world")), false); n != 11 || err != nil {
		t.Fatal(n, err)
	}
	x, y := make([]byte, 3), make([]byte, 20)
	var n int
	var err error
	if lerr := b.ReadLoop(func(uintptr) bool { n, err = b.Readv(vecs(x, y), false); return err != ErrAgain }); lerr != nil {
		t.Fatal(lerr)
	}
	if n != 11 || err != nil || string(x)+string(y[:8]) != "hello world" {
		t.Fatal(n, err, string(x), string(y))
	}
	// A full socket takes a part, then says so.
	big := bytes.Repeat([]byte{1}, 64<<20)
	sent := 0
	for {
		n, err := a.Writev(vecs(big[sent:]), false)
		sent += n
		if err == ErrAgain {
			break
		}
		if err != nil || sent == len(big) {
			t.Fatal(sent, err)
		}
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got := 0
	if lerr := b.ReadLoop(func(uintptr) bool {
		for {
			n, err = b.Read(y)
			if got += n; err != nil || n == 0 {
				return err != ErrAgain
			}
		}
	}); lerr != nil || err != nil || got != sent {
		t.Errorf("%d of %d bytes, %v, %v", got, sent, lerr, err)
	}
}

func TestInterrupt(t *testing.T) {
	a, _ := pair(t)
	done := make(chan error, 1)
	go func() { done <- a.ReadLoop(func(uintptr) bool { return false }) }()
	a.Interrupt()
	select {
	case err := <-done:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("still waiting")
	}
	if err := a.WriteLoop(func(uintptr) bool { return false }); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

// endless is a peer that always has more to say.
type endless struct{ net.Conn }

func (l endless) NetConn() net.Conn                      { return l.Conn }
func (endless) ReadvLayer(*Conn, []Vec) (int, error)     { return 1, nil }
func (endless) ReadLayer(_ *Conn, p []byte) (int, error) { return len(p), nil }
func (endless) PeekLayer(*Conn, []byte) (int, error)     { return 1, nil }
func (endless) WritevLayer(*Conn, []Vec) (int, error)    { return 0, ErrAgain }
func (endless) Holds() bool                              { return true }
func (endless) End(*Conn) error                          { return nil }

// A peer that goes on sending does not keep a connection from its end.
func TestLingerEnds(t *testing.T) {
	nc, _ := loopback.Pair(t)
	c, err := New(endless{nc}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		c.Linger(time.Millisecond)
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(20 * time.Second):
		t.Fatal("it lasts as long as the peer sends")
	}
	c.Close()
}

func TestOptions(t *testing.T) {
	a, _ := pair(t)
	if err := Apply(a.Net(), Options{SendBuffer: 1 << 16, RecvBuffer: 1 << 16}); err != nil {
		t.Error(err)
	}
	if mss := a.MSS(); mss < 500 {
		t.Errorf("MSS %d", mss)
	}
	c, s := net.Pipe()
	defer c.Close()
	defer s.Close()
	if _, err := New(c, Options{}); err == nil {
		t.Error("a pipe in memory was taken for a socket")
	}
}

// A quiet socket lets its reader look; what has come by the end wakes it up.
func TestQuiet(t *testing.T) {
	a, b := pair(t)
	if b.Readable() {
		t.Error("an empty socket is readable")
	}
	b.Quiet(true)
	done := make(chan error, 1)
	go func() {
		p := make([]byte, 8)
		done <- b.ReadLoop(func(uintptr) bool { n, err := b.Read(p); return err == nil && n == 1 })
	}()
	if n, err := a.Writev(vecs([]byte("x")), false); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b.Quiet(false)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("no event for a byte that came while the socket was quiet")
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := b.ReadLoop(func(uintptr) bool { return b.Readable() }); err != nil || !b.Readable() {
		t.Errorf("the end of the stream is not readable: %v", err)
	}
}

// The kernel tells of a reset once. Who has met it while looking has it still when the
// read that follows finds only an end.
func TestResetThatALookHasMet(t *testing.T) {
	a, b := pair(t)
	if err := a.Net().(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if err := b.ReadLoop(func(uintptr) bool { return b.Readable() }); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Read(make([]byte, 1)); n != 0 || err != nil || !errors.Is(b.End(), syscall.ECONNRESET) {
		t.Errorf("%d bytes, %v; the end: %v, want a reset", n, err, b.End())
	}
}
