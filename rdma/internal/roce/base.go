package roce

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/port"
	"softiser/rdma/internal/verbs"
)

// base is what the engines of all types of queue pairs have in common: a number, a
// goroutine, and a way out.
type base struct {
	*verbs.QP
	self   transport // the engine that this is the base of
	dev    *Device
	number *number

	wake chan struct{}  // for the loop; capacity 1
	wg   sync.WaitGroup // the loop
	low  atomic.Bool    // the shared receive queue has reached its limit: the loop tells

	// Guarded by Mu, from the connection on.
	port   *hostPort
	info   Info
	send   *port.Sender
	out    message.Outgoing
	wcs    []verbs.WC
	sent   sent // since the statistics were last brought up to date
	got    sent
	np     notification
	unsent error // the newest error of the network, for the one who asks why nobody answers
	life
}

// number is that of a queue pair. The manager has it longer than there is a queue pair, and
// must not keep all of that for it: a peer decides how often it connects.
type number struct {
	n     uint32
	users atomic.Int32 // the queue pair, and each of its connections that the manager knows
}

func (n *number) release() {
	if n.users.Add(-1) == 0 {
		host.numbers.Release(n.n)
	}
}

// sent counts packets and payload in one direction.
type sent struct{ packets, wire, payload, sends, reads uint64 }

// init takes a number for a queue pair that is not connected.
func (b *base) init(d *Device, v *verbs.QP, self transport) error {
	n, err := host.numbers.Take()
	if err != nil {
		return err
	}
	nothing := func(*mem.Region) {} // what is sent from regions is copied or sent while they are held
	v.Num, v.Mem = n, mem.Stream{Opened: nothing, Closed: nothing, Revoked: nothing}
	b.QP, b.self, b.dev, b.number, b.wake = v, self, d, &number{n: n}, make(chan struct{}, 1)
	b.number.users.Store(1)
	return nil
}

func (b *base) core() *base { return b }

// Retire gives the number back, when the last connection is forgotten too. The queue pair
// has been closed.
func (b *base) Retire() { b.number.release() }

// hold keeps the number of the queue pair for a connection, until what it returns is
// called for the first time.
func (b *base) hold() (forgotten func()) {
	b.number.users.Add(1)
	return sync.OnceFunc(b.number.release)
}

// Push sends what is queued, as far as the peer and the network allow; see verbs.Engine.
func (b *base) Push() {
	b.Mu.Lock()
	ended := b.Flushed
	if b.Connected && !b.Dying.Load() {
		b.self.settleLocked()
	}
	b.Mu.Unlock()
	if ended {
		b.SendCQ.Dispatch() // posts that were flushed at once
	}
}

// Stop has the loop see to the end; see verbs.Engine.
func (b *base) Stop() { b.kick() }

// Drain has the loop begin the end when everything is done; see verbs.Engine.
func (b *base) Drain() { b.kick() }

// Wait returns when the loop is gone; see verbs.Engine.
func (b *base) Wait() { b.wg.Wait() }

// Discard needs do nothing: the flag of the entry is looked at for every packet that
// comes, with Mu held; see verbs.Engine.
func (b *base) Discard(*verbs.WQE) {}

// SRQLow has the loop tell of it; see verbs.Engine.
func (b *base) SRQLow() {
	b.low.Store(true)
	b.kick()
}

// kick wakes the loop up.
func (b *base) kick() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// dispatch calls the handlers and the owner back, on the loop's goroutine.
func (b *base) dispatch() {
	b.SendCQ.Dispatch()
	b.RecvCQ.Dispatch()
	if b.low.Swap(false) {
		b.Owner().Event(verbs.EventSRQLimit)
	}
}

// Info is what the two ends have agreed on; the zero value before the connection.
func (b *base) Info() Info {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	return b.info
}

// unsentLocked takes note of an error of sending. What the kernel does not take is lost, as
// on the network; what it never will take ends a connection.
func (b *base) unsentLocked(err error) {
	switch {
	case err == nil:
		b.unsent = nil
	case b.info.Remote.IsValid() && fatal(err):
		b.FailLocked(err)
	case !errors.Is(err, net.ErrClosed):
		b.unsent = err
	}
}

// gotLocked counts a packet that has come.
func (b *base) gotLocked(p *packet.Packet) {
	n := len(p.Payload)
	b.got.packets++
	b.got.wire += uint64(p.Op.Len(n))
	b.got.payload += uint64(n)
}

// sendLocked hands b.out to the sender by add, and counts it; false when its payload cannot
// be read.
func (b *base) sendLocked(add func() (bool, error)) bool {
	ok, err := add()
	if err == nil && !ok {
		b.unsentLocked(b.send.Flush())
		_, err = add()
	}
	if errors.Is(err, port.ErrFault) {
		return false
	}
	b.unsentLocked(err)
	o := &b.out
	b.sent.packets++
	b.sent.wire += uint64(o.Packet.Op.Len(o.N))
	b.sent.payload += uint64(o.N)
	switch t := o.Packet.Op.Traits(); {
	case o.Packet.Op == packet.ReadRequest:
		b.sent.reads++
	case t&packet.Send != 0 && t&packet.Last != 0:
		b.sent.sends++
	}
	return true
}

// countLocked brings the statistics up to date.
func (b *base) countLocked(faults uint64) {
	if b.sent == (sent{}) && b.got == (sent{}) {
		return
	}
	b.StatMu.Lock()
	s := &b.Stats
	s.WireOut += b.sent.wire
	s.WireIn += b.got.wire
	s.SendCalls += min(b.sent.packets, 1)
	s.RecvCalls += min(b.got.packets, 1)
	s.FPDUsOut += b.sent.packets
	s.BytesOut += b.sent.payload
	s.BytesIn += b.got.payload
	s.SendsOut += b.sent.sends
	s.ReadRequestsOut += b.sent.reads
	s.Faults = faults
	b.StatMu.Unlock()
	b.port.count.add(b.sent, b.got)
	b.sent, b.got = sent{}, sent{}
}
