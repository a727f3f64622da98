package rc

import (
	"fmt"
	"strings"
	"testing"

	"softiser/internal/pcaptest"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// In the place of the responders of captured connections, this one sends what rxe sent,
// packet for packet. Not compared is what a READ's answer carries; addresses and keys
// are those of the test's memory, a key of its own for each that the capture has. Of
// acknowledgements in a row the last one counts: how many requests one covers depends
// on how fast they come.
func TestAnswersAsLinux(t *testing.T) {
	total := 0
	for _, name := range pcaptest.RoCENames(t, "") {
		switch {
		case strings.HasPrefix(name, "loss"), strings.HasPrefix(name, "retry"), name == "cm-stale-conn":
			continue // packets are missing; connections under the same numbers
		case strings.HasPrefix(name, "user"):
			continue // not Linux
		case strings.HasPrefix(name, "rc-rnr"), name == "nak-recv-too-small":
			continue // TestNoBuffer, TestTooLong: when buffers came cannot be seen
		}
		t.Run(name, func(t *testing.T) {
			for _, f := range flows(t, name) {
				total += f.replay(t, name)
			}
		})
	}
	if total < 300 {
		t.Errorf("%d answers compared", total)
	}
	t.Log(total, "answers")
}

// flow is what one end asked of the other, with the answers, in the order of the capture.
type flow struct {
	name    string
	packets []packet.Packet
}

// flows takes a capture apart. Who asks whom is told by addresses and queue pair numbers: a
// request names the responder's number, an answer the requester's, and the two of a
// connection are known from who answers whom.
func flows(t *testing.T, name string) (out []*flow) {
	type end struct {
		addr string
		qpn  uint32
	}
	peers := map[end]uint32{} // the number of the other end
	type seen struct {
		src, dst string
		packet.Packet
	}
	var all []seen
	for _, d := range pcaptest.RoCE(t, name) {
		p, err := packet.Parse(d.Payload())
		if err != nil {
			t.Fatal(err)
		}
		if p.Op.Service() == packet.RC {
			all = append(all, seen{d.Src().Addr().String(), d.Dst().Addr().String(), p})
		}
	}
	// A request's PSN comes back in its answer.
	for i, a := range all {
		if a.Op.Traits()&packet.Response != 0 {
			continue
		}
		for _, b := range all[i+1:] {
			if b.Op.Traits()&packet.Response != 0 && b.src == a.dst && b.PSN == a.PSN {
				if _, ok := peers[end{a.dst, a.QPN}]; !ok {
					peers[end{a.dst, a.QPN}] = b.QPN
				}
				break
			}
		}
	}
	byEnd := map[end]*flow{}
	for _, p := range all {
		e := end{p.dst, p.QPN}
		if p.Op.Traits()&packet.Response != 0 {
			e = end{}
			for responder, requester := range peers {
				if responder.addr == p.src && requester == p.QPN {
					e = responder
				}
			}
		}
		f := byEnd[e]
		if f == nil {
			f = &flow{name: fmt.Sprintf("to %s, QP %#x", e.addr, e.qpn)}
			byEnd[e] = f
			if e.addr != "" {
				out = append(out, f)
			}
		}
		f.packets = append(f.packets, p.Packet)
	}
	return out
}

// replay gives the requests to a responder and compares. Its answers may come out before
// rxe's are in the capture, so that only their order counts.
func (f *flow) replay(t *testing.T, name string) (compared int) {
	var got, want answersSeen
	var g *rig
	mtu, keys := f.mtu(), map[uint32]uint32{}
	for _, p := range f.packets {
		tr := p.Op.Traits()
		if tr&packet.Response != 0 {
			want.add(&p, len(p.Payload))
			continue
		}
		if g == nil {
			g = newRig(t, Params{RemoteQPN: 1, MTU: mtu, PSN: p.PSN, Resources: 128})
		}
		if tr&packet.First != 0 && tr&packet.Send != 0 || tr&packet.HasImm != 0 {
			g.post(t, 1<<16)
		}
		g.aim(t, &p, keys, name)
		for _, r := range g.give(p) {
			got.add(&r.Packet, len(r.data))
		}
		g.TakeWCs(nil)
	}
	if g == nil {
		t.Fatalf("%s: answers without requests", f.name)
	}
	// Some captures are the first packets of long runs.
	if strings.HasPrefix(name, "ib_") && len(want.lines) > 0 {
		n := len(want.lines) - 1
		got.lines, want.lines = got.lines[:min(n, len(got.lines))], want.lines[:n]
	}
	for i := range max(len(got.lines), len(want.lines)) {
		if a, b := got.at(i), want.at(i); a != b {
			t.Errorf("%s: answer %d is\n%s, was\n%s", f.name, i, a, b)
			return compared
		}
		compared++
	}
	return compared
}

// answersSeen are answers as lines.
type answersSeen struct {
	lines []string
	ack   bool // the last one acknowledges
}

func (s *answersSeen) add(p *packet.Packet, n int) {
	ack := p.Op == packet.Acknowledge && p.AETH.Syndrome.IsACK()
	if ack && s.ack {
		s.lines = s.lines[:len(s.lines)-1]
	}
	s.ack, s.lines = ack, append(s.lines, line(p, n))
}

func (s *answersSeen) at(i int) string {
	if i < len(s.lines) {
		return s.lines[i]
	}
	return "nothing"
}

// mtu is what the packets in the middle of messages show.
func (f *flow) mtu() packet.MTU {
	for _, p := range f.packets {
		if tr := p.Op.Traits(); tr&packet.Last == 0 {
			for m := packet.MTU256; m.Valid(); m++ {
				if m.Bytes() == len(p.Payload) {
					return m
				}
			}
		}
	}
	return packet.MTU1024
}

// aim changes a captured request so that it means memory of the test, and what was wrong
// with it in the capture still is.
func (g *rig) aim(t *testing.T, p *packet.Packet, keys map[uint32]uint32, name string) {
	own := func(key *uint32) {
		if keys[*key] == 0 {
			a := everything
			if name == "nak-no-right" {
				a = mem.ZeroBased
			}
			keys[*key], _ = g.open(t, g.mem, a)
		}
		*key = keys[*key]
	}
	switch name {
	case "nak-bad-rkey":
		return
	case "nak-out-of-bounds":
		p.RETH.VA += rigMemory
	default:
		p.RETH.VA, p.AtomicETH.VA = p.RETH.VA%4096, p.AtomicETH.VA%4096
	}
	tr := p.Op.Traits()
	if tr&packet.HasRETH != 0 {
		own(&p.RETH.RKey)
	}
	if tr&packet.HasAtomicETH != 0 {
		own(&p.AtomicETH.RKey)
	}
	if tr&packet.HasIETH != 0 {
		own(&p.InvRKey)
	}
}

func line(p *packet.Packet, n int) string {
	s := fmt.Sprintf("%v PSN %#06x", p.Op, uint32(p.PSN))
	if p.Op.Traits()&packet.HasAETH != 0 {
		s += fmt.Sprintf(", %v (%#02x), MSN %d", p.AETH.Syndrome, uint8(p.AETH.Syndrome), p.AETH.MSN)
	}
	return fmt.Sprintf("%s, %d bytes", s, n)
}

// In the place of the requesters, this one sends what rxe sent: the requests of a flow
// are put together from its packets, posted, and cut into packets again. Not compared
// is where rxe asks for an acknowledgement in the middle of a message.
func TestRequestsAsLinux(t *testing.T) {
	total := 0
	for _, name := range pcaptest.RoCENames(t, "") {
		switch {
		case strings.HasPrefix(name, "loss"), strings.HasPrefix(name, "retry"), strings.HasPrefix(name, "rc-rnr"), strings.HasPrefix(name, "user"), name == "cm-stale-conn":
			continue // packets are missing; not Linux; two connections under one number
		}
		for _, f := range flows(t, name) {
			total += f.ask(t, name)
		}
	}
	if total < 900 {
		t.Errorf("%d requests compared", total)
	}
	t.Log(total, "packets")
}

// ask posts the requests of a flow, and compares.
func (f *flow) ask(t *testing.T, name string) (compared int) {
	var out Outgoing
	var want, all []packet.Packet // requests; with the answers; each once
	size := 0
	for _, p := range f.packets {
		request := p.Op.Traits()&packet.Response == 0
		if request && len(want) > 0 && p.PSN.Sub(want[len(want)-1].PSN) <= 0 {
			continue // repeated
		}
		if all = append(all, p); request {
			want = append(want, p)
		}
	}
	if len(want) == 0 {
		return 0
	}
	g := newRig(t, small)
	connect(t, g.qp)
	req := NewRequester(g.qp, RequesterParams{MTU: f.mtu(), PSN: want[0].PSN, Depth: 128, Window: 1 << 20, RNRRetries: Forever})
	req.window.now = 1 << 20
	first := want[0]
	for _, p := range all {
		tr := p.Op.Traits()
		if tr&packet.Response != 0 {
			req.Receive(&p, 0)
			continue
		}
		if tr&packet.First != 0 {
			first, size = p, 0
		}
		if size += len(p.Payload); tr&packet.Last == 0 {
			continue
		}
		post(t, g.qp, &first, &p, size)
		for req.Next(&out, 0) {
			if compared == len(want) {
				t.Fatalf("%s, %s: more packets than rxe's %d", name, f.name, compared)
			}
			w := want[compared]
			if a, b := asked(&out.Packet, out.N), asked(&w, len(w.Payload)); a != b {
				t.Fatalf("%s, %s: packet %d is\n%s, was\n%s", name, f.name, compared, a, b)
			}
			out.Release()
			compared++
		}
		if req.Err() != nil && !strings.HasPrefix(name, "nak") && name != "rc-mw-sendinv" {
			t.Fatalf("%s, %s: after %d packets: %v", name, f.name, compared, req.Err())
		}
	}
	return compared
}

// post posts the request whose first and last packet these are.
func post(t *testing.T, qp *verbs.QP, first, last *packet.Packet, n int) {
	t.Helper()
	tr := last.Op.Traits()
	op := verbs.OpSend
	switch {
	case tr&packet.HasIETH != 0:
		op = verbs.OpSendInv
	case tr&packet.Send != 0 && tr&packet.HasImm != 0:
		op = verbs.OpSendImm
	case tr&packet.Write != 0 && tr&packet.HasImm != 0:
		op = verbs.OpWriteImm
	case tr&packet.Write != 0:
		op = verbs.OpWrite
	case tr&packet.Read != 0:
		op, n = verbs.OpRead, int(first.RETH.Len)
	case last.Op == packet.CompareSwap:
		op, n = verbs.OpCmpSwap, 8
	case last.Op == packet.FetchAdd:
		op, n = verbs.OpFetchAdd, 8
	}
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	e, err := qp.PostLocked(1, op)
	if err != nil {
		t.Fatal(err)
	}
	e.Flags, e.Length = 0, uint32(n)
	if last.Solicited {
		e.Flags = verbs.FlagSolicited
	}
	e.Remote = verbs.RemoteAddr{TO: first.RETH.VA, STag: first.RETH.RKey}
	if tr&packet.Atomic != 0 {
		e.Remote = verbs.RemoteAddr{TO: last.AtomicETH.VA, STag: last.AtomicETH.RKey}
		e.Atom = verbs.Atomic{Data: last.AtomicETH.SwapOrAdd, Compare: last.AtomicETH.Compare}
	}
	e.Imm, e.Inv = uint64(last.Imm), last.InvRKey
	e.Add(make([]byte, n), mem.LocalKey)
}

// asked is a request's packet as a line.
func asked(p *packet.Packet, n int) string {
	tr := p.Op.Traits()
	s := fmt.Sprintf("%v PSN %#06x, %d bytes", p.Op, uint32(p.PSN), n)
	if tr&packet.Last != 0 {
		s += fmt.Sprintf(", A %v, S %v", p.AckReq, p.Solicited)
	}
	if tr&packet.HasRETH != 0 {
		s += fmt.Sprintf(", %+v", p.RETH)
	}
	if tr&packet.HasAtomicETH != 0 {
		h := p.AtomicETH
		if p.Op == packet.FetchAdd {
			h.Compare = 0
		}
		s += fmt.Sprintf(", %+v", h)
	}
	if tr&packet.HasImm != 0 {
		s += fmt.Sprintf(", imm %#x", p.Imm)
	}
	if tr&packet.HasIETH != 0 {
		s += fmt.Sprintf(", key %#x", p.InvRKey)
	}
	return s
}
