package main

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
)

// relay stands before a target that comes and goes: its own address stays, and it cuts
// connections.
type relay struct {
	ln   net.Listener
	wg   sync.WaitGroup
	mu   sync.Mutex
	to   string
	rnd  *rand.Rand
	cuts int // made so far
	due  int // connections that are still to be cut
	open map[net.Conn]bool
}

func newRelay(to string, seed uint64) (*relay, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{ln: ln, to: to, rnd: rand.New(rand.NewPCG(seed, 1)), open: map[net.Conn]bool{}}
	r.wg.Go(r.accept)
	return r, nil
}

func (r *relay) addr() string { return r.ln.Addr().String() }

// aim sends new connections to another target, and has the next few of them cut.
func (r *relay) aim(to string, cuts int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to, r.due = to, cuts
}

func (r *relay) close() {
	r.ln.Close()
	r.mu.Lock()
	for c := range r.open {
		c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// accept relays each connection to where the target is now, and decides after how many
// bytes it is to be cut.
func (r *relay) accept() {
	for {
		in, err := r.ln.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		to, left := r.to, int64(-1)
		if r.due > 0 {
			// Some are cut during the login, most in the middle of data.
			r.due--
			left = r.rnd.Int64N(1 << (8 + r.rnd.IntN(15)))
		}
		r.mu.Unlock()
		out, err := net.Dial("tcp", to)
		if err != nil {
			in.Close() // the target is not there just now
			continue
		}
		r.mu.Lock()
		r.open[in], r.open[out] = true, true
		r.mu.Unlock()
		end := sync.OnceFunc(func() {
			in.Close()
			out.Close()
			r.mu.Lock()
			delete(r.open, in)
			delete(r.open, out)
			r.mu.Unlock()
		})
		r.wg.Go(func() { io.Copy(in, out); end() })
		r.wg.Go(func() {
			if left < 0 {
				io.Copy(out, in)
			} else if n, _ := io.CopyN(out, in, left); n == left {
				r.mu.Lock()
				r.cuts++
				r.mu.Unlock()
			}
			end()
		})
	}
}
