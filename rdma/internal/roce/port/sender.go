package port

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime/debug"

	"softiser/internal/memfault"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/udp"
)

// Sender sends the packets of one queue pair to its peer, or datagrams to anybody: Add and
// AddTo make them, with their ICRC, Flush gives them to the kernel in as few calls as
// possible. It is for one goroutine at a time, and allocates nothing once it has been in
// use with the same peers.
//
// Payload goes by reference, unless Add is told to copy it. Memory that may change
// before it is sent must be copied: its ICRC would be wrong, and the packet lost. A READ's answer
// comes from such memory, as whoever owns it may write to it meanwhile.
type Sender struct {
	p     *Port
	lane  *udp.Lane
	peer  *destination                // of a connected queue pair; nil
	peers map[netip.Addr]*destination // of one for datagrams
	last  *destination                // of the message that is being put together; nil: there is none
	ect   ect                         // what the packets of that message are
	ecn   bool                        // see EnableECN
	burst *udp.Burst
	slab  []byte // headers, copied payload, trailers; never moved: a larger one takes its place
	full  int    // bytes in slabs before it since Flush
	queue []queued
	segs  [][]byte // of all packets in queue: headers, payload, trailer
}

// ect is whether a packet is ECN-capable, so that routers may mark it (RFC 3168 §5).
type ect uint8

const (
	notECT ect = iota
	ect0
	anyECT // whichever the message is that the packet joins
)

// EnableECN makes the requests of a connected queue pair ECN-capable: its peer reports marks
// by CNPs, and this side slows down. Acknowledgements always are ECN-capable; that is how two
// ends of this implementation recognise each other, as nothing in the connection request says
// it. Answers to READs never are, as nothing here slows them down.
func (s *Sender) EnableECN() { s.ecn = true }

func (s *Sender) ectOf(op packet.Opcode) ect {
	switch t := op.Traits(); {
	case s.peer == nil || op.Service() != packet.RC:
		return notECT
	case t&packet.Response == 0 && s.ecn:
		return ect0
	case t&packet.Response != 0 && t&packet.Read == 0:
		return anyECT
	}
	return notECT
}

// destination is where packets go.
type destination struct {
	peer *udp.Peer
	flow *packet.Flow
}

// queued is a packet that has been added.
type queued struct {
	to          *destination
	message     int // of the burst
	first, last int // its pieces in Sender.segs
}

// slabLen and maxQueued bound what is added between two calls of Flush: the window of
// rxe is 128 packets. A slab of firstSlab is for those who send little, or by reference.
const (
	slabLen   = 256 << 10
	firstSlab = 4 << 10
	maxQueued = 128
)

// Sender makes a Sender. label picks the source port: one queue pair always uses the
// same one, so that its packets stay in order on their way.
func (p *Port) Sender(peer netip.Addr, label uint32) (*Sender, error) {
	s := p.newSender(label)
	to, err := s.destination(peer)
	s.peer = to
	return s, err
}

// DatagramSender makes a Sender for AddTo; label is as with Sender.
func (p *Port) DatagramSender(label uint32) *Sender {
	s := p.newSender(label)
	s.peers = map[netip.Addr]*destination{}
	return s
}

func (p *Port) newSender(label uint32) *Sender {
	return &Sender{p: p, lane: p.udp.Lane(label), burst: udp.NewBurst(), queue: make([]queued, 0, maxQueued)}
}

// room sees to room for n bytes in the slab; false when there is none before Flush.
func (s *Sender) room(n int) bool {
	switch {
	case len(s.slab)+n <= cap(s.slab):
		return true
	case s.full+len(s.slab)+n > slabLen:
		return false
	}
	s.full += len(s.slab)
	s.slab = make([]byte, 0, min(max(firstSlab, 2*cap(s.slab), n), slabLen))
	return true
}

func (s *Sender) destination(a netip.Addr) (*destination, error) {
	to, err := s.p.udp.Peer(a)
	if err != nil {
		return nil, err
	}
	from := netip.AddrPortFrom(s.p.Addr(), s.lane.SourcePort())
	return &destination{to, packet.NewFlow(from, netip.AddrPortFrom(to.Addr(), udp.PortNumber))}, nil
}

// maxPeers bounds the addresses that a Sender of datagrams remembers.
const maxPeers = 1024

// AddTo is Add for a datagram to any address, or multicast group.
func (s *Sender) AddTo(a netip.Addr, pkt *packet.Packet, pieces [][]byte, n int, copied bool) (bool, error) {
	to := s.peers[a]
	if to == nil {
		var err error
		if to, err = s.destination(a); err != nil {
			return false, err
		}
		if len(s.peers) >= maxPeers {
			clear(s.peers)
		}
		s.peers[a] = to
	}
	return s.add(to, pkt, pieces, n, copied)
}

// ErrFault: payload cannot be read. Its packet was not added.
var ErrFault = errors.New("rdma: the memory of a packet's payload cannot be read")

// Add adds a packet with n bytes of payload, which lie in pieces. With copied, they
// are the caller's again at once, else after Flush. False without an error says that
// there is no room before Flush.
func (s *Sender) Add(pkt *packet.Packet, pieces [][]byte, n int, copied bool) (bool, error) {
	return s.add(s.peer, pkt, pieces, n, copied)
}

// add queues one packet for a destination; false: there is no room for it, or it can never be sent (the error).
func (s *Sender) add(to *destination, pkt *packet.Packet, pieces [][]byte, n int, copied bool) (bool, error) {
	need := packet.MaxHeader + packet.MaxTrailer
	if copied {
		need += n
	}
	if len(s.queue) == maxQueued || !s.room(need) {
		return false, nil
	}
	count := len(pieces) + 2
	if copied {
		count = 1
	}
	size := pkt.Op.Len(n)
	if len(s.segs)+count > udp.MaxPieces {
		return false, s.whole(size, count)
	}
	mark := s.ectOf(pkt.Op)
	if to != s.last || mark != s.ect && mark != anyECT || s.burst.Packets() >= s.lane.MaxPackets() || !s.burst.Fits(size, count) {
		if !s.begin(to, mark, size, count) {
			return false, s.whole(size, count)
		}
	}
	slab, segs := len(s.slab), len(s.segs)
	if !s.build(to.flow, pkt, pieces, n, copied) {
		s.slab, s.segs = s.slab[:slab], s.segs[:segs]
		if s.burst.Packets() == 0 {
			s.withdraw()
		}
		return false, ErrFault
	}
	s.burst.Packet(s.segs[segs:]...)
	s.queue = append(s.queue, queued{to, s.burst.Len() - 1, segs, len(s.segs)})
	return true, nil
}

// begin begins a message, if a packet of size bytes in count pieces fits behind those that
// there are.
func (s *Sender) begin(to *destination, mark ect, size, count int) bool {
	if !s.burst.Message(to.peer, size) {
		return false
	}
	if s.ect = min(mark, ect0); s.ect == ect0 {
		s.burst.MarkECT()
	}
	if s.last = to; !s.burst.Fits(size, count) {
		s.withdraw()
		return false
	}
	return true
}

// withdraw takes back a message without a packet.
func (s *Sender) withdraw() {
	s.burst.Withdraw()
	s.last = nil
}

// whole says whether a packet would not even fit an empty Sender.
func (s *Sender) whole(size, count int) error {
	if len(s.queue) > 0 {
		return nil
	}
	return fmt.Errorf("rdma: a packet of %d bytes in %d pieces of memory cannot be sent", size, count)
}

// build appends a packet to slab and segs, with the ICRC for the place that it will
// have in its message; false if its payload cannot be read.
func (s *Sender) build(flow *packet.Flow, pkt *packet.Packet, pieces [][]byte, n int, copied bool) (ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	start := len(s.slab)
	s.slab = packet.Append(s.slab, pkt, n)
	size, place := pkt.Op.Len(n), uint16(s.burst.Packets())
	head := s.slab[start:]
	sum := flow.Begin(head, size, place)
	if copied {
		for _, p := range pieces {
			s.slab, sum = sum.AppendCopy(s.slab, p)
		}
		s.slab = sum.AppendTrailer(s.slab, n)
		s.segs = append(s.segs, s.slab[start:])
		return true
	}
	for _, p := range pieces {
		sum = sum.Add(p)
	}
	tail := len(s.slab)
	s.slab = sum.AppendTrailer(s.slab, n)
	s.segs = append(s.segs, head)
	s.segs = append(s.segs, pieces...)
	s.segs = append(s.segs, s.slab[tail:])
	return true
}

// Flush sends what has been added. An error is about one of the packets and those that
// left with it in one message, or about all of them with net.ErrClosed; the others have
// been sent, and what was not is lost, as on the way.
func (s *Sender) Flush() error {
	defer s.reset()
	var first error
	for s.burst.Sent() < s.burst.Len() {
		err := s.lane.Send(s.burst)
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return err
		case err == udp.ErrNoGSO:
			err = s.singly(s.burst.Sent())
			if first == nil {
				first = err
			}
			return first
		case first == nil:
			first = err
		}
	}
	return first
}

func (s *Sender) reset() {
	s.burst.Reset()
	clear(s.segs)
	s.last = nil
	s.slab, s.full, s.queue, s.segs = s.slab[:0], 0, s.queue[:0], s.segs[:0]
}

// singly sends the packets of a message and those behind it, each by itself and with
// the ICRC for that: the kernel, or the device, does not cut messages here.
func (s *Sender) singly(message int) (first error) {
	s.burst.Reset()
	for i := range s.queue {
		q := &s.queue[i]
		if q.message < message {
			continue
		}
		segs := s.segs[q.first:q.last]
		if !sign(q.to.flow, segs) {
			first = ErrFault
			continue
		}
		size := 0
		for _, p := range segs {
			size += len(p)
		}
		s.burst.Message(q.to.peer, size)
		s.burst.Packet(segs...)
		for s.burst.Sent() < s.burst.Len() {
			if err := s.lane.Send(s.burst); errors.Is(err, net.ErrClosed) {
				return err
			} else if err != nil && first == nil {
				first = err
			}
		}
		s.burst.Reset()
	}
	return first
}

// sign writes the ICRC of a packet by itself to its end.
func sign(flow *packet.Flow, segs [][]byte) (ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	size := 0
	for _, p := range segs {
		size += len(p)
	}
	head, tail := segs[0], segs[len(segs)-1]
	if len(segs) == 1 {
		head = head[:len(head)-packet.ICRCLen]
	}
	sum := flow.Begin(head, size, 0)
	if len(segs) > 1 {
		for _, p := range segs[1 : len(segs)-1] {
			sum = sum.Add(p)
		}
		sum = sum.Add(tail[:len(tail)-packet.ICRCLen])
	}
	sum.AppendTrailer(tail[:len(tail)-packet.ICRCLen], 0)
	return true
}
