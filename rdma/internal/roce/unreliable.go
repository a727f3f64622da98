package roce

import (
	"net/netip"

	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// unacknowledged is the machine of a type of queue pairs whose packets nobody
// acknowledges: UC or UD.
type unacknowledged interface {
	// take executes a packet, which was sent to an address of ours.
	take(from, to netip.Addr, p *packet.Packet)
	// next makes o the next packet to send; to is nil for the one peer.
	next(o *message.Outgoing) (to *verbs.AddressHandle, ok bool)
	// unreadable says that the payload of the packet that next has made last cannot be read.
	unreadable()
	// sent completes the requests whose packets have left, or are lost.
	sent()
	err() error
	takeWCs(wcs []verbs.WC) []verbs.WC
	flush()
}

// Unreliable is the engine of a queue pair of the types UC, with Connect, Join or Accept,
// and UD, with Open.
type Unreliable struct {
	base
	datagrams bool // of the type UD

	// Guarded by Mu, from the connection on.
	m      unacknowledged
	groups []netip.Addr // that it has joined
	qkey   uint32
}

// NewUC is NewRC for the type UC.
func NewUC(d *Device, v *verbs.QP) error { return newUnreliable(d, v, &Unreliable{}) }

// NewUD is NewRC for the type UD.
func NewUD(d *Device, v *verbs.QP) error { return newUnreliable(d, v, &Unreliable{datagrams: true}) }

func newUnreliable(d *Device, v *verbs.QP, u *Unreliable) error {
	if err := u.init(d, v, u); err != nil {
		return err
	}
	v.Engine = u
	return nil
}

// Reads is 0: there are none; see verbs.Engine.
func (u *Unreliable) Reads() int { return 0 }

// take takes one packet for the queue pair: the port's Handler.
func (u *Unreliable) take(from netip.AddrPort, p *packet.Packet) {
	u.takeFor(u.port.Addr(), from, p)
}

// takeFor is take for one that was sent to the port's address, or to a group's.
func (u *Unreliable) takeFor(to netip.Addr, from netip.AddrPort, p *packet.Packet) {
	u.Mu.Lock()
	defer u.Mu.Unlock()
	if u.Dying.Load() {
		return
	}
	u.gotLocked(p)
	u.noteECNLocked(p)
	if p.Op == packet.CNP { // nothing here slows down what nobody acknowledges
		u.port.count.cnpIgnored.Add(1)
		return
	}
	u.heard = u.heard || p.Op.Service() == packet.UC // who takes datagrams waits for nobody
	u.m.take(from.Addr().Unmap(), to, p)
}

// batchEnd completes the receives of packets that have come at once.
func (u *Unreliable) batchEnd() {
	u.Mu.Lock()
	defer u.Mu.Unlock()
	if !u.Dying.Load() {
		u.settleLocked()
	}
}

// settleLocked sends what there is to send, and completes what has ended. Preconditions:
// the queue pair is connected, and not dying.
func (u *Unreliable) settleLocked() {
	u.pumpLocked()
	u.publishLocked()
	u.failedLocked()
	u.wakeLocked(u.drainedLocked())
}

// failedLocked ends the queue pair if its machine has come to an end.
func (u *Unreliable) failedLocked() {
	if err := u.m.err(); err != nil {
		u.FailLocked(err)
	}
}

// pumpLocked sends packets. Their requests are over when the kernel has them.
func (u *Unreliable) pumpLocked() {
	u.more = false
	if !u.open {
		return
	}
	u.sendCNPLocked()
	n := 0
	for ; n < turn; n++ {
		to, ok := u.m.next(&u.out)
		if !ok {
			break
		}
		if !u.addLocked(to) {
			u.m.unreadable()
		}
		u.out.Release()
	}
	u.more = n == turn
	u.unsentLocked(u.send.Flush())
	u.m.sent()
}

// addLocked hands a packet to the sender; false when its payload cannot be read.
func (u *Unreliable) addLocked(to *verbs.AddressHandle) bool {
	o := &u.out
	return u.sendLocked(func() (bool, error) {
		if to == nil {
			return u.send.Add(&o.Packet, o.Payload, o.N, false)
		}
		return u.send.AddTo(to.Addr, &o.Packet, o.Payload, o.N, false)
	})
}

// publishLocked completes the receives that have ended, and counts.
func (u *Unreliable) publishLocked() {
	if u.wcs = u.m.takeWCs(u.wcs[:0]); len(u.wcs) > 0 && !u.RecvCQ.AddAll(u.wcs) {
		u.FailLocked(verbs.ErrOverflow)
	}
	u.countLocked(0)
}

// drainedLocked says whether the end is to begin that was asked for.
func (u *Unreliable) drainedLocked() bool { return u.emptyLocked() }

// dueLocked says whether the pump is to go on.
func (u *Unreliable) dueLocked() bool { return u.more }

// teardown ends the queue pair: the last thing that the loop does.
func (u *Unreliable) teardown() {
	u.port.Detach(u.Num)
	u.Mu.Lock()
	u.stopClosingLocked()
	groups := u.groups
	u.groups = nil
	u.Mu.Unlock()
	for _, g := range groups {
		u.port.DetachGroup(g, u.Num)
	}
	u.announceEnd()

	u.Mu.Lock()
	u.m.flush()
	u.publishLocked()
	u.flushUnlock()
}

// startLocked makes the queue pair ready to send and receive. begin must follow.
func (u *Unreliable) startLocked(hp *hostPort, i Info) (hook func()) {
	u.port, u.info = hp, i
	u.open = u.datagrams || i.Initiator
	u.told = u.open
	u.Connected = true
	u.wg.Add(1)
	return u.SetState(verbs.StateRTS)
}
