package udp

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
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
	place  int // of the packet that is handed on in its message

	// The call that is being made, and the function that makes it for RawConn.
	n    int
	err  error
	wait func(fd uintptr) bool
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

func newReceiver(s *socket, buffer int) *Receiver {
	b := &batch{mem: make([]byte, batchLen*maxJoined)}
	for i := range b.hdrs {
		b.iov[i].Base = &b.mem[i*maxJoined]
		b.iov[i].SetLen(maxJoined)
	}
	r := &Receiver{s: s, buffer: buffer, b: b}
	r.wait = func(fd uintptr) bool {
		r.n, r.err = r.b.receive(fd)
		return r.err != ErrAgain
	}
	return r
}

// Close ends a Receiver that Port.Join has made; Receive comes back with net.ErrClosed.
func (r *Receiver) Close() { _ = r.s.nc.Close() }

// Buffer is the size of the socket's receive buffer as the kernel counts it: a packet
// takes about twice its payload there. What comes when it is full is lost.
func (r *Receiver) Buffer() int { return r.buffer }

// Stats is a snapshot.
func (r *Receiver) Stats() ReceiverStats {
	s := ReceiverStats{Calls: r.stat.calls.Load(), Messages: r.stat.messages.Load(), Packets: r.stat.packets.Load(), Cut: r.stat.cut.Load()}
	_ = r.s.rc.Control(func(fd uintptr) { s.Lost = uint64(drops(fd)) }) // of a closed port: 0
	return s
}

// Receive waits for packets and hands those that have come to f one by one, with where
// they are from, in the order in which they came from there. The memory is f's until it
// returns. One call of Receive is one system call, after which the caller may do what
// is due once per batch. The error is net.ErrClosed after Port.Close.
func (r *Receiver) Receive(f func(from netip.AddrPort, packet []byte)) error {
	if err := r.s.rc.Read(r.wait); err != nil {
		return err
	}
	r.stat.calls.Add(1)
	if r.err != nil {
		return fmt.Errorf("rdma: receive: %w", r.err)
	}
	r.stat.messages.Add(uint64(r.n))
	for i := range r.n {
		h := &r.b.hdrs[i]
		if h.hdr.Flags&unix.MSG_TRUNC != 0 {
			r.stat.cut.Add(1)
			continue
		}
		from := addrPort(&r.b.from[i])
		p := r.b.mem[i*maxJoined:][:h.n]
		size := r.b.ctls[i].segment(int(h.hdr.Controllen))
		if size <= 0 {
			size = max(len(p), 1)
		}
		for r.place = 0; len(p) > 0; r.place++ {
			one := p[:min(size, len(p))]
			p = p[len(one):]
			f(from, one)
		}
		r.stat.packets.Add(uint64(r.place))
	}
	return nil
}

// Place is where the packet that Receive is handing on was in the message that the kernel
// has joined it to, from 0: often what its sender's kernel has numbered it as.
func (r *Receiver) Place() int { return r.place }

func (b *batch) receive(fd uintptr) (int, error) {
	for i := range b.hdrs {
		h := &b.hdrs[i].hdr
		*h = unix.Msghdr{
			Name: (*byte)(unsafe.Pointer(&b.from[i])), Namelen: unix.SizeofSockaddrInet6,
			Iov: &b.iov[i], Control: &b.ctls[i][0],
		}
		h.SetIovlen(1)
		h.SetControllen(cmsgLen)
	}
	return mmsg(unix.SYS_RECVMMSG, fd, b.hdrs[:])
}
