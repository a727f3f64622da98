package attach

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/await"
)

// load is an NBD client with one connection and many requests under way, which writes, reads
// back and compares until it is told to stop. It never connects again.
type load struct {
	nc    net.Conn
	first int // of its areas
	depth int

	stop     atomic.Bool
	done     atomic.Uint64
	wg       sync.WaitGroup
	received chan struct{}
	mu       sync.Mutex // guards the rest, and writing to nc
	waiting  map[uint64]chan []byte
	err      error
	gaps     []time.Duration // between two replies
}

const loadArea = 256 << 10 // bytes of one of the requests under way

// startLoad connects to a socket, and works in so many areas from the first on; its connection is served until the test's end.
// When it returns a request has been answered: the handshake is over at the server, too, which may be asked to rest.
func startLoad(t *testing.T, network, addr string, first, depth int) *load {
	t.Helper()
	nc, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	greet(t, nc)
	l := &load{nc: nc, first: first, depth: depth, waiting: map[uint64]chan []byte{}}
	l.received = make(chan struct{})
	go func() { defer close(l.received); l.receive() }()
	for i := range depth {
		l.wg.Go(func() { l.fail(l.verify(i)) })
	}
	await.True(t, "a first request is answered", func() bool { return l.done.Load() > 0 || l.stop.Load() })
	return l
}

// greet takes the default export.
func greet(t *testing.T, nc net.Conn) {
	t.Helper()
	hello := make([]byte, 18)
	if _, err := io.ReadFull(nc, hello); err != nil {
		t.Fatal(err)
	}
	nc.Write([]byte{0, 0, 0, 3})                                 // fixed newstyle, no zeroes
	nc.Write([]byte("IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x00")) // the default export
	if _, err := io.ReadFull(nc, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
}

// requestHeader is a request of NBD without payload.
func requestHeader(cmd uint16, cookie, off uint64, n int) []byte {
	be := binary.BigEndian
	q := be.AppendUint32(nil, 0x25609513)
	q = be.AppendUint16(be.AppendUint16(q, 0), cmd)
	return be.AppendUint32(be.AppendUint64(be.AppendUint64(q, cookie), off), uint32(n))
}

// silent is an NBD client that asks and takes no replies.
type silent struct{ net.Conn }

// talk connects a silent client to a socket, until the test's end.
func talk(t *testing.T, socket string) silent {
	t.Helper()
	nc, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	greet(t, nc)
	return silent{nc}
}

// ask sends a request for n bytes: 0 reads, 1 writes zeroes.
func (c silent) ask(t *testing.T, cmd uint16, off uint64, n int) {
	t.Helper()
	q := requestHeader(cmd, 0, off, n)
	if cmd == 1 {
		q = append(q, make([]byte, n)...)
	}
	if _, err := c.Write(q); err != nil {
		t.Fatal(err)
	}
}

// waits is how many requests have been sent and not answered.
func (l *load) waits() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// end stops the load and returns what has gone wrong.
func (l *load) end() error {
	l.stop.Store(true)
	l.nc.SetDeadline(time.Now().Add(60 * time.Second))
	l.wg.Wait()
	l.nc.Close()
	<-l.received
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// pauses are the longest n times that nothing was answered, the longest first.
func (l *load) pauses(n int) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.gaps)
	slices.Sort(all)
	slices.Reverse(all)
	return all[:min(n, len(all))]
}

func (l *load) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	if err != nil {
		l.stop.Store(true)
		l.nc.Close()
	}
}

// verify is what one of the requests under way is for.
func (l *load) verify(i int) error {
	rng := rand.New(rand.NewPCG(1, uint64(i)))
	held := make([]byte, loadArea)
	if err := l.do(1, i, 0, held); err != nil {
		return err
	}
	for !l.stop.Load() {
		off := rng.IntN(loadArea/4096) * 4096
		n := 4096 * (1 + rng.IntN(min(8, (loadArea-off)/4096)))
		p := held[off : off+n]
		for k := range p {
			p[k] = byte(rng.Uint32())
		}
		if err := l.do(1, i, off, p); err != nil {
			return err
		}
		if rng.IntN(8) == 0 {
			if err := l.do(3, i, 0, nil); err != nil {
				return err
			}
		}
		got := make([]byte, n)
		if err := l.do(0, i, off, got); err != nil {
			return err
		}
		if !bytes.Equal(got, p) {
			return fmt.Errorf("area %d, %d bytes at %d: what was read is not what was written", i, n, off)
		}
	}
	return nil
}

// do is one request: 0 reads into p, 1 writes p, 3 flushes.
func (l *load) do(cmd uint16, i, off int, p []byte) error {
	cookie := uint64(i)<<32 | uint64(len(p))
	if cmd != 0 {
		cookie = uint64(i) << 32
	}
	at := uint64((l.first+i)*loadArea + off)
	if cmd == 3 {
		at = 0
	}
	q := requestHeader(cmd, cookie, at, len(p))
	if cmd == 1 {
		q = append(q, p...)
	}
	ch := make(chan []byte, 1)
	l.mu.Lock()
	l.waiting[cookie] = ch
	_, err := l.nc.Write(q)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	got, ok := <-ch
	if !ok {
		return io.ErrUnexpectedEOF
	}
	copy(p, got)
	return nil
}

// receive takes replies.
func (l *load) receive() {
	last := time.Now()
	for {
		var h [16]byte
		if _, err := io.ReadFull(l.nc, h[:]); err != nil {
			l.over(err)
			return
		}
		cookie := binary.BigEndian.Uint64(h[8:])
		if errno := binary.BigEndian.Uint32(h[4:]); errno != 0 {
			l.over(fmt.Errorf("errno %d", errno))
			return
		}
		p := make([]byte, uint32(cookie))
		if _, err := io.ReadFull(l.nc, p); err != nil {
			l.over(err)
			return
		}
		l.done.Add(1)
		now := time.Now()
		l.mu.Lock()
		if gap := now.Sub(last); gap > time.Millisecond {
			l.gaps = append(l.gaps, gap)
		}
		ch := l.waiting[cookie]
		delete(l.waiting, cookie)
		l.mu.Unlock()
		last = now
		if ch == nil {
			l.over(fmt.Errorf("a reply to %#x, which was not asked for, or twice", cookie))
			return
		}
		ch <- p
	}
}

// over ends everybody's waiting.
func (l *load) over(err error) {
	if !l.stop.Load() {
		l.fail(fmt.Errorf("the connection: %w", err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for cookie, ch := range l.waiting {
		close(ch)
		delete(l.waiting, cookie)
	}
}
