package sockio

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Waiting in a call. With BusyPollOff a receiver parks in the Go poller: two calls of
// epoll_pwait and a change of goroutine for each wait, and a wake-up of another thread
// where there is one. While it is the only one at work and its waits are short, it waits
// in the read itself instead, as a C program would, and the scheduler is not told: its
// processor stays with it. So there are rules:
//
//   - a stream is waited for so where Go has one processor: with more, the thread that is in
//     the poller for other sockets is woken up by each message, too, and costs more than is won;
//   - whoever else can run goes first, and only then is waited;
//   - something has been sent since the last byte came: what is waited for is the peer's
//     answer, or its next request, and not a worker of this process that wants the processor;
//   - no wait lasts longer than blockMax, and where there is one processor the poller is
//     asked each pollStreak, so that other sockets, timers and deadlines are heard;
//   - a wait that has brought nothing is followed by a rest.
//
// A socket of datagrams is waited for in its recvmmsg by the same rules, if its owner has an
// InCall and does not forbid it.

const (
	blockMax   = 5 * time.Millisecond // longest wait in a call; the kernel rounds it up to its ticks
	blockShort = time.Millisecond     // a wait that might as well have been one
	blockProof = 16                   // short waits in a row before the first one
)

// blockWait is what a Waiter with BusyPollOff remembers.
type blockWait struct {
	state blockState
	proof int           // short waits seen in a row, up to blockProof
	paid  int           // waits in a call that have brought something since the last one in vain
	rest  time.Duration // length of the last rest
	until time.Duration // when it ends
}

// blockState is where a wait in a call takes place.
type blockState uint8

const (
	blockUnknown blockState = iota // nobody has waited so yet
	blockInRead                    // in the receiver's first read
	blockBefore                    // before it: it only looks, or the scheduler is told of it
	blockNever                     // the socket cannot wait
)

// InCall is what the reads of a socket need to be able to wait. Whoever owns the socket takes
// the flags of its reads from it, and tells it of what comes; all of it belongs to the reader.
type InCall struct {
	fd     int
	sends  *atomic.Uint64 // calls that have sent something; its owner counts them
	never  bool           // the owner may hold bytes that the socket knows nothing of, or serves several peers
	wait   bool           // the next read may wait
	waited bool           // it has
	heard  uint64         // what sends was when something came last
}

// NewInCall is for the socket fd, beside which sends grows with each call that has sent
// something.
func NewInCall(fd int, sends *atomic.Uint64) *InCall { return &InCall{fd: fd, sends: sends} }

// Flags are those of a read that the scheduler is not told of. Of the one that may wait
// they are 0; when that has been interrupted it has come back in vain (Waited) and is not
// repeated.
//
// It may read to memory that others want back, which the reader holds meanwhile: with one
// processor nobody else runs before the wait is over, and should there be another one since,
// they wait for blockMax at most.
func (c *InCall) Flags() uintptr {
	if !c.wait {
		return unix.MSG_DONTWAIT
	}
	c.wait, c.waited = false, true
	return 0
}

// Came enters that a read has brought something.
func (c *InCall) Came() { c.heard = c.sends.Load() }

// Forbid makes all reads such that do not wait, or no longer so.
func (c *InCall) Forbid(on bool) { c.never = on }

// blocking is Ready under these rules.
func (w *Waiter) blocking() bool {
	b, c := &w.block, w.call
	begin := w.since
	w.crowd.awake.Add(1)
	defer func() {
		w.lastByte = clock()
		w.crowd.awake.Add(-1)
	}()
	if w.others || begin-w.lastByte > blockShort {
		b.proof = 0
	}
	for {
		before := w.sock.Arrivals()
		if w.who.Ready() {
			return true
		}
		waited, refused := c.waited, c.wait
		c.wait, c.waited = false, false
		switch {
		case w.sock.Arrivals() != before:
			b.proof++
			if waited {
				b.paid++
			}
		case waited:
			b.vain(clock())
			return false
		case refused:
			b.state = blockBefore
		default:
			return false // the event was stale: nothing has arrived
		}
		if w.enough || b.proof < blockProof || !w.who.Between() || !w.turns(begin) {
			return false
		}
		w.Blocks++
		// A read would not hear of a notice; see await.
		if b.state != blockBefore && (w.conn == nil || w.conn.byRef.Load() == 0) {
			c.wait = true
			continue
		}
		if !w.conn.await() {
			b.vain(clock())
			return false
		}
		b.paid++
	}
}

// turns lets others run, and reports whether the next wait may be one in a call then.
func (w *Waiter) turns(begin time.Duration) bool {
	b, c := &w.block, w.call
	if c.never {
		return false
	}
	if now := clock(); now < b.until || w.onlyP && now-begin > pollStreak {
		return false
	}
	if b.state == blockUnknown {
		b.state = blockInRead
		if !c.mayWait() {
			b.state = blockNever
		}
	}
	if b.state == blockNever {
		return false
	}
	runtime.Gosched()
	return c.sends.Load() != c.heard && w.crowd.awake.Load() == 1 && w.crowd.turn.Load() == w.number
}

// vain enters a wait in a call that has brought nothing.
func (b *blockWait) vain(now time.Duration) {
	if b.rest *= 2; b.paid > 64 {
		b.rest = 0
	}
	b.rest = min(max(b.rest, pollRest), pollRestMax)
	b.until, b.paid, b.proof = now+b.rest, 0, 0
}

// mayWait makes the socket one whose calls wait for blockMax unless they are told not to,
// as all of this package are; false when that cannot be.
func (c *InCall) mayWait() bool {
	t := unix.NsecToTimeval(int64(blockMax))
	if unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t) != nil {
		return false
	}
	flags, err := unix.FcntlInt(uintptr(c.fd), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(c.fd), unix.F_SETFL, flags&^unix.O_NONBLOCK)
	}
	return err == nil
}

// await waits in a call until there is something to read, an end or an error included, or a
// notice in the error queue; false when nothing has come for blockMax, or a signal has.
func (c *Conn) await() bool {
	p := unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN}
	d := unix.NsecToTimespec(int64(blockMax))
	n, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&d)), 0, 0, 0)
	return e == 0 && n == 1
}
