package iser

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/loopback"
	"softiser/internal/rdmamsg"
	"softiser/rdma"
)

// full makes a pair in the full feature phase in which the initiator has said something.
func full(t *testing.T, ci, ct ConnConfig, iu, gu iscsi.Upper) (i, g *Conn) {
	t.Helper()
	di, dt := device(t), device(t)
	i, g = connect(t, di, dt, ci, ct)
	p := iscsi.NewNegotiation(iscsi.RoleInitiator, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
	p.RDMAExtensions, p.MaxXmitDataSegmentLength, p.MaxRecvDataSegmentLength = true, 8192, 8192
	for _, c := range []*Conn{i, g} {
		c.NoticeKeyValues(&p)
		if err := c.Enable(); err != nil {
			t.Fatal(err)
		}
	}
	i.Start(iu)
	g.Start(gu)
	var first iscsi.PDU
	first.BHS.NewNopOut().SetTTT(iscsi.ReservedTag)
	if err := i.SendControl(&first); err != nil {
		t.Fatal(err)
	}
	i.Push()
	await.True(t, "the first PDU has come", func() bool { return g.Stats().PDUsIn == 1 })
	return i, g
}

// counting counts what comes up.
type counting struct {
	*datamovertest.Recorder
	pdus atomic.Int64
}

func (c *counting) ControlNotify(p *iscsi.PDU) {
	for p != nil {
		next := p.Unlink()
		p.Release()
		c.pdus.Add(1)
		p = next
	}
}

// TestGracefulEndSendsAll: more than the send queue holds leaves before the end that was asked
// for; then nothing is taken any more.
func TestGracefulEndSendsAll(t *testing.T) {
	iu, gu := &counting{Recorder: datamovertest.NewRecorder()}, &counting{Recorder: datamovertest.NewRecorder()}
	i, g := full(t, ConnConfig{}, ConnConfig{}, iu, gu)
	const n = 3 * rdmamsg.SendDepth
	var ping iscsi.PDU
	ping.BHS.NewNopIn()
	for range n {
		if err := g.SendControl(&ping); err != nil {
			t.Fatal(err)
		}
	}
	g.Terminate(nil)
	if err := g.SendControl(&ping); !errors.Is(err, net.ErrClosed) {
		t.Errorf("SendControl after it: %v", err)
	}
	g.Terminate(nil)
	if err := gu.End(t); err != nil {
		t.Errorf("the end that was asked for is called %v", err)
	}
	if err := iu.End(t); err == nil || iu.pdus.Load() != n {
		t.Errorf("the other side has %d PDUs of %d, and ended with %v", iu.pdus.Load(), n, err)
	}
	<-i.Ended()
	<-g.Ended()
	if err := g.SendControl(&ping); !errors.Is(err, net.ErrClosed) {
		t.Errorf("SendControl at the end: %v", err)
	}
}

// TestEndOfTransfers: the reason of the end is the reason of what it cuts off, the first one.
func TestEndOfTransfers(t *testing.T) {
	for _, reason := range []error{nil, errors.New("the reason")} {
		iu, gu := datamovertest.NewRecorder(), datamovertest.NewRecorder()
		i, g := full(t, ConnConfig{}, ConnConfig{}, iu, gu)
		gu.PDU(t, "NOP-Out").Release()
		x := &iscsi.Transfer{Len: 4, Ref: refOf(stags{WriteSTag: 5}), Segs: [][]byte{make([]byte, 4)}}
		g.mu.Lock()
		g.pump.ORD = 0 // it is not read, though the receive goroutine may be about to push
		g.mu.Unlock()
		if err := g.GetData(x); err != nil {
			t.Fatal(err)
		}
		g.Terminate(reason)
		if reason != nil {
			g.Terminate(errors.New("another"))
		}
		want := reason
		if want == nil {
			want = net.ErrClosed
		}
		if gu.Completion(t); !errors.Is(x.Err, want) {
			t.Errorf("ended with %v, the transfer with %v", reason, x.Err)
		}
		if err := gu.End(t); !errors.Is(err, reason) {
			t.Errorf("ended with %v, want %v", err, reason)
		}
		var p iscsi.PDU
		p.BHS.NewNopIn()
		if err := g.SendControl(&p); !errors.Is(err, want) {
			t.Errorf("afterwards %v", err)
		}
		iu.End(t)
		<-i.Ended()
	}
}

// TestEndBeforeStart: who starts a connection that has ended is told of the end.
func TestEndBeforeStart(t *testing.T) {
	di, dt := device(t), device(t)
	i, g := connect(t, di, dt, ConnConfig{}, ConnConfig{})
	finish(g)
	<-i.qp.Done()
	select {
	case <-i.Ended():
		t.Error("ended though nobody has been told")
	default:
	}
	up := datamovertest.NewRecorder()
	i.Start(up)
	if err := up.End(t); err == nil {
		t.Error("ended without a reason")
	}
	<-i.Ended()
}

// TestGivenUpBeforeStart: a connection that has been given up before its start, twice even, may
// be started all the same, also when it is over; who starts it is told of its end.
func TestGivenUpBeforeStart(t *testing.T) {
	const never, atOnce, late = 0, 1, 2
	for n := range 6 {
		var reason error
		if n%2 == 1 {
			reason = errors.New("given up")
		}
		start := n / 2
		t.Run(fmt.Sprintf("%v, start %d", reason, start), func(t *testing.T) {
			i, g := connect(t, device(t), device(t), ConnConfig{}, ConnConfig{})
			var q iscsi.PDU
			q.BHS.NewNopOut()
			if err := i.SendControl(&q); err != nil {
				t.Fatal(err)
			}
			i.Push()
			await.True(t, "it has come", func() bool { return g.qp.Stats().BytesIn > 0 })
			g.Terminate(reason)
			g.Terminate(reason)
			up := datamovertest.NewRecorder()
			if start == atOnce {
				g.Start(up)
			}
			finish(i, g)
			if start == late {
				g.Start(up)
			}
			if start != never {
				if err := up.End(t); reason != nil && err != reason {
					t.Errorf("ended with %v", err)
				}
			}
			up.Release()
		})
	}
}

// TestReasonsOfEnds: the upper layer is told what the peer has done: an end between two
// messages is no mistake, and a mistake is no end.
func TestReasonsOfEnds(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	r.qp.Disconnect()
	if err := r.up.End(t); err != io.EOF {
		t.Errorf("the peer leaves: %v", err)
	}
	r = newPeer(t, iscsi.RoleTarget, nil)
	r.c.Terminate(nil)
	r.qp.Disconnect()
	if err := r.up.End(t); err != nil {
		t.Errorf("we leave, and the peer does: %v", err)
	}
	r = newPeer(t, iscsi.RoleTarget, nil)
	r.post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, Remote: rdma.RemoteAddr{STag: 0xdead}, SGL: []rdma.SGE{{Mem: make([]byte, 8), LKey: r.pd.LocalDMAKey()}}})
	if err := r.up.End(t); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the peer writes where it may not: %v", err)
	}
}

// TestCompletedInOrder: no transfer that is over is forgotten.
func TestCompletedInOrder(t *testing.T) {
	var l xferList
	xs := make([]iscsi.Transfer, 3)
	for range 2 {
		for i := range xs {
			l.put(&xs[i])
		}
		x := l.take()
		for i := range xs {
			if x != &xs[i] {
				t.Fatalf("transfer %d is not there", i)
			}
			x = x.Own.Next
		}
		if x != nil || l.take() != nil {
			t.Error("there are more than were put in")
		}
	}
}

// slow stays in its up-calls until it is told.
type slow struct {
	*datamovertest.Recorder
	in, leave chan struct{}
}

func (s *slow) DataCompletionNotify(*iscsi.Transfer) { s.in <- struct{}{}; <-s.leave }

// TestLastUpCallIsTheLast: the end is told when all other up-calls have returned.
func TestLastUpCallIsTheLast(t *testing.T) {
	iu := datamovertest.NewRecorder()
	gu := &slow{datamovertest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	i, g := full(t, ConnConfig{}, ConnConfig{}, iu, gu)
	gu.PDU(t, "NOP-Out").Release()
	if err := g.PutData(&iscsi.Transfer{}); err != nil {
		t.Fatal(err)
	}
	go g.Push()
	<-gu.in
	g.Terminate(errors.New("lost"))
	await.True(t, "the connection is dead", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.st == iscsi.ConnDead
	})
	time.Sleep(5 * time.Millisecond) // time in which a mistake would show: nothing tells of what does not come
	if len(gu.Ended) != 0 {
		t.Error("the end was told while another up-call was under way")
	}
	close(gu.leave)
	gu.End(t)
	iu.End(t)
	<-i.Ended()
	<-g.Ended()
}

// TestReasonsOfTransfers: what the queue pair says of a transfer in the words of the seam; a
// reason that it has already stays.
func TestReasonsOfTransfers(t *testing.T) {
	own, other := errors.New("its own"), errors.New("flushed")
	for _, c := range []struct{ had, err, want error }{
		{nil, nil, nil}, {nil, rdmamsg.ErrFault, iscsi.ErrMemoryFault}, {nil, rdmamsg.ErrAborted, iscsi.ErrAborted},
		{nil, other, other}, {own, nil, own}, {own, rdmamsg.ErrFault, own}, {own, other, own},
	} {
		k := &Conn{}
		x := &iscsi.Transfer{Err: c.had}
		(*owner)(k).Moved(x, c.err)
		if !errors.Is(x.Err, c.want) || k.over.take() != x {
			t.Errorf("%+v: %v", c, x.Err)
		}
	}
}

// TestWaitingForAReader: reading stops when the peer has too much to read, and goes on when it
// has read enough, or the connection is ending, in whichever way.
func TestWaitingForAReader(t *testing.T) {
	for name, stop := range map[string]func(c *Conn){
		"read": func(c *Conn) {
			c.mu.Lock()
			defer c.mu.Unlock()
			(*owner)(c).Sent(1 << 10)
			if !c.unread.behind.Load() || len(c.unread.room) != 0 {
				t.Error("it goes on before the peer has read enough")
			}
			(*owner)(c).Sent(1<<20 - 1<<10)
			if c.unread.behind.Load() {
				t.Error("it does not go on")
			}
		},
		"graceful end": func(c *Conn) { c.Terminate(nil) },
		"end":          func(c *Conn) { c.Terminate(errors.New("lost")) },
	} {
		r := newPeer(t, iscsi.RoleTarget, nil)
		r.c.mu.Lock()
		r.c.unread.Add(1 << 20)
		r.c.unread.behind.Store(true)
		r.c.mu.Unlock()
		done := make(chan struct{})
		go func() { defer close(done); r.c.awaitReader() }()
		stop(r.c)
		if !await.Until(func() bool {
			select {
			case <-done:
				return true
			default:
				return false
			}
		}) {
			t.Errorf("%s: it still waits", name)
		}
	}
}

// TestAnswersCount: what the peer makes us say counts until it is sent, with the buffer that it
// takes, of the common memory too; what we say on our own does not.
func TestAnswersCount(t *testing.T) {
	m := &bound{}
	if c, err := device(t).newConn(iscsi.RoleTarget, ConnConfig{Memory: m}); err != nil || c.unread.Memory != m {
		t.Errorf("%v", err)
	} else {
		c.discard()
	}
	for _, tc := range []struct {
		role iscsi.Role
		make func(*iscsi.BHS)
		data int
		want int
	}{
		{iscsi.RoleTarget, func(b *iscsi.BHS) { b.NewNopIn() }, 0, msgCost},
		{iscsi.RoleTarget, func(b *iscsi.BHS) { b.NewNopIn() }, 4096, msgCost + recvBufLen},
		{iscsi.RoleInitiator, func(b *iscsi.BHS) { b.NewNopOut().SetITT(iscsi.ReservedTag) }, 0, msgCost},
		{iscsi.RoleInitiator, func(b *iscsi.BHS) { b.NewNopOut().SetITT(1) }, 0, 0},
		{iscsi.RoleInitiator, func(b *iscsi.BHS) { b.NewTextRequest().SetITT(iscsi.ReservedTag) }, 0, 0},
	} {
		r := newPeer(t, tc.role, nil)
		p := iscsi.PDU{Data: make([]byte, tc.data)}
		tc.make(&p.BHS)
		if err := r.c.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		if n := r.c.Backlog().Answers; n != tc.want {
			t.Errorf("%v, %s with tag %#x and %d bytes: %d count, want %d", tc.role, p.BHS.Opcode(), p.BHS.ITT(), tc.data, n, tc.want)
		}
	}
}

type bound struct{ sum atomic.Int64 }

func (m *bound) Reserve(n int) bool { m.sum.Add(int64(n)); return true }
func (m *bound) Unreserve(n int)    { m.sum.Add(int64(-n)) }

// TestPDUsBehindTheEnd: what comes when the end was asked for is not looked at.
func TestPDUsBehindTheEnd(t *testing.T) {
	c := &Conn{role: iscsi.RoleTarget, st: iscsi.ConnClosing, up: datamovertest.NewRecorder()}
	if up, err := c.dispatchLocked(&iscsi.PDU{}, []byte("shorter than any header"), nil); up || err != nil {
		t.Errorf("%v, %v", up, err)
	}
	if !errors.Is(c.endError(), net.ErrClosed) {
		t.Error(c.endError())
	}
	c.cause = io.ErrUnexpectedEOF
	if !errors.Is(c.endError(), io.ErrUnexpectedEOF) {
		t.Error(c.endError())
	}
}

// TestWaitingPDUs: what is sent while the stream changes is kept as it was, up to a bound, and
// not behind the end that was asked for; who takes its memory away takes the command with it.
func TestWaitingPDUs(t *testing.T) {
	u := &Upgraded{phase: phaseSwitch}
	bufs := &iscsi.TaskBuffers{}
	p := iscsi.PDU{AHS: []byte("ahs."), Data: []byte("data"), Ref: iscsi.Ref{7}, Bufs: bufs}
	p.BHS.NewSCSICommand().SetITT(9)
	for n := range 65 {
		if n == 1 {
			p.Bufs = nil
		}
		if err := u.SendControl(&p); (err == nil) != (n < 64) {
			t.Fatalf("PDU %d: %v", n, err)
		}
	}
	copy(p.Data, "....")
	copy(p.AHS, "....")
	q := u.waiting[0]
	if q.BHS != p.BHS || !bytes.Equal(q.Data, []byte("data")) || !bytes.Equal(q.AHS, []byte("ahs.")) || q.Ref != p.Ref || q.Bufs != bufs {
		t.Errorf("kept is %+v", q)
	}
	u.ReleaseTask(&iscsi.TaskBuffers{})
	if len(u.waiting) != 64 {
		t.Errorf("%d wait", len(u.waiting))
	}
	if u.ReleaseTask(bufs); len(u.waiting) != 63 || u.waiting[0] == q {
		t.Errorf("%d wait", len(u.waiting))
	}
	u.ended = true
	if err := u.SendControl(&p); err == nil {
		t.Error("SendControl works behind the end")
	}
}

// TestEndWithinTheSwitch: the end that is asked for while the stream's last PDU has not been
// sent comes, and is told once.
func TestEndWithinTheSwitch(t *testing.T) {
	for _, reason := range []error{errors.New("login takes too long"), nil} {
		s := newUnswitched(t)
		var p iscsi.PDU
		p.BHS.NewLoginResponse().SetStages(true, false, iscsi.StageOperational, iscsi.StageFullFeature)
		if err := s.dm.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		s.dm.Terminate(reason)
		if err := s.End(t); !errors.Is(err, reason) {
			t.Errorf("ended with %v, want %v", err, reason)
		}
		await.True(t, "it is dead", func() bool { return s.phase() == phaseDead })
		if err := s.dm.SendControl(&p); err == nil {
			t.Error("SendControl works after the end")
		}
		s.dm.Push()
		if len(s.Ended) != 0 {
			t.Error("told twice")
		}
	}
}

// TestNoSwitch: no other PDU than the Login Response that ends login well changes the stream.
func TestNoSwitch(t *testing.T) {
	for name, make := range map[string]func(*iscsi.BHS){
		"not the last": func(b *iscsi.BHS) {
			b.NewLoginResponse().SetStages(true, false, iscsi.StageSecurity, iscsi.StageOperational)
		},
		"no transit": func(b *iscsi.BHS) {
			b.NewLoginResponse().SetStages(false, false, iscsi.StageOperational, iscsi.StageFullFeature)
		},
		"refused": func(b *iscsi.BHS) {
			l := b.NewLoginResponse()
			l.SetStages(true, false, iscsi.StageOperational, iscsi.StageFullFeature)
			l.SetStatus(iscsi.LoginTargetFailure)
		},
		"no Login Response": func(b *iscsi.BHS) {
			b.NewLoginResponse().SetStages(true, false, iscsi.StageOperational, iscsi.StageFullFeature)
			b[0] = byte(iscsi.OpReject)
		},
	} {
		s := newUnswitched(t)
		var p iscsi.PDU
		make(&p.BHS)
		if err := s.dm.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		if ph := s.phase(); ph != phaseStream {
			t.Errorf("%s: %v", name, ph)
		}
		if err := s.dm.Enable(); err == nil {
			t.Errorf("%s: Enable works twice", name)
		}
		reason := errors.New("end of the test")
		s.dm.Terminate(reason)
		if err := s.End(t); !errors.Is(err, reason) {
			t.Errorf("ended with %v", err)
		}
		if err := s.dm.SendControl(&p); err == nil {
			t.Errorf("%s: SendControl works after the end", name)
		}
	}
}

// TestTransferPostedAtTheEnd: what another goroutine posts while the end is being told of is
// flushed at once, and over before the last up-call.
func TestTransferPostedAtTheEnd(t *testing.T) {
	iu, gu := datamovertest.NewRecorder(), datamovertest.NewRecorder()
	_, g := full(t, ConnConfig{}, ConnConfig{}, iu, gu)
	gu.PDU(t, "NOP-Out").Release()
	// The receive goroutine pushes behind that PDU, for which it takes the lock: it has done so when it stands.
	if !g.qp.Park(func() bool { return true }, func() {}, nil) {
		t.Fatal("it cannot be parked")
	}
	await.True(t, "it stands", g.qp.Still)
	g.qp.Unpark()
	x := &iscsi.Transfer{Len: 50, Ref: refOf(stags{ReadSTag: 5}), Segs: [][]byte{make([]byte, 50)}}
	if err := g.PutData(x); err != nil { // not pushed
		t.Fatal(err)
	}
	g.mu.Lock()
	g.qp.Abort(errors.New("the reason"))
	<-g.qp.Done()
	time.Sleep(20 * time.Millisecond) // until the end waits for the lock; too short a time hides the fault, and fails nobody
	g.pumpLocked()                    // a Push's first half
	g.mu.Unlock()
	if err := gu.End(t); err == nil {
		t.Error("ended without a reason")
	}
	select {
	case <-gu.Done:
	default:
		t.Error("the last up-call has come, and a transfer is not over")
	}
	g.qp.Push() // its second half
	<-g.Ended()
}

// TestMistakesBehindTheEnd: what a peer does wrong while we wait for it to leave too is told, even
// though we have asked for the end.
func TestMistakesBehindTheEnd(t *testing.T) {
	for name, last := range map[string][]byte{
		"no FPDU":         bytes.Repeat([]byte{0xee}, 64),
		"part of an FPDU": {0, 40, 0x41, 0x43},
	} {
		a, b := loopback.Pair(t)
		a.SetDeadline(time.Now().Add(20 * time.Second))
		private := privateData(false)
		if _, err := a.Write(append(append([]byte("MPA ID Req Frame"), 0x40, 1, 0, byte(len(private))), private...)); err != nil {
			t.Fatal(err)
		}
		c, err := device(t).Serve(t.Context(), b, ConnConfig{})
		if err != nil {
			t.Fatal(err)
		}
		up := datamovertest.NewRecorder()
		c.Start(up)
		c.Terminate(nil)
		if _, err := io.Copy(io.Discard, a); err != nil { // it has ended its half
			t.Fatal(err)
		}
		if _, err := a.Write(last); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if err := up.End(t); err == nil || err == io.EOF {
			t.Errorf("%s: ended with %v", name, err)
		}
		<-c.Ended()
		up.Release()
	}
}
