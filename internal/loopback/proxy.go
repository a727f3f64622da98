package loopback

import (
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	taken  int           // connections, ever
	moved  int           // bytes, ever
	silent chan struct{} // closed by Mute; that of later connections is another
	over   chan struct{} // closed at the end
	deaf   chan struct{} // closed by Hear; nil: connections are taken
	held   chan struct{} // closed when the accepting goroutine waits for that
	queued []net.Conn    // what fills the listener's queue meanwhile
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
		p.Hear()
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

// Deaf has the kernel drop every SYN from now on, as if nobody had the address.
func (p *Proxy) Deaf(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	p.deaf, p.held = make(chan struct{}), make(chan struct{})
	held := p.held
	p.mu.Unlock()
	for i := range 100 {
		c, err := net.DialTimeout("tcp", p.Addr, 300*time.Millisecond)
		if err != nil {
			return // the queue is full
		}
		p.mu.Lock()
		p.queued = append(p.queued, c)
		p.mu.Unlock()
		if i == 0 {
			<-held // nobody takes anything out of the queue from here on
			p.backlog(t, 0)
		}
	}
	t.Fatal("the listener's queue does not fill")
}

// Hear ends what Deaf has begun.
func (p *Proxy) Hear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deaf == nil {
		return
	}
	for _, c := range p.queued {
		c.Close()
	}
	close(p.deaf)
	p.deaf, p.queued = nil, nil
}

// backlog sets how many connections may wait for accept.
func (p *Proxy) backlog(t testing.TB, n int) {
	t.Helper()
	rc, err := p.ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := rc.Control(func(fd uintptr) { err = unix.Listen(int(fd), n) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
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

// Taken returns how many connections have been made through the proxy.
func (p *Proxy) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// Moved returns how many bytes have come to the proxy from both sides, in connections that are not mute.
func (p *Proxy) Moved() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved
}

// accept joins each connection that comes with one of its own to the server, until the proxy is closed.
func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		deaf, held := p.deaf, p.held
		p.mu.Unlock()
		if deaf != nil {
			close(held)
			<-deaf
		}
		s, err := net.Dial("tcp", p.to)
		if err != nil {
			c.Close()
			continue
		}
		p.mu.Lock()
		p.conns[c], p.conns[s] = true, true
		p.taken++
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
			p.mu.Lock()
			p.moved += n
			p.mu.Unlock()
			_, err = to.Write(b[:n])
		}
		if err != nil {
			to.Close()
			from.Close()
			return
		}
	}
}
