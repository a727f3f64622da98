package rc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"softiser/rdma/internal/roce/packet"
)

// linuxServing does what the responder of rxe in Linux 6.1 does (rxe_resp.c), as far as the
// order of packets matters.
type linuxServing struct {
	psn, acked packet.PSN // resp.psn, resp.ack_psn
	nakSent    bool
	kept       [2]keptAnswer // resp.resources
	next       int           // of kept
	mem        []byte
	bufs       int
	open       bool // a message has begun and not ended
	send       []byte
	write      packet.RETH // what is left of it
	length     int
	got        []string
	out        []packet.Packet
	oops       string
}

type keptAnswer struct {
	used        bool
	first, last packet.PSN
	reth        packet.RETH
	orig        uint64
}

func newLinuxServing(testing.TB) serving {
	l := &linuxServing{psn: eachPSN, acked: eachPSN, mem: make([]byte, jobMemory)}
	fillServed(l.mem)
	return l
}

func (l *linuxServing) key() uint32        { return 5 }
func (l *linuxServing) memory() []byte     { return l.mem }
func (l *linuxServing) post()              { l.bufs++ }
func (l *linuxServing) messages() []string { return l.got }
func (l *linuxServing) fault() string      { return l.oops }

func (l *linuxServing) answers() []packet.Packet {
	out := l.out
	l.out = nil
	return out
}

func (l *linuxServing) say(op packet.Opcode, psn packet.PSN, s packet.Syndrome, orig uint64) {
	l.out = append(l.out, packet.Packet{BTH: packet.BTH{Op: op, PSN: psn}, AETH: packet.AETH{Syndrome: s}, Original: orig})
}

func (l *linuxServing) request(p *packet.Packet) {
	switch d := p.PSN.Sub(l.psn); {
	case d > 0:
		if !l.nakSent {
			l.nakSent = true
			l.say(packet.Acknowledge, l.psn, packet.NAKSequence, 0)
		}
	case d < 0:
		l.duplicate(p)
	default:
		l.nakSent = false
		l.execute(p)
	}
}

// duplicate is duplicate_request.
func (l *linuxServing) duplicate(p *packet.Packet) {
	t := p.Op.Traits()
	if t&(packet.Send|packet.Write) != 0 {
		l.say(packet.Acknowledge, l.acked.Add(-1), packet.ACK, 0)
		return
	}
	for i := range l.kept {
		k := &l.kept[i]
		if !k.used || p.PSN.Sub(k.first) < 0 || p.PSN.Sub(k.last) > 0 {
			continue
		}
		if t&packet.Atomic != 0 {
			l.say(packet.AtomicAcknowledge, p.PSN, packet.ACK, k.orig)
			return
		}
		if h := &p.RETH; h.VA < k.reth.VA || h.Len > k.reth.Len || h.VA+uint64(h.Len) > k.reth.VA+uint64(k.reth.Len) {
			return
		}
		k.reth.VA = p.RETH.VA
		l.read(p, p.PSN == k.first)
		return
	}
}

// read is read_reply, to the end. What goes on in the middle of a READ begins with Middle.
func (l *linuxServing) read(p *packet.Packet, first bool) packet.PSN {
	psn, at, left := p.PSN, int(p.RETH.VA), int(p.RETH.Len)
	for {
		n, op := min(left, packet.MTU256.Bytes()), packet.ReadResponseMid
		switch last := n == left; {
		case first && last:
			op = packet.ReadResponseOnly
		case first:
			op = packet.ReadResponseFirst
		case last:
			op = packet.ReadResponseLast
		}
		l.say(op, psn, packet.ACK, 0)
		l.out[len(l.out)-1].Payload = bytes.Clone(l.mem[at : at+n])
		psn, at, left, first = psn.Add(1), at+n, left-n, false
		if left == 0 {
			return psn
		}
	}
}

func (l *linuxServing) keep(k keptAnswer) {
	k.used = true
	l.kept[l.next] = k
	l.next = (l.next + 1) % len(l.kept)
}

// execute executes the expected packet.
func (l *linuxServing) execute(p *packet.Packet) {
	t, n := p.Op.Traits(), len(p.Payload)
	if (t&packet.First != 0) == l.open {
		l.oops = fmt.Sprintf("%v, a message open: %v", p.Op, l.open)
		return
	}
	if t&packet.Read != 0 {
		l.keep(keptAnswer{first: p.PSN, last: p.PSN.Add(max(0, (int(p.RETH.Len)-1)/packet.MTU256.Bytes())), reth: p.RETH})
		l.psn = l.read(p, true) // and not acked
		return
	}
	if l.bufs == 0 && (t&packet.Send != 0 && t&packet.First != 0 || t&packet.HasImm != 0) {
		l.say(packet.Acknowledge, p.PSN, packet.RNR|12, 0)
		return
	}
	l.psn = p.PSN.Add(1)
	l.acked = l.psn
	if t&packet.Atomic != 0 {
		orig := binary.NativeEndian.Uint64(l.mem)
		binary.NativeEndian.PutUint64(l.mem, orig+p.AtomicETH.SwapOrAdd)
		l.keep(keptAnswer{first: p.PSN, last: p.PSN, orig: orig})
		l.say(packet.AtomicAcknowledge, p.PSN, packet.ACK, orig)
		return
	}
	l.open = t&packet.Last == 0
	if t&packet.First != 0 {
		l.send, l.write, l.length = nil, p.RETH, int(p.RETH.Len)
	}
	switch {
	case t&packet.Send != 0:
		l.send = append(l.send, p.Payload...)
		if !l.open {
			l.bufs--
			l.got = append(l.got, fmt.Sprintf("%x", l.send))
		}
	case n != min(int(l.write.Len), packet.MTU256.Bytes()):
		l.oops = fmt.Sprintf("%v with %d bytes of %d", p.Op, n, l.write.Len)
	default:
		copy(l.mem[l.write.VA:], p.Payload)
		l.write.VA, l.write.Len = l.write.VA+uint64(n), l.write.Len-uint32(n)
		if t&packet.HasImm != 0 {
			l.bufs--
			l.got = append(l.got, written(l.length))
		}
	}
	if p.AckReq {
		l.say(packet.Acknowledge, p.PSN, packet.ACK, 0)
	}
}
