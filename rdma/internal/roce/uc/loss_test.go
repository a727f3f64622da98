package uc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"softiser/rdma/internal/roce/lossy"
	"softiser/rdma/internal/verbs"
)

// sentMessage is a message that a lossy network was given.
type sentMessage struct {
	op       verbs.Opcode
	body     []byte
	lost     bool // at least one of its packets does not arrive whole
	arrivals int  // how often it has completed
}

// stream sends messages of 0 to 5 packets over a lossy network, several of which are on
// their way at once, and checks each completion as it comes: the number at the beginning of
// the message, or in its immediate data, says which one it has to be, to the last byte.
type stream struct {
	*rig
	net      *lossy.Network
	messages []*sentMessage
	order    []int // of the messages that have arrived
	bufs     map[uint64][]byte
	posted   uint64
}

const (
	maxBody   = 5*256 - 3
	placeSize = maxBody + 3 // of a WRITE in the peer's memory: each has its own, of some
	places    = 1 << 16 / placeSize
)

func (s *stream) run(count int) {
	for i := range count {
		for len(s.bufs) < 32 { // also what a broken message has taken comes back
			s.posted++
			s.bufs[s.posted] = s.Buffer(s.t, maxBody)
		}
		s.send(i)
		if s.net.Rand.IntN(3) == 0 || i%places == places-1 {
			s.arrive()
		}
	}
	s.arrive()
}

// send queues message i, and gives its packets to the network.
func (s *stream) send(i int) {
	r := s.net.Rand
	m := &sentMessage{op: []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpWriteImm}[r.IntN(3)], body: make([]byte, 4+r.IntN(maxBody-4))}
	for j := range m.body {
		m.body[j] = byte(r.Uint32())
	}
	binary.BigEndian.PutUint32(m.body, uint32(i))
	s.messages = append(s.messages, m)
	if !s.Queue(m.op, m.body, func(e *verbs.WQE) {
		e.Imm, e.Remote = uint64(i), verbs.RemoteAddr{TO: uint64(i % places * placeSize), STag: s.key}
	}) {
		s.t.Fatal("no room in the send queue")
	}
	s.posted++ // the numbers of requests and buffers are one row
	for s.tx.Next(&s.out) {
		if s.net.Send(0, &s.out) == 0 {
			m.lost = true
		}
	}
	s.tx.Sent()
	if wcs := s.Completions(); len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess {
		s.t.Fatalf("message %d: %+v", i, wcs)
	}
}

// arrive has everything arrive that is on its way.
func (s *stream) arrive() {
	for s.net.InFlight() > 0 {
		_, p, whole := s.net.Take()
		if !whole {
			continue
		}
		s.rx.Receive(&p)
		for _, wc := range s.rx.TakeWCs(nil) {
			s.completed(wc)
		}
	}
}

func (s *stream) completed(wc verbs.WC) {
	buf := s.bufs[wc.ID]
	delete(s.bufs, wc.ID)
	if wc.Status != verbs.StatusSuccess || buf == nil {
		s.t.Fatalf("%+v", wc)
	}
	i := int(wc.Imm)
	if wc.Flags&verbs.WCWithImm == 0 {
		i = int(binary.BigEndian.Uint32(buf))
	}
	m := s.messages[i]
	if m.op == verbs.OpWriteImm {
		buf = s.mem[i%places*placeSize:]
	}
	if int(wc.ByteLen) != len(m.body) || !bytes.Equal(buf[:len(m.body)], m.body) {
		s.t.Fatalf("message %d of %d bytes has arrived with %d, or other bytes", i, len(m.body), wc.ByteLen)
	}
	m.arrivals++
	s.order = append(s.order, i)
}

// A message arrives as it was sent, or not at all, whatever the network does: each fault by
// itself and all of them, of one packet in ten thousand to one in twenty. Where packets are
// lost or damaged alone, exactly those messages arrive that have lost none, in order.
func TestFaults(t *testing.T) {
	const count = 3000
	for name, of := range lossy.Each {
		for i, share := range []float64{0.0001, 0.001, 0.01, 0.05} {
			t.Run(fmt.Sprintf("%s/%v", name, share), func(t *testing.T) {
				s := &stream{rig: newRig(t), net: lossy.New(t, uint64(200+i), of(share)), bufs: map[uint64][]byte{}}
				s.run(count)
				s.check()
			})
		}
	}
}

func (s *stream) check() {
	f := s.net.Faults
	exact := f.Late == 0 && f.Twice == 0
	lost, again, missing := 0, 0, 0
	for i, m := range s.messages {
		switch {
		case m.lost && m.arrivals > 0:
			s.t.Fatalf("message %d has lost a packet and arrived", i)
		case m.lost:
			lost++
		case m.arrivals == 0 && exact:
			s.t.Errorf("message %d has lost nothing and not arrived", i)
		case m.arrivals == 0:
			missing++
		}
		again += max(0, m.arrivals-1)
	}
	if exact {
		for j := 1; j < len(s.order); j++ {
			if s.order[j] <= s.order[j-1] {
				s.t.Errorf("message %d has arrived after %d", s.order[j], s.order[j-1])
			}
		}
	}
	if again > 0 && f.Twice == 0 {
		s.t.Errorf("%d messages arrived again", again)
	}
	if share := max(f.Lost, f.Twice, f.Late, f.Damaged); share >= 0.01 {
		switch {
		case f.Lost+f.Damaged > 0 && lost == 0:
			s.t.Error("nothing was lost")
		case f.Late > 0 && missing == 0:
			s.t.Error("packets that overtake each other broke no message")
		case f.Twice > 0 && again+missing == 0:
			s.t.Error("nothing has come twice")
		}
	}
	if len(s.order) < len(s.messages)/4 {
		s.t.Errorf("%d of %d messages have arrived", len(s.order), len(s.messages))
	}
}
