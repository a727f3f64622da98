package sockio

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/internal/await"
)

// end is a socket with an edge-triggered poller of its own, so that a test decides
// when an event is taken.
type end struct {
	t    *testing.T
	nc   net.Conn
	fd   int
	epfd int
	inq  Inq
	h    unix.Msghdr
}

func newEnd(t *testing.T, nc net.Conn) *end {
	t.Helper()
	rc, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	e := &end{t: t, nc: nc}
	_ = rc.Control(func(fd uintptr) { e.fd = int(fd) })
	if e.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff}
	if err := unix.EpollCtl(e.epfd, unix.EPOLL_CTL_ADD, e.fd, &ev); err != nil {
		t.Fatal(err)
	}
	e.inq.Enable(rc, e.fd)
	t.Cleanup(func() {
		e.inq.Stop()
		unix.Close(e.epfd)
		nc.Close()
	})
	return e
}

// event reports whether an event came within d.
func (e *end) event(d time.Duration) bool {
	e.t.Helper()
	var ev [1]unix.EpollEvent
	for until := time.Now().Add(d); ; {
		n, err := unix.EpollWait(e.epfd, ev[:], int(max(time.Until(until), 0)/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			e.t.Fatal(err)
		}
		return n == 1
	}
}

// settle waits until the socket is in a state, and takes all events of the way there.
func (e *end) settle(revents int16) {
	e.t.Helper()
	p := []unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	for until := time.Now().Add(time.Minute); p[0].Revents&revents != revents; {
		if _, err := unix.Poll(p, 10); err != nil && err != unix.EINTR || time.Now().After(until) {
			e.t.Fatalf("state %#x, not %#x: %v", p[0].Revents, revents, err)
		}
	}
	for e.event(0) {
	}
}

func (e *end) recv(p []byte) (int, bool, syscall.Errno) {
	return e.inq.Recv1(e.fd, &e.h, p, unix.MSG_DONTWAIT)
}

func tcpPair(t *testing.T) (*end, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	e := newEnd(t, s)
	if !e.inq.Known() {
		t.Skip("this system does not have TCP_INQ")
	}
	for e.event(0) {
	}
	return e, c.(*net.TCPConn)
}

const long = 10 * time.Second

// What a peer may do around its last four bytes. together: before the event of the
// bytes is taken; otherwise when the reader waits already.
func TestEndsOfAStream(t *testing.T) {
	for _, tc := range []struct {
		name     string
		together bool
		act      func(*end, *net.TCPConn) error
		state    int16 // of the reader's socket after it
		empty    bool  // what the read of the bytes says
		event    bool  // raised without the lookout
		end      syscall.Errno
	}{
		{"data, then nothing", true, nil, unix.POLLIN, true, false, unix.EAGAIN},
		{"data and FIN", true, halfClose, unix.POLLIN | unix.POLLRDHUP, false, false, 0},
		{"data, then FIN", false, halfClose, unix.POLLRDHUP, true, true, 0},
		{"data and close", true, closed, unix.POLLIN | unix.POLLRDHUP, false, false, 0},
		{"data and RST", true, reset, unix.POLLIN | unix.POLLHUP, true, false, unix.ECONNRESET},
		{"data, then RST", false, reset, unix.POLLHUP, true, true, unix.ECONNRESET},
		{"data, killed with unread bytes", true, unread, unix.POLLIN | unix.POLLHUP, true, false, unix.ECONNRESET},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, peer := tcpPair(t)
			if _, err := peer.Write([]byte("last")); err != nil {
				t.Fatal(err)
			}
			act := func() {
				if tc.act != nil {
					if err := tc.act(e, peer); err != nil {
						t.Fatal(err)
					}
				}
			}
			if tc.together {
				act()
				e.settle(tc.state)
			} else {
				e.settle(unix.POLLIN)
			}
			p := make([]byte, 64)
			n, empty, errno := e.recv(p)
			if n != 4 || errno != 0 || empty != tc.empty {
				t.Fatalf("%d bytes, %v, empty %v", n, errno, empty)
			}
			if !tc.together {
				act()
				if !e.event(long) {
					t.Fatal("no event for what came after the read")
				}
			} else if empty {
				if e.event(0) {
					t.Fatal("the event was not taken: this test proves nothing")
				}
				e.inq.Waits()
				if tc.end != unix.EAGAIN && !e.event(long) {
					t.Fatal("the lookout did not find the reset")
				}
			}
			if n, empty, errno = e.recv(p); n != 0 || errno != tc.end || empty {
				t.Errorf("behind the bytes: %d, %v, empty %v; want %v", n, errno, empty, tc.end)
			}
		})
	}
}

func halfClose(_ *end, c *net.TCPConn) error { return c.CloseWrite() }

func closed(_ *end, c *net.TCPConn) error { return c.Close() }

func reset(_ *end, c *net.TCPConn) error {
	if err := c.SetLinger(0); err != nil {
		return err
	}
	return c.Close()
}

// unread closes with bytes in the socket, as the kernel does for a process that was
// killed: that is a reset, too.
func unread(e *end, c *net.TCPConn) error {
	if _, err := unix.Write(e.fd, []byte("never read")); err != nil {
		return err
	}
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	_ = rc.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 64), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err == nil && n == len("never read")
	})
	return c.Close()
}

// Bytes are counted, and those that come later raise an event, also after the reader
// has closed its own direction.
func TestBytesLeft(t *testing.T) {
	e, peer := tcpPair(t)
	if err := unix.Shutdown(e.fd, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := peer.Write([]byte("abcdef")); err != nil {
			t.Fatal(err)
		}
		if !e.event(long) {
			t.Fatal("no event")
		}
		v := make([]unix.Iovec, 2)
		p := make([]byte, 4)
		for j := range v {
			v[j].Base = &p[2*j]
			v[j].SetLen(2)
		}
		if n, empty, errno := e.inq.Recv(e.fd, &e.h, v, i%2 == 0, unix.MSG_DONTWAIT); n != 4 || empty || errno != 0 || string(p) != "abcd" {
			t.Fatal(n, empty, errno, string(p))
		}
		if n, empty, errno := e.recv(p); n != 2 || !empty || errno != 0 {
			t.Fatal(n, empty, errno)
		}
		if n, empty, errno := e.recv(p); n != 0 || empty || errno != unix.EAGAIN {
			t.Fatal(n, empty, errno)
		}
		e.inq.Waits()
	}
	// The lookout leaves a healthy connection alone.
	await.True(t, "the lookout comes", func() bool { return !e.inq.armed.Load() })
	e.inq.look()
	if _, err := peer.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, empty, errno := waitRecv(e); n != 1 || !empty || errno != 0 {
		t.Error(n, empty, errno)
	}
}

func waitRecv(e *end) (int, bool, syscall.Errno) {
	e.event(long)
	return e.recv(make([]byte, 8))
}

// Sockets that are not TCP do not know.
func TestNotTCP(t *testing.T) {
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if newEnd(t, c).inq.Known() {
		t.Error("a Unix socket tells by TCP_INQ what is left")
	}
}

// A message of another kind is no answer.
func TestLeft(t *testing.T) {
	var q Inq
	if q.left(0) != -1 || q.left(len(q.ctl)) != -1 {
		t.Error("something was read out of nothing")
	}
}
