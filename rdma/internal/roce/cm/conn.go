package cm

import (
	"net/netip"
	"time"

	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/verbs"
)

// Request is what the active side asks for. On the passive side it is what the peer
// asks for.
type Request struct {
	Service            mad.ServiceID
	Transport          mad.Service // RC or UC
	SrcPort            uint16      // of the active side, as rdma_cm has it
	QPN, PSN           uint32      // its queue pair; the first PSN that it expects
	ResponderResources uint8       // Reads and atomics that it serves at once
	InitiatorDepth     uint8       // … that it wants to have outstanding
	RetryCount         uint8       // 0 to 7, for the passive side's use
	RNRRetry           uint8       // 0 to 7, 7 for ever; of the passive side's requests
	MTU                uint8       // code of the path MTU: 1 to 5 for 256 to 4096 bytes
	AckTimeout         uint8       // exponent; 0 means 19 when it is sent
	TrafficClass       uint8
	FlowLabel          uint32 // 20 bits; 0 means by ports, as rdma_cm chooses it, when it is sent
	FlowControl        bool
	SRQ                bool
	Private            []byte // of the application: at most mad.UserREQ bytes when sent, always so many when received
	GUID               uint64 // received: the peer's
}

// Reply is how the passive side accepts. On the active side it is what the peer said.
type Reply struct {
	QPN, PSN           uint32 // its queue pair; the first PSN that it expects
	ResponderResources uint8
	InitiatorDepth     uint8
	RNRRetry           uint8
	AckDelay           uint8 // exponent, received only: the peer acknowledges within it
	FlowControl        bool
	SRQ                bool
	Private            []byte // at most mad.PrivateREP bytes when sent, always so many when received
	GUID               uint64 // received: the peer's
}

// Hooks are told what happens to a connection. Each is called at most once and may be
// nil; calls come one after the other in the whole Manager, without a lock, and must
// not block.
type Hooks struct {
	// Established: the peer has had our REP. Passive side only.
	Established func()
	// Ended: the connection is over: nil when the peer has answered our DREQ,
	// ErrDisconnected when it has sent its own, else what went wrong. It is not called
	// for a Connect that fails.
	Ended func(error)
	// Gone: the number of the queue pair may be given to another one. It is the last
	// call, and comes for every connection.
	Gone func()
}

// Conn is one connection, or the attempt at one. The Manager's lock guards it.
type Conn struct {
	m      *Manager
	hooks  Hooks
	active bool
	peer   netip.Addr // to compare
	to     netip.Addr // to send to

	id, remote uint32 // communication IDs; remote is 0 until the peer has told
	guid       uint64 // of the peer
	qpn        uint32 // of the peer
	localQPN   uint32
	tid        uint64
	state      State
	ended      bool // Hooks.Ended has been queued, or is not to be

	repeat repeat
	timer  *time.Timer
	armed  int // generation of timer

	peerTimeout time.Duration // within which the peer says it answers
	ackTimeout  uint8

	answer chan error // active, while Connect waits; one place
	reply  Reply      // active
	in     *Incoming  // passive, until it has been answered
}

// State is the state.
func (c *Conn) State() State {
	c.m.mu.Lock()
	defer c.m.unlock()
	return c.state
}

// Peer is the peer's address.
func (c *Conn) Peer() netip.Addr { return c.to }

// arm has expired called after d, instead of earlier requests for that.
func (c *Conn) arm(d time.Duration) {
	c.disarm()
	generation := c.armed
	c.timer = time.AfterFunc(d, func() {
		c.m.mu.Lock()
		defer c.m.unlock()
		if c.armed == generation {
			c.expired()
		}
	})
}

func (c *Conn) disarm() {
	c.armed++
	if c.timer != nil {
		c.timer.Stop()
	}
}

// sendUntil sends a message until arm or disarm is called, or it has been said often
// enough.
func (c *Conn) sendUntil(msg mad.Message, repeats int) {
	c.repeat = newRepeat(c.m.send(c.to, c.tid, msg), repeats, c.peerTimeout)
	c.arm(c.repeat.wait)
}

// expired is called when the timer has run out.
func (c *Conn) expired() {
	what := mad.AttrREQ
	switch c.state {
	case RepReceived:
		c.reject(mad.WhichREP, mad.ReasonTimeout, nil, nil)
		c.end(errSlow)
		return
	case ReqReceived:
		c.reject(mad.WhichREQ, mad.ReasonTimeout, nil, nil)
		c.end(errSlow)
		return
	case TimeWait:
		c.gone()
		return
	case RepSent:
		what = mad.AttrREP
	case DreqSent:
		what = mad.AttrDREQ
	}
	if c.repeat.next() {
		c.m.stats.Retries++
		c.m.sendAgain(c.to, what, c.repeat.b)
		c.arm(c.repeat.wait)
		return
	}
	err := errSilent(what, c.to, c.repeat.sent)
	switch c.state {
	case ReqSent:
		c.giveUp()
	case RepSent:
		c.reject(mad.WhichREP, mad.ReasonTimeout, nil, nil)
	case DreqSent:
		c.timeWait(err)
		return
	}
	c.end(err)
}

// giveUp tells the peer that the REQ is not waited for any more. As the peer's ID may
// be unknown, the GUID of our adapter goes along (IBA vol. 1 §12.6.7.2, reason 4).
func (c *Conn) giveUp() {
	var guid [8]byte
	for i := range guid {
		guid[i] = byte(c.m.cfg.GUID >> (56 - 8*i))
	}
	c.reject(mad.WhichREQ, mad.ReasonTimeout, guid[:], nil)
}

func (c *Conn) reject(about mad.Which, why mad.Reason, ari, private []byte) {
	msg := &mad.REJ{LocalCommID: c.id, RemoteCommID: c.remote, Which: about, Reason: why, InfoLength: uint8(len(ari))}
	copy(msg.ARI[:], ari)
	copy(msg.Private[:], private)
	c.m.send(c.to, c.tid, msg)
}

// endLocked tells whoever waits, or the hook, that the connection is over.
func (c *Conn) endLocked(err error) {
	if c.ended {
		return
	}
	c.ended = true
	if c.answer != nil {
		c.answerLocked(err)
	} else if f := c.hooks.Ended; f != nil {
		c.m.call(func() { f(err) })
	}
	c.forget()
}

// Forget says that nobody wants to be told any more but by Hooks.Gone: the connection keeps
// nothing else of its user.
func (c *Conn) Forget() {
	c.m.mu.Lock()
	defer c.m.unlock()
	c.ended = true
	c.forget()
}

func (c *Conn) forget() { c.hooks.Established, c.hooks.Ended = nil, nil }

// answerLocked ends Connect's wait.
func (c *Conn) answerLocked(err error) {
	c.answer <- err
	c.answer = nil
}

// end is for a connection that nothing more is expected of.
func (c *Conn) end(err error) {
	c.endLocked(err)
	c.gone()
}

// freeQP lets the peer use its queue pair for another connection.
func (c *Conn) freeQP() {
	if k := (remoteQP{c.peer, c.guid, c.qpn}); c.m.byQP[k] == c {
		delete(c.m.byQP, k)
	}
}

func (c *Conn) gone() {
	c.disarm()
	c.freeQP()
	if k := (remoteID{c.peer, c.guid, c.remote}); c.m.byID[k] == c {
		delete(c.m.byID, k)
	}
	c.setState(Gone)
	delete(c.m.conns, c.id)
	if in := c.in; in != nil {
		c.in = nil
		close(in.over)
	}
	c.m.call(c.hooks.Gone)
}

// timeWait keeps the number of the queue pair out of use until no packet to it can be
// on its way (IBA vol. 1 §12.9.8.4), and the peer's communication ID in mind, so that a
// REQ that comes late does not begin the connection again.
func (c *Conn) timeWait(err error) {
	c.endLocked(err)
	c.freeQP()
	c.setState(TimeWait)
	c.arm(2 * timeout(c.ackTimeout))
	m := c.m
	m.timeWaits = append(m.timeWaits, c)
	for m.timeWaits[0].state == Gone || len(m.timeWaits) > m.cfg.Limits.TimeWait {
		if old := m.timeWaits[0]; old.state == TimeWait {
			old.gone()
		}
		m.timeWaits = m.timeWaits[1:]
	}
}

// closeLocked ends a connection without waiting for its peer.
func (c *Conn) closeLocked() {
	switch c.state {
	case ReqSent:
		c.giveUp()
	case RepReceived:
		c.reject(mad.WhichREP, mad.ReasonConsumer, nil, nil)
	case ReqReceived:
		c.reject(mad.WhichREQ, mad.ReasonNoResources, nil, nil)
	case RepSent, Established:
		c.m.send(c.to, c.ownTID(), c.dreq())
	}
	c.end(errManagerClosed)
}

// ownTID is the transaction ID of what this side begins.
func (c *Conn) ownTID() uint64 { return c.m.tid | uint64(c.id) }

func (c *Conn) dreq() *mad.DREQ {
	return &mad.DREQ{LocalCommID: c.id, RemoteCommID: c.remote, RemoteQPN: c.qpn}
}

// Heard says that a packet of the peer has come to the queue pair: it has had our REP,
// even if its RTU was lost (IBA vol. 1 §12.9.7.2, communication established).
func (c *Conn) Heard() {
	c.m.mu.Lock()
	defer c.m.unlock()
	c.establishedLocked()
}

func (c *Conn) establishedLocked() {
	if c.state == RepSent {
		c.disarm()
		c.setState(Established)
		c.m.call(c.hooks.Established)
	}
}

// Disconnect ends the connection: Hooks.Ended follows, when the peer has answered or
// has been silent for some seconds. The queue pair should have come to rest before, as
// what is in flight is lost.
func (c *Conn) Disconnect() error {
	c.m.mu.Lock()
	defer c.m.unlock()
	switch c.state {
	case Established, RepSent:
		c.disconnectLocked()
		return nil
	case DreqSent, TimeWait, Gone:
		return nil
	}
	return verbs.ErrState
}

func (c *Conn) disconnectLocked() {
	c.setState(DreqSent)
	c.tid = c.ownTID()
	c.sendUntil(c.dreq(), repeatsDREQ)
}
