package sockio

import (
	"encoding/binary"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The reader of a TCP socket is told that it has taken everything, so that it can
// wait without one more system call that finds the socket empty.
//
// The Go poller reports edges: an event is reported once, whatever is left. A reader
// may therefore wait when nothing lies in the socket that came before its last read;
// what comes later raises an event of its own, which the poller keeps for it. What
// may lie there is
//
//   - data: a short read shows that there is none, and so does TCP_INQ;
//   - the end of the stream: TCP_INQ, a control message that Linux 4.18 and later add to
//     what recvmsg returns, is not 0 when a FIN has come;
//   - a reset: only a call that meets it tells. If it came before the data was read but
//     after the poller had been asked, it has raised an event of its own. If it came
//     together with the data, in one event, nothing would ever tell.
//
// For the last case there is a lookout: a timer that runs only after a reader has
// waited on the word of TCP_INQ, at most once in Lookout. It asks whether the
// connection has ended, without taking the error, and raises the event again. So a reset behind data is
// noticed when something is sent, or within Lookout.

// Lone counts the wake-ups in a row that brought one message each. Where messages come one by
// one, a reader asks whether its read has emptied the socket (Ask). Where they come in batches the
// next ones may well arrive while these are handled, and looking once more is cheaper than waiting.
type Lone int

const loneProof = 4

// Proved reports whether messages come one by one.
func (l Lone) Proved() bool { return l == loneProof }

// Brought enters that a wake-up has brought n messages.
func (l *Lone) Brought(n uint64) {
	switch {
	case n > 1:
		*l = 0
	case n == 1 && *l < loneProof:
		*l++
	}
}

// Lookout is how long a reset may go unnoticed that came together with the last data.
const Lookout = 100 * time.Millisecond

// Inq belongs to the reader of one socket. The zero value knows nothing.
type Inq struct {
	rc    syscall.RawConn
	timer *time.Timer
	armed atomic.Bool // the timer runs
	ask   func(fd uintptr)
	one   unix.Iovec
	ctl   [24]byte // CMSG_SPACE of an int
}

// Enable asks the kernel for the control message. It stays off for sockets that are
// not TCP and on systems that do not have it. fd belongs to rc.
func (q *Inq) Enable(rc syscall.RawConn, fd int) {
	if unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_INQ, 1) == nil {
		q.rc = rc
	}
}

// Known reports whether the socket can tell.
func (q *Inq) Known() bool { return q.rc != nil }

// Recv is recvmsg into v with h, which belongs to the reader, and with flags. empty:
// neither data nor the end of the stream is left in the socket. soon: the memory is
// resident, so that the Go scheduler need not be told of the call.
// Preconditions: Known.
func (q *Inq) Recv(fd int, h *unix.Msghdr, v []unix.Iovec, soon bool, flags uintptr) (n int, empty bool, e syscall.Errno) {
	h.Iov, h.Iovlen = unsafe.SliceData(v), uint64(len(v))
	h.Control, h.Controllen = &q.ctl[0], uint64(len(q.ctl))
	var r uintptr
	if soon {
		r, _, e = unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(h)), flags)
	} else {
		r, _, e = unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(h)), flags)
	}
	if e == 0 {
		n, empty = int(r), r > 0 && q.left(int(h.Controllen)) == 0
	}
	*h = unix.Msghdr{}
	return n, empty, e
}

// Recv1 is Recv into p, soon.
func (q *Inq) Recv1(fd int, h *unix.Msghdr, p []byte, flags uintptr) (n int, empty bool, e syscall.Errno) {
	q.one = unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))}
	n, empty, e = q.Recv(fd, h, unsafe.Slice(&q.one, 1), true, flags)
	q.one.Base = nil
	return n, empty, e
}

// left reads the control message, n bytes; -1 when it is another one.
//
//	 0        8       12      16      20
//	+--------+-------+-------+-------+
//	| length | level | type  | bytes |
//	+--------+-------+-------+-------+
func (q *Inq) left(n int) int {
	c := q.ctl[:]
	if n < 20 || binary.NativeEndian.Uint64(c) != 20 || binary.NativeEndian.Uint32(c[8:]) != unix.IPPROTO_TCP || binary.NativeEndian.Uint32(c[12:]) != unix.TCP_CM_INQ {
		return -1
	}
	return int(binary.NativeEndian.Uint32(c[16:]))
}

// Waits is called by the reader before it waits because Recv has said that the socket
// is empty.
func (q *Inq) Waits() {
	if q.armed.Load() {
		return // the timer has not looked yet; when it does, it sees what was there before now
	}
	q.armed.Store(true)
	if q.timer != nil {
		q.timer.Reset(Lookout)
		return
	}
	q.ask = func(fd uintptr) {
		// Of its own: the next look may begin while this one is still under way.
		p := []unix.PollFd{{Fd: int32(fd)}} // POLLHUP is always told
		if n, err := unix.Poll(p, 0); err == nil && n == 1 && p[0].Revents&unix.POLLHUP != 0 {
			_ = unix.Shutdown(int(fd), unix.SHUT_RD)
		}
	}
	q.timer = time.AfterFunc(Lookout, q.look)
}

// look is the timer. Shutting down the receiving side of a connection that has been
// reset changes nothing but wakes everybody up who waits for it.
func (q *Inq) look() {
	q.armed.Store(false)
	_ = q.rc.Control(q.ask)
}

// Stop ends the lookout, before the socket is closed. The reader is gone.
func (q *Inq) Stop() {
	if q.timer != nil {
		q.timer.Stop()
	}
}

// PeerEnded reports whether the peer has ended its side of a socket, also while bytes
// are left in it. What is looked at afterwards is all that will ever come.
func PeerEnded(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1
}
