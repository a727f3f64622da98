package pdustream

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"softiser/internal/resident"
	"softiser/internal/sockio"
)

// Budgets of Transmitter.Turn, bytes.
const (
	PushBytes = 8 << 20 // of a caller of a protocol's Push, before the transmit goroutine goes on
	RxBytes   = 1 << 20 // of the receive goroutine, which has other work
)

// Sender is what a protocol knows of the PDUs that leave. Whoever transmits calls it, with
// the lock held but for Seal.
type Sender[T any] interface {
	// Due reports whether a transmitter has something to do.
	Due() bool
	// Open reports whether anything may be sent.
	Open() bool
	// Pick is asked once, before p is sent: false takes p out of the queue. Afterwards
	// nothing of it may be changed but by Seal.
	Pick(p *T) bool
	// Seal completes Head and Tail just before the first byte of p goes out. It is called
	// without the lock. false: the data cannot be read.
	Seal(p *T) bool
	// Gone empties a PDU for its next use that has left the queue. whole: it has been sent.
	Gone(p *T, whole bool)
	// Settle makes the up-calls that this leads to, with the lock released meanwhile, and
	// reports whether there were any.
	Settle() bool
	// Drained is called when everything has been sent. false: the socket is full, and it is called again when
	// there is room.
	Drained() bool
	// Fail ends the connection.
	Fail(err error)
}

// Transmitter is the half of a connection that sends: the queue, and whoever sends from it.
// Whoever calls Turn is the transmitter as long as the socket takes what there is; when it
// is full, the transmit goroutine waits and goes on. Methods are called with the lock held,
// except where noted.
type Transmitter[T any] struct {
	queue[T]
	mu      *sync.Mutex // the lock
	cond    *sync.Cond  // on mu; broadcast when busy or sending has ended
	sk      *sockio.Conn
	busy    bool          // somebody is the transmitter
	sending bool          // a system call is using queued PDUs
	wake    chan struct{} // wakes the transmit goroutine up; nil until it is first needed
	ready   func(uintptr) bool

	// Sends counts the system calls that have sent something. Anybody may read it.
	Sends atomic.Uint64
}

// Init makes t the only writer of sk, for src. mu is the lock that guards the queue, cond is on mu.
func (t *Transmitter[T]) Init(sk *sockio.Conn, src Sender[T], mu *sync.Mutex, cond *sync.Cond) {
	t.sk, t.src, t.mu, t.cond = sk, src, mu, cond
	t.ready = t.writable
}

// Sending reports whether a system call is using queued PDUs: what they refer to must stay.
// The cond is told when it ends.
func (t *Transmitter[T]) Sending() bool { return t.sending }

// Busy reports whether somebody is the transmitter. The cond is told when that ends.
func (t *Transmitter[T]) Busy() bool { return t.busy }

// Turn makes the caller the transmitter for up to budget bytes, unless there is one or
// nothing to do. It is called without the lock.
func (t *Transmitter[T]) Turn(budget int) {
	t.mu.Lock()
	if !t.busy && t.src.Due() {
		t.busy = true
		if t.transmit(budget) {
			t.Yield()
		} else {
			t.wakeUp()
		}
	}
	t.mu.Unlock()
}

// HandOver gives the queue to the transmit goroutine, unless somebody transmits or there is
// nothing to do.
func (t *Transmitter[T]) HandOver() {
	if t.busy || !t.src.Due() {
		return
	}
	t.busy = true
	t.wakeUp()
}

// Seize waits until nobody transmits, and keeps it so until Yield.
func (t *Transmitter[T]) Seize() {
	for t.busy {
		t.cond.Wait()
	}
	t.busy = true
}

// Yield ends that the caller is the transmitter.
func (t *Transmitter[T]) Yield() {
	t.busy = false
	t.cond.Broadcast()
}

// Stop ends the transmit goroutine, which is not transmitting.
func (t *Transmitter[T]) Stop() {
	if t.wake != nil {
		close(t.wake)
		t.wake = nil
	}
}

func (t *Transmitter[T]) wakeUp() {
	if t.wake == nil {
		t.wake = make(chan struct{}, 1)
		go t.loop(t.wake)
	}
	t.wake <- struct{}{} // busy is set by whoever wakes it up, so the slot is free
}

// loop is the transmit goroutine; it is the transmitter from each wake-up until the queue
// is empty.
func (t *Transmitter[T]) loop(wake <-chan struct{}) {
	for range wake {
		if err := t.sk.WriteLoop(t.ready); err != nil {
			t.mu.Lock()
			t.src.Fail(err)
			t.Yield()
			t.mu.Unlock()
		}
	}
}

// writable transmits in the transmit goroutine.
func (t *Transmitter[T]) writable(uintptr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.transmit(math.MaxInt) {
		return false
	}
	t.Yield()
	return true
}

// transmit sends until there is nothing to send (true), or the socket is full or the budget spent
// (false). The lock is released around system calls and up-calls.
func (t *Transmitter[T]) transmit(budget int) (empty bool) {
	for {
		if t.src.Settle() {
			continue
		}
		if !t.src.Open() {
			return true
		}
		if !t.Collect() {
			room := t.src.Drained()
			if t.src.Settle() {
				continue
			}
			return room
		}
		if budget <= 0 {
			return false
		}
		t.sending = true
		t.mu.Unlock()
		n, err := t.send()
		t.mu.Lock()
		t.sending = false
		t.cond.Broadcast()
		t.Advance(n)
		budget -= n
		switch {
		case err == nil:
		case err == sockio.ErrAgain:
			return false
		default:
			t.src.Fail(fmt.Errorf("send: %w", err))
			return true
		}
	}
}

// fetchMin is from which length on pieces are fetched ahead: a page.
const fetchMin = 4 << 10

// ErrSendFault is how a connection ends of which queued data cannot be read.
var ErrSendFault = errors.New("the memory of queued data cannot be accessed")

// send makes the one vectored call. It runs without the lock, with sending set.
func (t *Transmitter[T]) send() (int, error) {
	v := t.Gather()
	if len(v) == 0 {
		return 0, ErrSendFault
	}
	for i := range v {
		if v[i].Len >= fetchMin {
			resident.Fetch(v[i].Base)
		}
	}
	part, loaded := v, false
	if t.cold {
		part, loaded = load(v)
	}
	n, err := t.sk.Writev(part, t.soon || loaded)
	clear(v)
	if err == nil {
		t.Sends.Add(1)
	} else if err == sockio.ErrFault {
		err = ErrSendFault
	}
	return n, err
}
