package sockio

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// askedAtOnce is how many sockets are named in one call of PeersClosed: its depth of calls.
const askedAtOnce = 256

// PeersClosed calls tell with the index of each TCP connection in rcs that the other end has
// closed, though not everything that came before may have been read, or that has been closed
// here. That this end has sent FIN does not count. It takes a system call for each 256 of
// them, and returns how many.
func PeersClosed(rcs []syscall.RawConn, tell func(i int)) (calls int) {
	var q question
	q.then = q.named
	for base := 0; base < len(rcs); base += askedAtOnce {
		q.rcs, q.n = rcs[base:min(base+askedAtOnce, len(rcs))], 0
		q.put()
		for i, p := range q.sockets[:q.n] {
			if p.Fd < 0 || p.Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0 {
				tell(base + i)
			}
		}
	}
	return q.calls
}

// question is what one call of poll asks. None of the sockets can be closed during it: each is
// named inside the Control of the one before.
type question struct {
	rcs     []syscall.RawConn
	sockets [askedAtOnce]unix.PollFd // of rcs; that of one which is closed is -1, and passed over
	n       int                      // sockets that have been named
	then    func(fd uintptr)         // named
	calls   int
}

// put names the sockets that are left, and then asks.
func (q *question) put() {
	for q.n < len(q.rcs) {
		if q.rcs[q.n].Control(q.then) == nil {
			return
		}
		q.sockets[q.n].Fd = -1
		q.n++
	}
	for {
		q.calls++
		if _, err := unix.Poll(q.sockets[:q.n], 0); err != unix.EINTR {
			return
		}
	}
}

func (q *question) named(fd uintptr) {
	q.sockets[q.n] = unix.PollFd{Fd: int32(fd), Events: unix.POLLRDHUP}
	q.n++
	q.put()
}
