package initiator_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/internal/await"
)

// cutter forwards connections to a target and cuts each after a number of
// bytes, so that a connection ends in every phase and at every kind of place.
type cutter struct {
	l     net.Listener
	addr  string
	mu    sync.Mutex
	limit func() int64 // bytes in both directions until the next connection is cut; <0: never
	cuts  int
	wg    sync.WaitGroup
	conns map[net.Conn]bool
	dead  bool
}

func newCutter(t testing.TB, addr string, limit func() int64) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{l: l, addr: addr, limit: limit, conns: map[net.Conn]bool{}}
	c.wg.Add(1)
	go c.accept()
	t.Cleanup(c.close)
	return c
}

func (c *cutter) close() {
	c.l.Close()
	c.mu.Lock()
	c.dead = true
	for x := range c.conns {
		x.Close()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

func (c *cutter) accept() {
	defer c.wg.Done()
	for {
		in, err := c.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", c.addr)
		if err != nil {
			in.Close()
			continue
		}
		c.mu.Lock()
		if c.dead {
			c.mu.Unlock()
			in.Close()
			out.Close()
			return
		}
		left := c.limit()
		c.conns[in], c.conns[out] = true, true
		c.mu.Unlock()
		p := &pipe{c: c, a: in, b: out, left: left}
		c.wg.Add(2)
		go p.copy(in, out)
		go p.copy(out, in)
	}
}

// pipe is one connection through the cutter.
type pipe struct {
	c    *cutter
	a, b net.Conn
	mu   sync.Mutex
	left int64
	once sync.Once
}

func (p *pipe) copy(from, to net.Conn) {
	defer p.c.wg.Done()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		cut := false
		if p.left >= 0 {
			if int64(n) >= p.left {
				n, cut = int(p.left), true
			}
			p.left -= int64(n)
		}
		p.mu.Unlock()
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if cut {
			p.c.mu.Lock()
			p.c.cuts++
			p.c.mu.Unlock()
			err = io.EOF
		}
		if err != nil {
			p.once.Do(func() {
				p.a.Close()
				p.b.Close()
				p.c.mu.Lock()
				delete(p.c.conns, p.a)
				delete(p.c.conns, p.b)
				p.c.mu.Unlock()
			})
			return
		}
	}
}

// wasCut reports whether cuts have had every consequence that they can have.
func wasCut(c *cutter, l *initiator.LUN) bool {
	c.mu.Lock()
	n := c.cuts
	c.mu.Unlock()
	st := l.Stats()
	return n >= 3 && st.Losses > 0 && st.Replayed > 0
}

// Connections that are cut in every phase (start-up, login, look at the LUN,
// commands, data) cost no byte of what was acknowledged.
func TestConnectionsAreCut(t *testing.T) {
	t.Parallel() // it waits by the clock
	both(t, func(t *testing.T, tr initiator.Transport) {
		const size, depth = 1 << 20, 8
		s := serve(t, size, nil)
		rnd := rand.New(rand.NewPCG(7, uint64(tr)))
		first := true
		cut := newCutter(t, s.addr, func() int64 {
			if first { // the first login has to work
				first = false
				return 200_000
			}
			switch rnd.IntN(3) {
			case 0:
				return rnd.Int64N(1000) // start-up and login
			case 1:
				return 800 + rnd.Int64N(4000)
			}
			return 4000 + rnd.Int64N(400_000)
		})
		cfg := s.config(tr)
		cfg.Address = cut.l.Addr().String()
		cfg.SetBackoff(time.Millisecond, 20*time.Millisecond)
		l := openLUN(t, cfg)

		// Each slot writes its own blocks, reads them back and goes on.
		want := make([]byte, size)
		var wg sync.WaitGroup
		begun := time.Now()
		goesOn := func() bool { // a loaded machine takes longer to be cut in every phase
			took := time.Since(begun)
			return took < 3*time.Second || took < await.Deadline && !wasCut(cut, l)
		}
		for w := range depth {
			wg.Add(1)
			go func() {
				defer wg.Done()
				rnd := rand.New(rand.NewPCG(uint64(w), 3))
				lo, n := w*size/depth, size/depth
				buf := make([]byte, 64<<10)
				for goesOn() {
					k := 512 * (1 + rnd.IntN(64<<10/512-1))
					off := lo + 512*rnd.IntN((n-k)/512)
					p := buf[:k]
					for i := range p {
						p[i] = byte(rnd.Uint32())
					}
					if _, err := l.WriteAt(p, int64(off)); err != nil {
						t.Error(err)
						return
					}
					copy(want[off:], p)
					if _, err := l.ReadAt(p, int64(off)); err != nil {
						t.Error(err)
						return
					}
					if !bytes.Equal(p, want[off:off+k]) {
						t.Errorf("what was read at %d is not what was written", off)
						return
					}
				}
			}()
		}
		wg.Wait()
		tested := wasCut(cut, l)
		cut.mu.Lock()
		cut.limit = func() int64 { return -1 }
		n := cut.cuts
		cut.mu.Unlock()
		got := make([]byte, size)
		if _, err := s.vol.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Error("the volume does not hold what was acknowledged")
		}
		st := l.Stats()
		if !tested {
			t.Errorf("only %d cuts, %d losses, %d commands replayed: the test tested nothing", n, st.Losses, st.Replayed)
		}
		t.Logf("%d cuts, %d losses, %d failed logins, %d commands replayed of %d", n, st.Losses, st.LoginFailures, st.Replayed, st.Commands)
	})
}
