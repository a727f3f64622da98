package rdma_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/rdma"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

func always() bool { return true }

// park waits until e stands, asked to stop between any two messages.
func park(t *testing.T, e *rdmatest.End) {
	t.Helper()
	if !e.QP.Park(always, func() {}, nil) {
		t.Fatal("it cannot be parked")
	}
	await.True(t, "it stands", func() bool { e.QP.Nudge(); return e.QP.Still() })
}

// crossed goes on with a parked queue pair as another process does: on a device of its own,
// with receive buffers that recv posts. The old one stays as it is, and touches nothing.
func crossed(t *testing.T, e *rdmatest.End, p *rdma.ConnParams, recv func(*rdmatest.End)) *rdmatest.End {
	t.Helper()
	k, socket, err := e.QP.Carry()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(&k)
	if err != nil {
		t.Fatal(err)
	}
	k = rdma.Carried{}
	if err := json.Unmarshal(b, &k); err != nil {
		t.Fatal(err)
	}
	f, err := socket.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	n := rdmatest.NewEnd(t, &rdmatest.Options{}, 1)
	recv(n)
	if err := n.QP.Adopt(nc, &k, p); err != nil {
		t.Fatal(err)
	}
	was, is := e.QP.Info(), n.QP.Info()
	was.MPA.MSS = is.MPA.MSS // of a connection that has carried something
	if was.CRC != is.CRC || was.IRD != is.IRD || was.ORD != is.ORD || was.MPA != is.MPA || was.Initiator != is.Initiator || was.RemoteAddr.String() != is.RemoteAddr.String() {
		t.Errorf("%+v has become %+v", was, is)
	}
	return n
}

// TestPark: wherever the stream is cut, the receiver stops between two messages, and what was
// read and not looked at reaches whoever goes on: the same process, or the next.
func TestPark(t *testing.T) {
	for _, next := range []bool{false, true} {
		for cut := 0; cut <= 48+2*44; cut += 3 {
			bufs := [][]byte{make([]byte, 64), make([]byte, 64), make([]byte, 64)}
			post := func(e *rdmatest.End) {
				for i, b := range bufs {
					e.Recv(t, uint64(i), b)
				}
			}
			p, e := rawToServer(t, nil, nil)
			post(e)
			p.send(sendMsg(1, []byte("first")))
			e.Want(t, 0, rdma.WCRecv, rdma.StatusSuccess)
			data := pattern(24, 7)
			stream := slices.Concat(p.fpdu(sendMsg(2, data)),
				p.fpdu(untagged(wire.Send, 0, 3, 0, false, data[:20])), p.fpdu(untagged(wire.Send, 0, 3, 20, true, data[:20])))
			if len(stream) != 48+2*44 {
				t.Fatal(len(stream))
			}
			p.write(stream[:cut])
			if !e.QP.Park(always, func() {}, nil) {
				t.Fatal("it cannot be parked")
			}
			// A message of which more has come than a part of its header is read to its end.
			const header = wire.LenField + wire.UntaggedLen
			whole := cut
			switch {
			case cut >= header && cut < 48:
				whole = 48
			case cut >= 48+header:
				whole = len(stream)
			}
			p.write(stream[cut:whole])
			await.True(t, "it stands", func() bool { e.QP.Nudge(); return e.QP.Still() })
			if next {
				// Which of them this process has seen depends on how much came before it was to stop.
				var wcs [2]rdma.WC
				seen := e.CQ.Poll(wcs[:])
				if cut < header && seen > 0 {
					t.Fatalf("cut at %d: %d messages were taken", cut, seen)
				}
				want := [][]byte{data, slices.Concat(data[:20], data[:20])}[seen:]
				e = crossed(t, e, nil, post)
				p.write(stream[whole:])
				for i, want := range want {
					if wc := e.Want(t, uint64(i), rdma.WCRecv, rdma.StatusSuccess); !bytes.Equal(bufs[i][:wc.ByteLen], want) {
						t.Fatalf("cut at %d: % x", cut, bufs[i][:wc.ByteLen])
					}
				}
			} else {
				p.write(stream[whole:])
				e.QP.Unpark()
				for i := 1; i < 3; i++ {
					e.Want(t, uint64(i), rdma.WCRecv, rdma.StatusSuccess)
				}
				if !bytes.Equal(bufs[1][:24], data) || !bytes.Equal(bufs[2][:40], slices.Concat(data[:20], data[:20])) {
					t.Fatalf("cut at %d", cut)
				}
			}
			e.Post(t, rdma.SendWR{ID: 9, Op: rdma.OpSend, SGL: []rdma.SGE{e.SGE([]byte("answer"))}})
			if u := p.recv(); string(u[wire.UntaggedLen:]) != "answer" {
				t.Fatalf("% x", u)
			}
			e.Want(t, 9, rdma.WCSend, rdma.StatusSuccess)
			p.nc.Close()
		}
	}
}

// TestParkBothEnds: queue pairs go from device to device, the initiator's as well, and all kinds
// of messages go both ways before and after, and while one end stands.
func TestParkBothEnds(t *testing.T) {
	for _, mode := range crcModes {
		p := &rdma.ConnParams{CRC: mode, Extensions: true, Zerocopy: rdma.ZerocopyOn, ZerocopyMin: 16 << 10, MPA: rdma.MPAParams{MaxFPDU: 1400}}
		a, b := rdmatest.NewPair(t, &rdmatest.Options{Client: *p, Server: *p})
		ends := []*rdmatest.End{a, b}
		post := func(e *rdmatest.End) { e.Recv(t, 1, make([]byte, 8000)) }
		post(a)
		post(b)
		for round := range uint64(6) {
			for i, e := range ends {
				transfers(t, e, ends[1-i], round)
			}
			i := int(round % 2)
			park(t, ends[i])
			// What the other end says meanwhile waits.
			o := ends[1-i]
			o.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend, SGL: []rdma.SGE{o.SGE(pattern(7000, round))}})
			o.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
			buf := make([]byte, 8000)
			ends[i] = crossed(t, ends[i], p, func(e *rdmatest.End) { e.Recv(t, 3, buf) })
			ends[i].Want(t, 3, rdma.WCRecv, rdma.StatusSuccess)
			if !bytes.Equal(buf[:7000], pattern(7000, round)) {
				t.Fatal("wrong data")
			}
			post(ends[i])
		}
	}
}

// transfers moves something in every way from e to o.
func transfers(t *testing.T, e, o *rdmatest.End, seed uint64) {
	t.Helper()
	mem := make([]byte, 1<<18)
	mr, err := o.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite|rdma.AccessRemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Dereg()
	want, got := pattern(len(mem), seed), make([]byte, len(mem))
	to := rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}
	sum := make([]byte, 8)
	for i, wr := range []rdma.SendWR{
		{Op: rdma.OpWrite, SGL: []rdma.SGE{e.SGE(want)}, Remote: to},
		{Op: rdma.OpRead, SGL: []rdma.SGE{e.SGE(got)}, Remote: to},
		{Op: rdma.OpFetchAdd, SGL: []rdma.SGE{e.SGE(sum)}, Remote: to, Add: 1},
		{Op: rdma.OpSend, SGL: []rdma.SGE{e.SGE(want[:5000])}},
	} {
		wr.ID = uint64(10 + i)
		e.Post(t, wr)
		if wc := e.Poll(t, 1)[0]; wc.ID != wr.ID || wc.Status != rdma.StatusSuccess {
			t.Fatalf("%+v", wc)
		}
	}
	o.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
	o.Recv(t, 1, make([]byte, 8000))
	if !bytes.Equal(got, want) || !bytes.Equal(sum, want[:8]) {
		t.Fatal("wrong data")
	}
}

// TestParkReads: while a Read is in flight the receiver reads on, whenever the Read was posted,
// and takes the Sends that come before its answer.
func TestParkReads(t *testing.T) {
	p, e := rawToServer(t, nil, nil)
	for i := range uint64(3) {
		e.Recv(t, i, make([]byte, 16))
	}
	p.send(sendMsg(1, nil))
	e.Want(t, 0, rdma.WCRecv, rdma.StatusSuccess)
	read := func(id uint64, msn uint32) {
		got := make([]byte, 8)
		e.Post(t, rdma.SendWR{ID: id, Op: rdma.OpRead, SGL: []rdma.SGE{e.SGE(got)}, Remote: rdma.RemoteAddr{STag: 5}})
		var h wire.ReadReq
		h.Parse(p.recv()[wire.UntaggedLen:])
		e.QP.Nudge()
		if e.QP.Still() {
			t.Fatal("it stands still with a Read in flight")
		}
		p.send(sendMsg(msn, []byte("before")), taggedMsg(wire.ReadResponse, h.SinkSTag, h.SinkTO, true, []byte("answered")))
		e.Want(t, uint64(msn-1), rdma.WCRecv, rdma.StatusSuccess)
		e.Want(t, id, rdma.WCRead, rdma.StatusSuccess)
		if string(got) != "answered" {
			t.Fatalf("%q", got)
		}
	}
	var told atomic.Int64
	e.QP.Park(always, func() { told.Add(1) }, nil)
	read(7, 2)
	await.True(t, "it stands", e.QP.Still) // told, not nudged
	read(8, 3)
	await.True(t, "it stands", e.QP.Still)
	if told.Load() == 0 {
		t.Error("nobody was told")
	}
	p.nc.Close()
}

// TestParkCarriesUnread: bytes that lie in the receiver's buffer, a part of a header or a whole
// message, go along.
func TestParkCarriesUnread(t *testing.T) {
	for _, cut := range []int{1, 19, 48} {
		p, e := rawToServer(t, nil, nil)
		for id := range uint64(3) {
			e.Recv(t, id, make([]byte, 32))
		}
		p.send(sendMsg(1, pattern(24, 1)))
		e.Want(t, 0, rdma.WCRecv, rdma.StatusSuccess)
		// The second message ends a wait, and what follows it comes by the same read.
		if !e.QP.Park(func() bool { return e.CQ.Len() > 0 }, func() {}, nil) {
			t.Fatal("it cannot be parked")
		}
		last := p.fpdu(sendMsg(3, pattern(24, 3)))
		p.write(slices.Concat(p.fpdu(sendMsg(2, pattern(24, 2))), last[:cut]))
		await.True(t, "it stands", e.QP.Still)
		e.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
		k, _, err := e.QP.Carry()
		if err != nil || len(k.Unread) != cut {
			t.Fatalf("%d bytes are carried, %d were read: %v", len(k.Unread), cut, err)
		}
		buf := make([]byte, 32)
		e = crossed(t, e, nil, func(n *rdmatest.End) { n.Recv(t, 2, buf) })
		p.write(last[cut:])
		if e.Want(t, 2, rdma.WCRecv, rdma.StatusSuccess); !bytes.Equal(buf[:24], pattern(24, 3)) {
			t.Errorf("cut at %d: % x", cut, buf)
		}
		p.nc.Close()
	}
}

// TestParkWhenAllowed: the receiver goes on as long as it is told to, and stops when it is
// nudged; a connection ends while it is parked, in every way but that of its peer.
func TestParkWhenAllowed(t *testing.T) {
	p, e := rawToServer(t, nil, nil)
	var allowed atomic.Bool
	for i := range uint64(4) {
		e.Recv(t, i, make([]byte, 16))
	}
	if !e.QP.Park(allowed.Load, func() {}, nil) || e.QP.Park(always, func() {}, nil) {
		t.Fatal("it is parked twice, or not at all")
	}
	for i := range uint64(3) {
		p.send(sendMsg(uint32(i+1), []byte("go on")))
		e.Want(t, i, rdma.WCRecv, rdma.StatusSuccess)
	}
	if _, _, err := e.QP.Carry(); !errors.Is(err, rdma.ErrState) {
		t.Fatalf("it can be carried: %v", err)
	}
	allowed.Store(true)
	e.QP.Nudge()
	await.True(t, "it stands", e.QP.Still)
	p.send(sendMsg(4, []byte("later")))
	e.QP.Unpark()
	e.QP.Unpark()
	e.Want(t, 3, rdma.WCRecv, rdma.StatusSuccess)
	park(t, e)
	p.nc.Close()
	e.QP.Unpark()
	e.WaitDone(t)

	for _, end := range []func(*rdma.QP){func(q *rdma.QP) { q.Abort(nil) }, func(q *rdma.QP) { q.Disconnect() }} {
		p, e = rawToServer(t, nil, nil)
		e.Recv(t, 0, nil)
		p.send(sendMsg(1, nil))
		park(t, e)
		end(e.QP)
		for p.recvUntilEnd() != nil {
		}
		p.nc.Close()
		e.WaitDone(t)
	}
	if e.QP.Park(always, func() {}, nil) {
		t.Error("a connection that has ended can be parked")
	}
}

// TestParkResumed: whoever waits for the end of a parking is told of it though nothing comes.
func TestParkResumed(t *testing.T) {
	p, e := rawToServer(t, nil, nil)
	resumed := make(chan struct{})
	e.Recv(t, 1, nil)
	if !e.QP.Park(func() bool { return false }, func() {}, func() { close(resumed) }) {
		t.Fatal("it cannot be parked")
	}
	p.send(sendMsg(1, nil))
	e.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess) // the receiver has asked
	e.QP.Unpark()
	select {
	case <-resumed:
	case <-time.After(rdmatest.Timeout):
		t.Error("the receiver does not say that it goes on")
	}
	p.nc.Close()
}

// TestParkNobodyElse: only connections over TCP can be parked.
func TestParkNobodyElse(t *testing.T) {
	o := &rdmatest.Options{Device: rdma.DeviceConfig{Provider: rdma.ProviderRoCE}}
	_, e := rdmatest.NewPair(t, o)
	e.QP.Nudge()
	e.QP.Unpark()
	if e.QP.Park(always, func() {}, nil) || e.QP.Still() {
		t.Error("a connection over RoCE can be parked")
	}
	if _, _, err := e.QP.Carry(); !errors.Is(err, rdma.ErrInvalid) {
		t.Error(err)
	}
	k := rdma.Carried{FPDUSize: 1500}
	if err := e.QP.Adopt(nil, &k, nil); !errors.Is(err, rdma.ErrInvalid) {
		t.Error(err)
	}
	if _, e = rawToServer(t, nil, nil); e.QP.Still() {
		t.Error("a connection that goes on stands still")
	}
	park := func() bool { return e.QP.Park(always, func() {}, nil) && e.QP.Still() }
	if park() { // nothing has come from the peer: it may not even send yet
		t.Error("it stands before its beginning")
	}
}

// TestCarriedRefused: what no process of ours carries, or what is beyond a device, is refused.
func TestCarriedRefused(t *testing.T) {
	e := rdmatest.NewEnd(t, &rdmatest.Options{Device: rdma.DeviceConfig{MaxIRD: 8, MaxORD: 8}}, 0)
	good := rdma.Carried{Rev: 2, IRD: 8, ORD: 8, FPDUSize: 1500}
	if err := e.Dev.CheckCarried(&good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*rdma.Carried){
		"revision": func(k *rdma.Carried) { k.Rev = 3 },
		"IRD":      func(k *rdma.Carried) { k.IRD = 9 },
		"ORD":      func(k *rdma.Carried) { k.ORD = 9 },
		"no IRD":   func(k *rdma.Carried) { k.IRD = -1 },
		"depth":    func(k *rdma.Carried) { k.ORD = 1 << 14 },
		"RTR":      func(k *rdma.Carried) { k.RTR = 8 },
		"short":    func(k *rdma.Carried) { k.FPDUSize = 100 },
		"long":     func(k *rdma.Carried) { k.FPDUSize = 1 << 17 },
		"unread":   func(k *rdma.Carried) { k.Unread = make([]byte, 1<<18) },
	} {
		k := good
		spoil(&k)
		if e.Dev.CheckCarried(&k) == nil {
			t.Errorf("%s: taken", name)
		}
		if err := e.QP.Adopt(nil, &k, nil); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, c := loopback.Pair(t)
	if err := e.QP.Adopt(c, &good, nil); err != nil {
		t.Fatal(err)
	}
	over := captureOne(t)
	peer, c := loopback.Pair(t)
	if err := e.QP.Adopt(c, &good, nil); !errors.Is(err, rdma.ErrState) {
		t.Errorf("adopted twice: %v", err)
	}
	over()
	if _, err := c.Write([]byte("x")); err != nil { // it is still ours
		t.Error(err)
	}
	c.Close()
	peer.Close()
}

// FuzzCarried: whatever is accepted from another process, unread bytes included, is no more
// than a connection that ends.
func FuzzCarried(f *testing.F) {
	p := &rawPeer{crc: true}
	for _, unread := range [][]byte{nil, p.fpdu(sendMsg(3, []byte("hello"))), p.fpdu(sendMsg(3, []byte("hello")))[:9], p.fpdu(taggedMsg(wire.ReadResponse, 1, 0, true, []byte("data")))} {
		b, err := json.Marshal(&rdma.Carried{Rev: 2, CRC: true, IRD: 4, ORD: 4, FPDUSize: 1500, Next: [4]uint32{1, 2, 3, 4}, Expected: [4]uint32{3, 1, 1, 1}, Unread: unread})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var k rdma.Carried
		if json.Unmarshal(b, &k) != nil {
			return
		}
		e := rdmatest.NewEnd(t, &rdmatest.Options{}, 1)
		if e.Dev.CheckCarried(&k) != nil {
			return
		}
		peer, c := loopback.Pair(t)
		e.Recv(t, 1, make([]byte, 64))
		if err := e.QP.Adopt(c, &k, nil); err != nil {
			t.Fatal(err)
		}
		peer.Close()
		e.WaitDone(t)
	})
}
