package sockio

import (
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Tally adds up what TCP tells of connections, those that have ended included. Its zero value
// is empty. Nothing is counted while they carry data: the kernel does.
type Tally struct {
	mu   sync.Mutex // guards what follows
	live map[*Conn]struct{}
	past uint64 // of connections that have been closed
}

// Retransmits asks the kernel how many segments the connections have sent again: one system
// call for each that is open. It is nil's as well, who has none.
func (t *Tally) Retransmits() uint64 {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.past
	for c := range t.live {
		n += c.retransmits()
	}
	return n
}

func (t *Tally) enter(c *Conn) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = map[*Conn]struct{}{}
	}
	t.live[c] = struct{}{}
}

// leave is called before the socket is closed, and perhaps again.
func (t *Tally) leave(c *Conn) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.live[c]; ok {
		t.past += c.retransmits()
		delete(t.live, c)
	}
}

// retransmits is how many segments TCP has sent again; 0 of other sockets.
func (c *Conn) retransmits() (n uint64) {
	if _, ok := c.nc.(*net.TCPConn); !ok {
		return 0
	}
	_ = c.rc.Control(func(fd uintptr) { // who has closed it has left the tally before
		if ti, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = uint64(ti.Total_retrans)
		}
	})
	return n
}
