package loopback

import (
	"net"
	"sync"
	"testing"
)

// Proxy carries connections to an address, until they are made mute or cut. Its end is the
// test's.
type Proxy struct {
	Addr string

	to string
	ln net.Listener
	wg sync.WaitGroup

	mu     sync.Mutex // guards what follows
	conns  map[net.Conn]bool
	silent chan struct{} // closed by Mute; that of later connections is another
	over   chan struct{} // closed at the end
}

// NewProxy starts one.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	ln := listen(t)
	p := &Proxy{Addr: ln.Addr().String(), to: to, ln: ln, conns: map[net.Conn]bool{}, silent: make(chan struct{}), over: make(chan struct{})}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		ln.Close()
		close(p.over)
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Mute has every connection that is there fall silent in both directions, and stay open, as
// the power cut of a node does. New ones are carried.
func (p *Proxy) Mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.silent)
	p.silent = make(chan struct{})
}

// Cut closes every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", p.to)
		if err != nil {
			c.Close()
			continue
		}
		p.mu.Lock()
		p.conns[c], p.conns[s] = true, true
		silent := p.silent
		p.mu.Unlock()
		for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
			p.wg.Go(func() { p.carry(way[0], way[1], silent) })
		}
	}
}

// carry copies one direction.
func (p *Proxy) carry(to, from net.Conn, silent chan struct{}) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		select {
		case <-silent:
			<-p.over
			err = net.ErrClosed
		default:
		}
		if err == nil {
			_, err = to.Write(b[:n])
		}
		if err != nil {
			to.Close()
			from.Close()
			return
		}
	}
}
