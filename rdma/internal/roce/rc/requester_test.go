package rc

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"softiser/internal/alloctest"
	"softiser/internal/faultmap"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

const firstPSN = packet.PSN(0xfffffe)

// asker is a requester whose packets are looked at, and whose answers are made, by hand.
type asker struct {
	*rig
	req *Requester
	out Outgoing
}

func newAsker(t testing.TB, change func(*RequesterParams)) *asker {
	t.Helper()
	cfg := RequesterParams{RemoteQPN: 7, MTU: packet.MTU256, PSN: firstPSN, Depth: 2, Window: 64, AckTimeout: time.Second, Retries: 2, RNRRetries: 1}
	if change != nil {
		change(&cfg)
	}
	g := newRig(t, small)
	connect(t, g.qp)
	return &asker{rig: g, req: NewRequester(g.qp, cfg)}
}

// queue posts a request of n bytes and returns its memory.
func (a *asker) queue(t testing.TB, op verbs.Opcode, flags verbs.SendFlags, n int) []byte {
	t.Helper()
	a.qp.Mu.Lock()
	defer a.qp.Mu.Unlock()
	e, err := a.qp.PostLocked(1, op)
	if err != nil {
		t.Fatal(err)
	}
	p := fill(n)
	e.Flags, e.Length, e.Remote = flags, uint32(n), verbs.RemoteAddr{TO: 0x1000, STag: 5}
	e.Add(p, mem.LocalKey)
	return p
}

// sent is what there is to send at a time.
func (a *asker) sent(now time.Duration) string {
	var rs []reply
	for a.req.Next(&a.out, now) {
		rs = append(rs, reply{Packet: a.out.Packet})
		a.out.Release()
	}
	return lines(rs)
}

// answer gives it an answer.
func (a *asker) answer(op packet.Opcode, psn packet.PSN, s packet.Syndrome, data []byte, now time.Duration) {
	a.req.Receive(&packet.Packet{BTH: packet.BTH{Op: op, PSN: psn}, AETH: packet.AETH{Syndrome: s}, Payload: data}, now)
}

// ends are the outcomes of the completions so far.
func (a *asker) ends() (out []verbs.Status) {
	cq := a.qp.SendCQ
	cq.Lock()
	defer cq.Unlock()
	for wc := cq.NextLocked(); wc != nil; wc = cq.NextLocked() {
		out = append(out, wc.Status)
	}
	return out
}

func (a *asker) wantEnds(t *testing.T, want ...verbs.Status) {
	t.Helper()
	if got := a.ends(); !slices.Equal(got, want) {
		t.Errorf("completions %v, want %v", got, want)
	}
}

const ok = verbs.StatusSuccess

// A refused request ends the connection; those before it have succeeded.
func TestNAKs(t *testing.T) {
	for nak, want := range map[packet.Syndrome]verbs.Status{
		packet.NAKInvalidRequest: verbs.StatusRemoteInvalid, packet.NAKRemoteAccess: verbs.StatusRemoteAccess,
		packet.NAKRemoteOperational: verbs.StatusRemoteOp, 0x7f: verbs.StatusRemoteOp,
	} {
		a := newAsker(t, nil)
		a.queue(t, verbs.OpSend, 0, 1)
		a.queue(t, verbs.OpWrite, 0, 600)
		a.queue(t, verbs.OpSend, 0, 1)
		a.sent(0)
		a.answer(packet.Acknowledge, 0, nak, nil, 0)
		var refused *Refused
		if !errors.As(a.req.Err(), &refused) || refused.Syndrome != nak {
			t.Errorf("%v: %v", nak, a.req.Err())
		}
		if s := a.sent(time.Hour); s != "" {
			t.Error("sent after the end:", s)
		}
		a.qp.Mu.Lock()
		a.qp.FlushSendsLocked()
		a.qp.Mu.Unlock()
		a.wantEnds(t, ok, want, verbs.StatusFlushed)
	}
}

// What is not answered is sent again, so often.
func TestTimeouts(t *testing.T) {
	a := newAsker(t, nil)
	a.queue(t, verbs.OpSend, 0, 300)
	const packets = "SEND First @fffffe, SEND Last @ffffff"
	if s := a.sent(5 * time.Second); s != packets {
		t.Fatal(s)
	}
	now := 5 * time.Second
	for range 2 {
		if at, ok := a.req.Deadline(); !ok || at != now+time.Second {
			t.Fatalf("deadline %v, %v", at, ok)
		}
		a.req.Tick(now + time.Second - 1)
		if s := a.sent(now); s != "" {
			t.Error("too early:", s)
		}
		now += time.Second
		a.req.Tick(now)
		if s := a.sent(now); s != packets {
			t.Error("again:", s)
		}
	}
	a.req.Tick(now + time.Second)
	var exceeded *Exceeded
	if !errors.As(a.req.Err(), &exceeded) || exceeded.RNR || exceeded.Error() != "rdma: the peer did not answer, asked 3 times" {
		t.Error(a.req.Err())
	}
	if _, ok := a.req.Deadline(); ok {
		t.Error("something is due after the end")
	}
	a.qp.Mu.Lock()
	a.qp.FlushSendsLocked()
	a.qp.Mu.Unlock()
	a.wantEnds(t, verbs.StatusRetryExceeded)
	if st := a.req.Stats(); st.Timeouts != 3 || st.Repeated != 4 || st.Packets != 6 {
		t.Errorf("%+v", st)
	}
}

// An answer to a part of what is in flight begins the time anew.
func TestProgressBeginsTheTimeAnew(t *testing.T) {
	a := newAsker(t, nil)
	a.queue(t, verbs.OpSend, 0, 1)
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(0)
	a.req.Tick(time.Second)
	a.sent(time.Second)
	a.answer(packet.Acknowledge, firstPSN, packet.ACK, nil, 1500*time.Millisecond)
	if at, _ := a.req.Deadline(); at != 2500*time.Millisecond {
		t.Error(at)
	}
	for i := range 2 { // the count of retries as well
		a.req.Tick(time.Duration(i+3) * time.Second)
		if s := a.sent(0); s != "SEND Only @ffffff" {
			t.Error(s)
		}
	}
	a.wantEnds(t, ok)
}

func TestRNR(t *testing.T) {
	a := newAsker(t, nil)
	a.queue(t, verbs.OpWrite, 0, 1)
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(0)
	for i := range 2 {
		now := time.Duration(i) * time.Hour
		a.answer(packet.Acknowledge, 0xffffff, packet.RNR|12, nil, now)
		if i == 1 {
			break
		}
		a.wantEnds(t, ok)
		if at, ok := a.req.Deadline(); !ok || at != now+640*time.Microsecond {
			t.Errorf("goes on at %v, %v", at, ok)
		}
		if s := a.sent(now); s != "" {
			t.Error("sent while it waits:", s)
		}
		a.req.Tick(now + 640*time.Microsecond)
		if s := a.sent(now + time.Second); s != "SEND Only @ffffff" {
			t.Error("after it:", s)
		}
	}
	var exceeded *Exceeded
	if !errors.As(a.req.Err(), &exceeded) || !exceeded.RNR {
		t.Error(a.req.Err())
	}
	a.qp.Mu.Lock()
	a.qp.FlushSendsLocked()
	a.qp.Mu.Unlock()
	a.wantEnds(t, verbs.StatusRNRRetryExceeded)

	a = newAsker(t, func(c *RequesterParams) { c.RNRRetries = Forever })
	a.queue(t, verbs.OpSend, 0, 1)
	for i := range 100 {
		now := time.Duration(i) * time.Second
		a.sent(now)
		a.answer(packet.Acknowledge, firstPSN, packet.RNR, nil, now)
		a.req.Tick(now + time.Second)
	}
	if a.req.Err() != nil {
		t.Error(a.req.Err())
	}
}

// An RNR NAK that comes while another holds answers a packet that was sent before: it is no
// retry that has failed.
func TestRNRTwice(t *testing.T) {
	a := newAsker(t, nil)
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(0)
	for range 3 {
		a.answer(packet.Acknowledge, firstPSN, packet.RNR|12, nil, 0)
	}
	if at, ok := a.req.Deadline(); !ok || at != 640*time.Microsecond || a.req.Err() != nil {
		t.Errorf("goes on at %v, %v, %v", at, ok, a.req.Err())
	}
	a.req.Tick(time.Millisecond)
	if s := a.sent(time.Millisecond); s != "SEND Only @fffffe" {
		t.Error(s)
	}
	a.answer(packet.Acknowledge, firstPSN, packet.RNR|12, nil, time.Millisecond)
	if a.req.Err() == nil {
		t.Error("asked again more often than was agreed on")
	}
}

// A NAK for what was lost: from there on, at once. The window halves.
func TestGoBack(t *testing.T) {
	a := newAsker(t, nil)
	a.queue(t, verbs.OpSend, 0, 700)
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(0)
	before := a.req.window.size()
	a.answer(packet.Acknowledge, 0xffffff, packet.NAKSequence, nil, 0)
	if s := a.sent(0); s != "SEND Middle @ffffff, SEND Last @0, SEND Only @1" {
		t.Error(s)
	}
	if a.req.window.size() != before/2 {
		t.Errorf("window %d, was %d", a.req.window.size(), before)
	}
	// What was on its way arrives after all: nothing is sent again.
	a.answer(packet.Acknowledge, 1, packet.ACK, nil, 0)
	a.wantEnds(t, ok, ok)
	if s := a.sent(time.Hour); s != "" || !a.req.Idle() {
		t.Error(s)
	}
	if _, ok := a.req.Deadline(); ok {
		t.Error("something is due with nothing in flight")
	}
}

// A gap in a READ's answer is a loss: what is missing is asked for, once.
func TestGapInAREAD(t *testing.T) {
	a := newAsker(t, nil)
	p := a.queue(t, verbs.OpRead, 0, 1000)
	clear(p)
	a.queue(t, verbs.OpSend, 0, 1)
	if s := a.sent(0); s != "RDMA READ Request @fffffe, SEND Only @2" {
		t.Fatal(s)
	}
	data := fill(1000)
	a.answer(packet.ReadResponseFirst, 0xfffffe, packet.ACK, data[:256], 0)
	a.answer(packet.ReadResponseLast, 1, packet.ACK, data[768:], 0) // two are missing
	a.answer(packet.Acknowledge, 2, packet.ACK, nil, 0)             // and this says it again
	if !a.req.Next(&a.out, 0) || a.out.Packet.Op != packet.ReadRequest || a.out.Packet.PSN != 0xffffff ||
		a.out.Packet.RETH != (packet.RETH{VA: 0x1100, RKey: 5, Len: 744}) {
		t.Fatalf("%+v", a.out.Packet)
	}
	if s := a.sent(0); s != "SEND Only @2" {
		t.Error(s)
	}
	// rxe goes on with Middle; others begin anew with First.
	a.answer(packet.ReadResponseMid, 0xffffff, 0, data[256:512], 0)
	a.answer(packet.ReadResponseMid, 0xffffff, 0, fill(255), 0) // a duplicate is not looked at
	a.answer(packet.ReadResponseFirst, 0, packet.ACK, data[512:768], 0)
	a.wantEnds(t)
	a.answer(packet.ReadResponseLast, 1, packet.ACK, data[768:], 0)
	a.wantEnds(t, ok)
	if !bytes.Equal(p, data) {
		t.Error("other bytes")
	}
	a.answer(packet.Acknowledge, 2, packet.ACK, nil, 0)
	a.wantEnds(t, ok)
	if st := a.req.Stats(); st.LostAnswers != 1 || a.req.Reads() != 0 {
		t.Errorf("%+v, %d READs", st, a.req.Reads())
	}
}

// A long READ goes out as several requests, no more of them at a time than agreed on, and
// what is asked for again lies within one of them.
func TestReadInPieces(t *testing.T) {
	a := newAsker(t, func(c *RequesterParams) { c.MaxRead = 2 })
	asks := func(want ...packet.RETH) {
		t.Helper()
		for _, w := range want {
			if !a.req.Next(&a.out, 0) || a.out.Packet.Op != packet.ReadRequest || a.out.Packet.RETH != w {
				t.Fatalf("%v %+v, want %+v", a.out.Packet.Op, a.out.Packet.RETH, w)
			}
		}
		if a.req.Next(&a.out, 0) {
			t.Fatalf("%v %+v in front of an answer", a.out.Packet.Op, a.out.Packet.RETH)
		}
	}
	data := fill(1300) // six packets, at fffffe to 3
	p := a.queue(t, verbs.OpRead, 0, len(data))
	clear(p)
	a.queue(t, verbs.OpFetchAdd, 0, 8)
	asks(packet.RETH{VA: 0x1000, RKey: 5, Len: 512}, packet.RETH{VA: 0x1200, RKey: 5, Len: 512})
	a.answer(packet.ReadResponseFirst, 0xfffffe, packet.ACK, data[:256], 0)
	asks()
	a.answer(packet.ReadResponseLast, 0xffffff, packet.ACK, data[256:512], 0)
	asks(packet.RETH{VA: 0x1400, RKey: 5, Len: 276})
	a.answer(packet.ReadResponseFirst, 0, packet.ACK, data[512:768], 0)
	a.answer(packet.ReadResponseFirst, 2, packet.ACK, data[1024:1280], 0) // 1 was lost
	asks(packet.RETH{VA: 0x1300, RKey: 5, Len: 256}, packet.RETH{VA: 0x1400, RKey: 5, Len: 276})
	if a.req.Reads() != 2 {
		t.Errorf("%d requests in flight", a.req.Reads())
	}
	a.answer(packet.ReadResponseOnly, 1, packet.ACK, data[768:1024], 0)
	if s := a.sent(0); s != "FetchAdd @4" {
		t.Error(s)
	}
	a.answer(packet.ReadResponseFirst, 2, packet.ACK, data[1024:1280], 0)
	a.wantEnds(t)
	a.answer(packet.ReadResponseLast, 3, packet.ACK, data[1280:], 0)
	a.answer(packet.AtomicAcknowledge, 4, packet.ACK, nil, 0)
	a.wantEnds(t, ok, ok)
	if !bytes.Equal(p, data) || a.req.Reads() != 0 {
		t.Errorf("other bytes, or %d READs left", a.req.Reads())
	}
}

// Answers that fit no question change nothing, or end the connection.
func TestStrangeAnswers(t *testing.T) {
	for name, e := range map[string]struct {
		op    packet.Opcode
		psn   packet.PSN
		s     packet.Syndrome
		n     int
		fatal bool
	}{
		"ACK of what was not sent":    {packet.Acknowledge, 4, packet.ACK, 0, false},
		"NAK of what was not sent":    {packet.Acknowledge, 4, packet.NAKRemoteAccess, 0, false},
		"NAK far ahead":               {packet.Acknowledge, 9, packet.NAKSequence, 0, false},
		"reserved syndrome":           {packet.Acknowledge, firstPSN, 0x40, 0, false},
		"a request":                   {packet.SendOnly, firstPSN, 0, 0, false},
		"a datagram":                  {packet.UD | packet.SendOnly, firstPSN, 0, 0, false},
		"READ's answer to a SEND":     {packet.ReadResponseOnly, firstPSN, packet.ACK, 1, false},
		"atomic's answer to a READ":   {packet.AtomicAcknowledge, 0xffffff, packet.ACK, 0, false},
		"READ's answer to what comes": {packet.ReadResponseOnly, 4, packet.ACK, 1, false},
		"READ's answer, short":        {packet.ReadResponseFirst, 0xffffff, packet.ACK, 255, true},
		"READ's answer, long":         {packet.ReadResponseFirst, 0xffffff, packet.ACK, 257, true},
		"READ's answer ends too soon": {packet.ReadResponseOnly, 0xffffff, packet.ACK, 256, true},
		"long ago":                    {packet.Acknowledge, firstPSN.Add(-1), packet.NAKRemoteAccess, 0, false},
	} {
		a := newAsker(t, nil)
		a.queue(t, verbs.OpSend, 0, 1)
		a.queue(t, verbs.OpRead, 0, 1000)
		a.sent(0)
		a.answer(e.op, e.psn, e.s, fill(e.n), 0)
		if fatal := a.req.Err() != nil; fatal != e.fatal {
			t.Errorf("%s: %v", name, a.req.Err())
		}
		if name != "long ago" && !e.fatal && a.req.Stats().Strange != 1 {
			t.Errorf("%s: %+v", name, a.req.Stats())
		}
	}
}

// READs and atomics wait for each other as agreed on, and a fence for all of them.
func TestDepthAndFence(t *testing.T) {
	a := newAsker(t, nil)
	a.queue(t, verbs.OpRead, 0, 1)
	a.queue(t, verbs.OpFetchAdd, 0, 8)
	a.queue(t, verbs.OpSend, 0, 1)
	a.queue(t, verbs.OpCmpSwap, 0, 8)
	a.queue(t, verbs.OpSend, 0, 1)
	a.queue(t, verbs.OpSend, verbs.FlagFence, 1)
	if s := a.sent(0); s != "RDMA READ Request @fffffe, FetchAdd @ffffff, SEND Only @0" {
		t.Error(s)
	}
	a.answer(packet.ReadResponseOnly, 0xfffffe, packet.ACK, []byte{1}, 0)
	if s := a.sent(0); s != "CmpSwap @1, SEND Only @2" {
		t.Error(s)
	}
	a.answer(packet.AtomicAcknowledge, 0xffffff, packet.ACK, nil, 0)
	a.answer(packet.Acknowledge, 0, packet.ACK, nil, 0)
	if s := a.sent(0); s != "" {
		t.Error("before the fence may fall:", s)
	}
	a.answer(packet.AtomicAcknowledge, 1, packet.ACK, nil, 0)
	if s := a.sent(0); s != "SEND Only @3" {
		t.Error(s)
	}
	a.wantEnds(t, ok, ok, ok, ok)
}

// Within a long message answers are asked for twice in a window, and no more is in
// flight than that holds.
func TestWindow(t *testing.T) {
	a := newAsker(t, func(c *RequesterParams) { c.Window = 8 })
	a.queue(t, verbs.OpWrite, 0, 20*256)
	var asks []int
	n := 0
	for ; a.req.Next(&a.out, 0); n++ {
		if a.out.Packet.AckReq {
			asks = append(asks, n)
		}
		a.out.Release()
	}
	if n != 8 || !slices.Equal(asks, []int{3, 7}) {
		t.Errorf("%d packets in flight, answers asked for by %v", n, asks)
	}
	a.answer(packet.Acknowledge, firstPSN.Add(3), packet.ACK, nil, 0)
	for n = 0; a.req.Next(&a.out, 0); n++ {
		a.out.Release()
	}
	if n != 4 {
		t.Errorf("%d more", n)
	}
}

// Work that stays here is done when all before it has been answered.
func TestLocalRequests(t *testing.T) {
	var done []verbs.Opcode
	a := newAsker(t, func(c *RequesterParams) {
		c.Local = func(e *verbs.WQE) verbs.Status { done = append(done, e.Op); return verbs.StatusInvalidated }
	})
	a.queue(t, verbs.OpSend, 0, 1)
	a.queue(t, verbs.OpLocalInv, 0, 0)
	a.queue(t, verbs.OpImm, 0, 0)
	if s := a.sent(0); s != "SEND Only @fffffe" || done != nil {
		t.Error(s, done)
	}
	a.answer(packet.Acknowledge, firstPSN, packet.ACK, nil, 0)
	if s := a.sent(0); s != "RDMA WRITE Only with Immediate @ffffff" || !slices.Equal(done, []verbs.Opcode{verbs.OpLocalInv}) {
		t.Error(s, done)
	}
	a.answer(packet.Acknowledge, 0xffffff, packet.ACK, nil, 0)
	a.wantEnds(t, ok, verbs.StatusInvalidated, ok)
}

// Memory of a request's own.
func TestSinks(t *testing.T) {
	a := newAsker(t, nil)
	a.qp.Mu.Lock()
	e, _ := a.qp.PostLocked(1, verbs.OpRead)
	e.Flags, e.Length = 0, 1
	e.Add(faultmap.New(t, 8192, 4096)[4096:4097], mem.LocalKey)
	a.qp.Mu.Unlock()
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(0)
	a.answer(packet.ReadResponseOnly, firstPSN, packet.ACK, []byte{1}, 0)
	a.answer(packet.Acknowledge, 0xffffff, packet.ACK, nil, 0)
	a.wantEnds(t, verbs.StatusLocalFault, ok) // and the connection goes on

	p := a.queue(t, verbs.OpRead, verbs.FlagDiscard, 1)
	p[0] = 9
	a.sent(0)
	a.answer(packet.ReadResponseOnly, 0, packet.ACK, []byte{1}, 0)
	if a.wantEnds(t, verbs.StatusDiscarded); p[0] != 9 {
		t.Error("memory that was taken away has been written to")
	}

	// A key that names other memory.
	a.qp.Mu.Lock()
	e, _ = a.qp.PostLocked(9, verbs.OpSend)
	e.Flags, e.Length = 0, 1
	e.Add([]byte{1}, a.key)
	a.qp.Mu.Unlock()
	if s := a.sent(0); s != "" || !errors.Is(a.req.Err(), message.ErrLKey) {
		t.Error(s, a.req.Err())
	}
}

func TestNothingIsAllocatedForRequests(t *testing.T) {
	a := newAsker(t, func(c *RequesterParams) { c.MTU = packet.MTU4096 })
	data := fill(4096)
	post := func(op verbs.Opcode) {
		a.qp.Mu.Lock()
		defer a.qp.Mu.Unlock()
		e, err := a.qp.PostLocked(1, op)
		if err != nil {
			t.Fatal(err)
		}
		e.Flags, e.Length = 0, 4096
		e.Add(data, mem.LocalKey)
	}
	psn := firstPSN
	answer := packet.Packet{AETH: packet.AETH{Syndrome: packet.ACK}}
	if n := alloctest.PerRun(100, func() {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
			post(op)
			if !a.req.Next(&a.out, 0) {
				t.Fatal("nothing to send")
			}
			a.out.Release()
			answer.Op, answer.Payload = packet.Acknowledge, nil
			if op == verbs.OpRead {
				answer.Op, answer.Payload = packet.ReadResponseOnly, data
			}
			answer.PSN, psn = psn, psn.Add(1)
			a.req.Receive(&answer, 0)
		}
		cq := a.qp.SendCQ
		cq.Lock()
		for cq.NextLocked() != nil {
		}
		cq.Unlock()
	}); n != 0 || a.req.Err() != nil || !a.req.Idle() {
		t.Errorf("%v allocations for a WRITE and a READ, %v", n, a.req.Err())
	}
}
