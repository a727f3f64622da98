package udp

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softiser/internal/sockio"
)

// Sizes of a Batch: messages per call, and bytes for each. The kernel joins packets to
// at most 64 KiB.
const (
	batchLen  = 16
	maxJoined = 64 << 10
)

// Receiver is one socket that receives. One goroutine at a time uses it.
type Receiver struct {
	s      *socket
	buffer int
	b      *batch
	stat   receiverCounters
	place  int   // of the packet that is handed on in its message
	ecn    uint8 // of the message
	spin   atomic.Int64
	alone  atomic.Bool
	waiter sockio.Waiter
	call   *sockio.InCall
	closed atomic.Bool           // it was made by Port.Join, and is to give its socket back
	ending atomic.Bool           // Serve is to leave
	failed atomic.Pointer[error] // why the last call brought nothing

	// What Serve was given, and what RawConn calls, and with which descriptor.
	take func(from netip.AddrPort, packet []byte)
	end  func()
	err  error
	wait func(fd uintptr) bool
	fd   uintptr
}

type receiverCounters struct{ calls, messages, packets, cut atomic.Uint64 }

// ReceiverStats counts what a Receiver has had.
type ReceiverStats struct {
	Calls    uint64 // system calls
	Messages uint64 // received by them
	Packets  uint64 // in them: more, where the kernel has joined packets
	Cut      uint64 // messages dropped because they were longer than any can be
	Lost     uint64 // packets that the kernel has dropped, mostly because Buffer was full; modulo 2^32
}

// batch is what one call receives into.
type batch struct {
	hdrs [batchLen]mmsghdr
	iov  [batchLen]unix.Iovec
	from [batchLen]unix.RawSockaddrInet6
	ctls [batchLen]cmsgBuf
	mem  []byte
}

func (p *Port) newReceiver(s *socket, buffer int) *Receiver {
	b := &batch{mem: make([]byte, batchLen*maxJoined)}
	for i := range b.hdrs {
		b.iov[i].Base = &b.mem[i*maxJoined]
		b.iov[i].SetLen(maxJoined)
	}
	r := &Receiver{s: s, buffer: buffer, b: b}
	r.wait = r.ready
	r.Spin(sockio.BusyPollOff, false)
	r.waiter.InitSocket((*looks)(r), (*looks)(r), sockio.BusyPollOff, &p.crowd)
	_ = s.control(func(o *sockopts) { r.call = sockio.NewInCall(o.fd, &p.sends) })
	r.waiter.WaitIn(r.call)
	return r
}

// Close ends a Receiver that Port.Join has made and Serve serves: Serve gives the socket back
// and returns net.ErrClosed. Close does not wait for that, as take may wait for the caller.
func (r *Receiver) Close() {
	r.closed.Store(true)
	r.ending.Store(true)
	_ = r.s.nc.SetReadDeadline(time.Unix(1, 0)) // wakes it up
}

// Buffer is the size of the socket's receive buffer as the kernel counts it: a packet
// takes about twice its payload there. What comes when it is full is lost.
func (r *Receiver) Buffer() int { return r.buffer }

// Stats is a snapshot.
func (r *Receiver) Stats() ReceiverStats {
	s := ReceiverStats{Calls: r.stat.calls.Load(), Messages: r.stat.messages.Load(), Packets: r.stat.packets.Load(), Cut: r.stat.cut.Load()}
	_ = r.s.rc.Control(func(fd uintptr) { s.Lost = uint64(drops(fd)) }) // of a closed port: 0
	return s
}

// Serve hands the packets that come to take one by one, with where they are from, in the
// order in which they came from there. The memory is take's until it returns. end is called
// behind the packets of one system call, for what is due once per batch. It returns
// net.ErrClosed after Port.Close, and nothing before: what the kernel lacks now (ENOBUFS, ENOMEM),
// and what it tells a socket once, is the loss of a packet at most; see Err.
func (r *Receiver) Serve(take func(from netip.AddrPort, packet []byte), end func()) error {
	r.take, r.end = take, end
	for {
		err := r.s.rc.Read(r.wait)
		if r.closed.Load() {
			_ = r.s.nc.Close()
			return net.ErrClosed
		}
		if err != nil {
			return err
		}
		if r.err == nil {
			continue
		}
		if r.Err() != nil { // not for the first time
			time.Sleep(time.Millisecond)
		}
		err = fmt.Errorf("rdma: receive: %w", r.err)
		r.err = nil
		r.failed.Store(&err)
	}
}

// Err is why nothing comes: the newest error of receiving, nil when packets have come since.
func (r *Receiver) Err() error {
	if err := r.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Spin makes the Receiver look for packets for so long before it sleeps, or for
// sockio.BusyPollAuto where that pays; for sockio.BusyPollOff, as at first, not at all. It
// may wait in the call that receives then, if alone says that all packets are for one queue
// pair: nobody else waits for the processor meanwhile.
func (r *Receiver) Spin(d time.Duration, alone bool) {
	r.spin.Store(int64(d))
	r.alone.Store(alone)
}

// ready is what RawConn calls: it returns false to wait for more.
func (r *Receiver) ready(fd uintptr) bool {
	r.fd = fd
	r.waiter.SetLimit(time.Duration(r.spin.Load()))
	r.call.Forbid(!r.alone.Load())
	return r.waiter.Ready(fd)
}

// looks is a Receiver as its Waiter sees it.
type looks Receiver

func (l *looks) Ready() bool      { return (*Receiver)(l).drain() }
func (l *looks) Between() bool    { return true } // what comes is whole
func (l *looks) Within() bool     { return false }
func (l *looks) Arrivals() uint64 { return l.stat.messages.Load() }

// Quiet does nothing: SO_RCVLOWAT is of streams (datagram_poll).
func (l *looks) Quiet(bool) {}

// Readable looks at the next datagram and leaves it there. An error, which the kernel tells
// once, is no more than the loss of a packet.
func (l *looks) Readable() bool {
	var b [1]byte
	_, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, l.fd, uintptr(unsafe.Pointer(&b)), 1, unix.MSG_DONTWAIT|unix.MSG_PEEK, 0, 0)
	return e != unix.EAGAIN && e != unix.EINTR || l.ending.Load()
}

// drain hands on what has come, call by call, until the socket is empty: a call that did
// not fill its messages has emptied it, and what has come since raises an event, so that
// nobody needs to look once more. True says that Serve is to see to the end.
func (r *Receiver) drain() bool {
	for {
		n, err := r.receive()
		switch {
		case err == ErrAgain:
			return r.ending.Load()
		case err != nil:
			r.err = err
			return true
		}
		r.batch(n)
		switch {
		case r.ending.Load():
			return true
		case n < batchLen:
			return false
		}
	}
}

// batch hands on the messages of one call.
func (r *Receiver) batch(n int) {
	r.call.Came()
	r.stat.calls.Add(1)
	if r.failed.Load() != nil {
		r.failed.Store(nil)
	}
	r.stat.messages.Add(uint64(n))
	for i := range n {
		h := &r.b.hdrs[i]
		if h.hdr.Flags&unix.MSG_TRUNC != 0 {
			r.stat.cut.Add(1)
			continue
		}
		from := addrPort(&r.b.from[i])
		p := r.b.mem[i*maxJoined:][:h.n]
		size, ecn := r.b.ctls[i].received(int(h.hdr.Controllen))
		if r.ecn = ecn; size <= 0 {
			size = max(len(p), 1)
		}
		for r.place = 0; len(p) > 0; r.place++ {
			one := p[:min(size, len(p))]
			p = p[len(one):]
			r.take(from, one)
		}
		r.stat.packets.Add(uint64(r.place))
	}
	r.end()
}

// Place is where the packet that Serve is handing on was in the message that the kernel
// has joined it to, from 0: often what its sender's kernel has numbered it as.
func (r *Receiver) Place() int { return r.place }

// ECN is the field of the IP header of the packet that Serve is handing on (RFC 3168 §5).
func (r *Receiver) ECN() uint8 { return r.ecn }

// receive is one call, and how many messages it has brought.
func (r *Receiver) receive() (int, error) {
	b := r.b
	for i := range b.hdrs {
		h := &b.hdrs[i].hdr
		*h = unix.Msghdr{
			Name: (*byte)(unsafe.Pointer(&b.from[i])), Namelen: unix.SizeofSockaddrInet6,
			Iov: &b.iov[i], Control: &b.ctls[i][0],
		}
		h.SetIovlen(1)
		h.SetControllen(len(b.ctls[i]))
	}
	if r.call.Flags() == 0 {
		return await(r.fd, b.hdrs[:])
	}
	return mmsg(unix.SYS_RECVMMSG, r.fd, b.hdrs[:])
}
