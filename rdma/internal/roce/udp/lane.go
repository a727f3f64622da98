package udp

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Lane sends from one source port. It may be used by several goroutines, each with a
// Burst of its own.
type Lane struct {
	s      *socket
	port   uint16
	gso    atomic.Bool
	sends  *atomic.Uint64 // calls of all lanes of the port
	mayGSO bool           // what the configuration says
	stat   laneCounters
}

// sendBuffer is what a lane may have given to the kernel and not to the device, bytes:
// more than a window of packets, so that senders seldom wait.
const sendBuffer = 2 << 20

type laneCounters struct{ calls, messages, failed atomic.Uint64 }

// LaneStats counts what a Lane has done.
type LaneStats struct {
	Calls    uint64 // system calls
	Messages uint64 // given to the kernel
	Failed   uint64 // refused by it, for a reason other than a full socket
}

// Stats is a snapshot.
func (l *Lane) Stats() LaneStats {
	return LaneStats{l.stat.calls.Load(), l.stat.messages.Load(), l.stat.failed.Load()}
}

// SourcePort is the UDP source port, which the ICRC covers.
func (l *Lane) SourcePort() uint16 { return l.port }

// MaxPackets is how many packets a message may have: 1 where they cannot be cut by the
// kernel. The IPv4 identification that the ICRC covers is a packet's place in its
// message, from 0.
func (l *Lane) MaxPackets() int {
	if l.gso.Load() {
		return maxPackets
	}
	return 1
}

// ErrAgain: the socket has no room now. TrySend goes on behind what was sent.
var ErrAgain error = unix.EAGAIN

// ErrFault: memory of a message cannot be read.
var ErrFault error = unix.EFAULT

// TooLongError says that a packet does not fit the path: the MTU of the interface, or
// of one further on, is smaller than the one agreed on. It is unix.EMSGSIZE.
type TooLongError struct{ Bytes int }

// Error names the size.
func (e *TooLongError) Error() string {
	return fmt.Sprintf("rdma: a packet of %d bytes of UDP does not fit the path: make the MTU of the network larger, or the path MTU of the connection smaller", e.Bytes)
}

// Unwrap is EMSGSIZE.
func (e *TooLongError) Unwrap() error { return unix.EMSGSIZE }

// TrySend sends what of b has not been sent, in as few calls as possible and without
// blocking. An error other than ErrAgain and ErrNoGSO is about one message, which
// counts as sent: lost, and the next TrySend goes on behind it.
func (l *Lane) TrySend(b *Burst) error {
	b.lane = l
	if err := l.s.rc.Control(b.try); err != nil {
		return err
	}
	return b.err
}

// Send is TrySend that waits while the socket is full.
func (l *Lane) Send(b *Burst) error {
	b.lane = l
	if err := l.s.rc.Write(b.wait); err != nil {
		return err
	}
	return b.err
}

// send gives the kernel what is left of a burst. It ends at a message that the kernel refuses, which is counted and left out.
func (l *Lane) send(fd uintptr, b *Burst) error {
	for b.sent < b.n {
		l.stat.calls.Add(1)
		l.sends.Add(1)
		n, err := mmsg(unix.SYS_SENDMMSG, fd, b.hdrs[b.sent:b.n])
		b.sent += n
		l.stat.messages.Add(uint64(n))
		if err == nil {
			continue
		}
		if err == ErrAgain {
			return err
		}
		if b.cut[b.sent] && (errors.Is(err, unix.EIO) || errors.Is(err, unix.EINVAL)) {
			l.gso.Store(false)
			return ErrNoGSO
		}
		l.stat.failed.Add(1)
		b.sent++
		if errors.Is(err, unix.EMSGSIZE) {
			// Kernels before 6.13 say EINVAL of several such packets in one message.
			l.gso.Store(l.mayGSO)
			return &TooLongError{b.sizes[b.sent-1]}
		}
		return fmt.Errorf("rdma: send: %w", err)
	}
	return nil
}
