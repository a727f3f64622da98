package port

import (
	"net/netip"
	"runtime"
	"sync"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/udp"
)

// maxStrangers bounds what is kept of sources that no queue pair is connected to: they
// can reach queue pair 1 alone, and a forged address costs nothing to make up.
const maxStrangers = 256

// receiver is the goroutine of one receiving socket. Fields without a remark are its own.
type receiver struct {
	p     *Port
	rx    *udp.Receiver
	local netip.AddrPort
	start time.Time
	now   time.Duration // since start, of the batch; 0 before its first packet
	pkt   packet.Packet
	ecn   packet.ECN  // of the datagram that is being taken
	busy  []*endpoint // those that have had packets of the batch, and want to know its end

	mu        sync.Mutex // guards what follows; a leaf
	endpoints map[uint32]*endpoint
	spins     map[uint32]time.Duration // by queue pair number
	peers     map[netip.Addr]*source
	strangers map[netip.Addr]*source
}

// endpoint is a queue pair that packets are for.
type endpoint struct {
	peer netip.Addr // or the zero address
	take Handler
	end  func() // of a batch; or nil
	busy bool   // the goroutine's: it is in receiver.busy
}

// source is what is known of the packets from one address. flow and ids are the
// goroutine's, users is guarded by receiver.mu.
type source struct {
	flow  *packet.Flow
	ids   packet.IDs
	users int // endpoints that it is the peer of
}

func newReceiver(p *Port, rx *udp.Receiver, local netip.Addr, start time.Time) *receiver {
	return &receiver{
		p: p, rx: rx, local: netip.AddrPortFrom(plain(local), udp.PortNumber), start: start,
		endpoints: map[uint32]*endpoint{}, spins: map[uint32]time.Duration{}, peers: map[netip.Addr]*source{}, strangers: map[netip.Addr]*source{},
	}
}

// loop receives until the port is closed.
func (r *receiver) loop() {
	_ = r.rx.Serve(func(from netip.AddrPort, b []byte) {
		r.ecn = packet.ECN(r.rx.ECN())
		r.take(from, b, uint16(r.rx.Place()))
	}, r.endBatch)
}

func (r *receiver) endBatch() {
	r.now = 0
	for i, e := range r.busy {
		e.busy, r.busy[i] = false, nil
		e.end()
	}
	r.busy = r.busy[:0]
}

// take checks one datagram and hands it on, with what its identification is likely to be.
// What costs least comes first, and nothing is kept of a packet before all of it has passed.
func (r *receiver) take(from netip.AddrPort, b []byte, likely uint16) {
	c := &r.p.stat
	var err error
	if r.pkt, err = packet.Parse(b); err != nil {
		c.malformed.Add(1)
		return
	}
	if r.pkt.PKey&^fullMember != packet.DefaultPKey&^fullMember {
		c.badPKey.Add(1)
		return
	}
	addr := from.Addr()
	r.mu.Lock()
	e := r.endpoints[r.pkt.QPN]
	if e == nil {
		r.mu.Unlock()
		c.noQP.Add(1)
		return
	}
	if e.peer.IsValid() && e.peer != addr {
		r.mu.Unlock()
		c.notPeer.Add(1)
		return
	}
	s := r.sourceLocked(addr)
	r.mu.Unlock()

	if r.now == 0 {
		r.now = time.Since(r.start)
	}
	s.flow.SetSrcPort(from.Port())
	id, ok := s.flow.Check(b, likely)
	if !ok {
		c.badICRC.Add(1)
		return
	}
	if s.flow.V4() && !s.ids.Accept(id, r.now) {
		c.strangeID.Add(1)
		return
	}
	c.packets.Add(1)
	r.pkt.ECN = r.ecn
	if e.end != nil && !e.busy {
		e.busy = true
		r.busy = append(r.busy, e)
	}
	e.take(from, &r.pkt)
}

// fullMember is the bit of a P_Key that is not compared: the port is a full member, so
// that limited members may speak with it (IBA vol. 1 §10.9.1.1).
const fullMember = 0x8000

// sourceLocked finds what is known of packets from addr. A new stranger takes the
// place of any other, when there are too many.
func (r *receiver) sourceLocked(addr netip.Addr) *source {
	if s := r.peers[addr]; s != nil {
		return s
	}
	s := r.strangers[addr]
	if s == nil {
		if len(r.strangers) >= maxStrangers {
			for other := range r.strangers {
				delete(r.strangers, other)
				break
			}
		}
		s = r.newSource(addr)
		r.strangers[addr] = s
	}
	return s
}

func (r *receiver) newSource(addr netip.Addr) *source {
	return &source{flow: packet.NewFlow(netip.AddrPortFrom(addr, 0), r.local)}
}

func (r *receiver) attach(qpn uint32, peer netip.Addr, h Handler, end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endpoints[qpn] = &endpoint{peer: peer, take: h, end: end}
	r.spinLocked()
	if !peer.IsValid() {
		return
	}
	s := r.peers[peer]
	if s == nil {
		if s = r.strangers[peer]; s == nil {
			s = r.newSource(peer)
		}
		delete(r.strangers, peer)
		r.peers[peer] = s
	}
	s.users++
}

func (r *receiver) spinFor(qpn uint32, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endpoints[qpn] == nil {
		return // it has ended meanwhile
	}
	r.spins[qpn] = d
	r.spinLocked()
}

func (r *receiver) spinLocked() { r.rx.Spin(r.longestSpin(), r.alone()) }

// alone reports whether the receiver may hold the processor while it waits: packets are for
// one queue pair, but for management, and there is one processor for whatever that wakes up.
// With a second one, what a packet wakes up is taken over there, and waiting in the poller is
// as quick. The caller holds r.mu.
func (r *receiver) alone() bool {
	n := len(r.endpoints)
	if r.endpoints[mad.GSIQPN] != nil {
		n--
	}
	return n == 1 && runtime.GOMAXPROCS(0) == 1
}

// longestSpin is what the queue pairs want: off, auto and durations are in this order as
// numbers. The caller holds r.mu.
func (r *receiver) longestSpin() time.Duration {
	longest := sockio.BusyPollOff
	for _, d := range r.spins {
		longest = max(longest, d)
	}
	return longest
}

func (r *receiver) detach(qpn uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.endpoints[qpn]
	if e == nil {
		return
	}
	delete(r.endpoints, qpn)
	delete(r.spins, qpn)
	r.spinLocked()
	if s := r.peers[e.peer]; s != nil {
		if s.users--; s.users == 0 {
			delete(r.peers, e.peer)
		}
	}
}
