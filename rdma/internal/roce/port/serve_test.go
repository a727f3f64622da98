package port

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/rc"
	"softiser/rdma/internal/verbs"
)

// nobody is a front that does not want to know.
type nobody struct{}

func (nobody) StateChanged(_, _ verbs.State) func() { return func() {} }
func (nobody) Cause(err error) error                { return err }
func (nobody) Ended(error)                          {}
func (nobody) Event(verbs.Event)                    {}

// queuePair is a queue pair over a Port, with both halves of a reliable connection and
// memory for its peer.
type queuePair struct {
	t      *testing.T
	v      *verbs.QP
	cq     *verbs.CQ
	resp   *rc.Responder
	req    *rc.Requester
	sender *Sender
	mem    []byte // guarded by v.Mu while the peer uses it
	key    uint32
	base   uint64
	start  time.Time
	wcs    []verbs.WC
	out    rc.Outgoing
	timer  *time.Timer

	// Batches that have ended, and the packets in them.
	batches, packets atomic.Int64
}

func newQueuePair(t *testing.T, p *Port, size int) *queuePair {
	t.Helper()
	num, err := p.QPNs().Take()
	if err != nil {
		t.Fatal(err)
	}
	d, v := new(verbs.Device), new(verbs.QP)
	q := &queuePair{t: t, v: v, cq: new(verbs.CQ), mem: make([]byte, size), start: time.Now()}
	d.Table.Limit(16)
	q.cq.Init(256, nil)
	dom := &mem.Domain{Revoked: func(*mem.Region) {}}
	v.Num, v.SignalAll = num, true
	v.Mem = mem.Stream{Opened: func(*mem.Region) {}, Closed: func(*mem.Region) {}, Revoked: func(*mem.Region) {}}
	v.Dev, v.PD, v.SendCQ, v.RecvCQ, v.MaxSend = d, dom, q.cq, q.cq, 64
	v.Init(nobody{}, 64)
	region := &mem.Region{Remote: true}
	region.Init(dom)
	if err := d.Table.Insert(region); err != nil {
		t.Fatal(err)
	}
	q.key, q.base = region.Open(&v.Mem, [][]byte{q.mem}, mem.RemoteRead|mem.RemoteWrite)
	v.Mu.Lock()
	v.SetState(verbs.StateRTS)
	v.Mu.Unlock()
	return q
}

// attach connects q: peerPSN and psn are what each side expects first.
func (q *queuePair) attach(p *Port, peer netip.Addr, peerQPN uint32, mtu packet.MTU, peerPSN, psn uint32, reads int) {
	q.t.Helper()
	q.resp = rc.NewResponder(q.v, rc.Params{RemoteQPN: peerQPN, MTU: mtu, PSN: packet.PSN(psn), Resources: 4, MinRNR: 12})
	q.req = rc.NewRequester(q.v, rc.RequesterParams{
		RemoteQPN: peerQPN, MTU: mtu, PSN: packet.PSN(peerPSN), Depth: reads, Window: 64, AckTimeout: bound, Retries: 7, RNRRetries: rc.Forever,
	})
	var err error
	if q.sender, err = p.Sender(peer, q.v.Num); err != nil {
		q.t.Fatal(err)
	}
	q.timer = time.AfterFunc(time.Hour, func() {
		q.v.Mu.Lock()
		q.req.Tick(time.Since(q.start))
		q.pumpLocked()
		q.v.Mu.Unlock()
	})
	q.t.Cleanup(func() { q.timer.Stop() })
	p.Attach(q.v.Num, peer, func(_ netip.AddrPort, pkt *packet.Packet) {
		q.packets.Add(1)
		q.v.Mu.Lock()
		defer q.v.Mu.Unlock()
		if pkt.Op.Traits()&packet.Response != 0 {
			q.req.Receive(pkt, time.Since(q.start))
		} else {
			q.resp.Receive(pkt)
		}
	}, func() {
		q.batches.Add(1)
		q.v.Mu.Lock()
		defer q.v.Mu.Unlock()
		q.pumpLocked()
	})
}

// pumpLocked sends what there is to send, and completes what has ended.
func (q *queuePair) pumpLocked() {
	for q.resp.Next(&q.out) {
		q.add(true) // whoever owns the memory may write to it meanwhile
	}
	for q.req.Next(&q.out, time.Since(q.start)) {
		q.add(false)
	}
	if err := q.sender.Flush(); err != nil && !errors.Is(err, net.ErrClosed) {
		q.t.Error(err)
	}
	q.wcs = q.resp.TakeWCs(q.wcs[:0])
	q.cq.AddAll(q.wcs)
	for _, err := range []error{q.resp.Err(), q.req.Err()} {
		if err != nil {
			q.t.Error(err)
		}
	}
	if at, ok := q.req.Deadline(); ok {
		q.timer.Reset(at - time.Since(q.start))
	}
}

func (q *queuePair) add(copied bool) {
	defer q.out.Release()
	ok, err := q.sender.Add(&q.out.Packet, q.out.Payload, q.out.N, copied)
	if err == nil && !ok {
		if err = q.sender.Flush(); err == nil {
			_, err = q.sender.Add(&q.out.Packet, q.out.Payload, q.out.N, copied)
		}
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		q.t.Error(err)
	}
}

// post queues a request of the send queue.
func (q *queuePair) post(op verbs.Opcode, seg []byte, to verbs.RemoteAddr) {
	q.t.Helper()
	q.v.Mu.Lock()
	defer q.v.Mu.Unlock()
	e, err := q.v.PostLocked(1, op)
	if err != nil {
		q.t.Fatal(err)
	}
	e.Flags, e.Length, e.Remote = verbs.FlagSignaled, uint32(len(seg)), to
	e.Add(seg, mem.LocalKey)
	q.pumpLocked()
}

// buffer posts a receive buffer.
func (q *queuePair) buffer(b []byte) {
	q.t.Helper()
	q.v.RQ.Lock()
	defer q.v.RQ.Unlock()
	r, err := q.v.RQ.PostLocked(2)
	if err != nil {
		q.t.Fatal(err)
	}
	r.Add(b, mem.LocalKey)
}

// completed waits until operations of all kinds that are named have completed, once
// each; others that complete meanwhile are forgotten.
func (q *queuePair) completed(ctx context.Context, ops ...verbs.WCOpcode) bool {
	for len(ops) > 0 {
		if err := q.cq.Wait(ctx); err != nil {
			q.t.Error(err)
			return false
		}
		q.cq.Lock()
		wc := *q.cq.NextLocked()
		q.cq.Unlock()
		if wc.Status != verbs.StatusSuccess {
			q.t.Errorf("%v: %v", wc.Opcode, wc.Status)
			return false
		}
		if i := slices.Index(ops, wc.Opcode); i >= 0 {
			ops = slices.Delete(ops, i, i+1)
		}
	}
	return true
}

// serve accepts one connection at p and executes what comes on it.
func serve(t *testing.T, p *Port, in *cm.Incoming, size int, h cm.Hooks) *queuePair {
	t.Helper()
	q := newQueuePair(t, p, size)
	psn := cm.NewPSN()
	q.attach(p, in.Peer(), in.Request.QPN, packet.MTU(in.Request.MTU), in.Request.PSN, psn, int(in.Request.ResponderResources))
	if _, err := in.Accept(&cm.Reply{QPN: q.v.Num, PSN: psn, ResponderResources: in.Request.InitiatorDepth}, h); err != nil {
		t.Fatal(err)
	}
	return q
}

// Connection manager, sockets, checks, the responder of reliable connections and its
// answers fit together: a peer makes a connection, writes, reads back, and ends it.
func TestServe(t *testing.T) {
	for _, addrs := range [][2]netip.Addr{{lo4, lo4b}, {lo6, lo6}} {
		t.Run(addrs[0].String(), func(t *testing.T) {
			loopback.Namespace(t, loopback.MTU)
			a := open(t, addrs[0], 1)
			b := a
			if addrs[0] != addrs[1] {
				b = open(t, addrs[1], 2)
			}
			l, err := b.CM().Listen(service, 1)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			const size = 300000
			accepted, ended := make(chan *queuePair, 1), make(chan error, 1)
			go func() {
				in, err := l.Accept(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				accepted <- serve(t, b, in, size, cm.Hooks{Ended: func(err error) { ended <- err }})
			}()
			req := request(5)
			req.MTU, req.InitiatorDepth = uint8(packet.MTU4096), 4
			answers := collect(a, addrs[1])
			conn, err := a.CM().Connect(ctx, addrs[1], req, cm.Hooks{})
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.Establish(); err != nil {
				t.Fatal(err)
			}
			var srv *queuePair
			select {
			case srv = <-accepted:
			case <-ctx.Done():
				t.Fatal("not accepted")
			}

			s, err := a.Sender(addrs[1], 5)
			if err != nil {
				t.Fatal(err)
			}
			psn := packet.PSN(conn.Reply().PSN)
			data := make([]byte, size)
			rng := rand.New(rand.NewPCG(1, 2))
			for i := range data {
				data[i] = byte(rng.Uint32())
			}
			var pkts []sent
			for off := 0; off < size; off += 100000 {
				m := message(packet.WriteFirst, psn, 100000)
				for i := range m {
					copy(m[i].data, data[off+4096*i:])
					m[i].QPN = conn.Reply().QPN
				}
				m[0].RETH.VA, m[0].RETH.RKey = srv.base+uint64(off), srv.key
				m[len(m)-1].AckReq = true
				psn = psn.Add(len(m))
				pkts = append(pkts, m...)
			}
			send(t, s, pkts)
			for acked := packet.PSN(0); acked != psn.Add(-1); {
				r := take(t, b, answers, 1)[0]
				if r.Op != packet.Acknowledge || !r.AETH.Syndrome.IsACK() {
					t.Fatalf("%v: %v", r.Op, r.AETH.Syndrome)
				}
				acked = r.PSN
			}
			if n, m := srv.batches.Load(), srv.packets.Load(); n >= m {
				t.Errorf("%d batches of %d packets", n, m)
			}
			if !bytes.Equal(srv.mem, data) {
				t.Error("something else was written")
			}

			read := sent{Packet: packet.Packet{BTH: packet.BTH{Op: packet.ReadRequest, PKey: packet.DefaultPKey, QPN: conn.Reply().QPN, PSN: psn, AckReq: true}}}
			read.RETH = packet.RETH{VA: srv.base, RKey: srv.key, Len: size}
			send(t, s, []sent{read})
			var got []byte
			for len(got) < size {
				r := take(t, b, answers, 1)[0]
				if r.PSN != psn || r.Op.Traits()&packet.Read == 0 {
					t.Fatalf("%v PSN %v, want %v", r.Op, r.PSN, psn)
				}
				psn = psn.Add(1)
				got = append(got, r.data...)
			}
			if !bytes.Equal(got, data) {
				t.Error("something else was read")
			}

			if err := conn.Disconnect(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if !errors.Is(err, cm.ErrDisconnected) {
					t.Error(err)
				}
			case <-time.After(bound):
				t.Fatal("not ended")
			}
			for _, p := range []*Port{a, b} {
				st := p.Stats()
				st.Packets = 0
				if st != (Stats{}) {
					t.Errorf("%+v", st)
				}
				for _, r := range p.udp.Receivers() {
					if lost := r.Stats().Lost; lost != 0 {
						t.Errorf("%d packets were lost by the socket", lost)
					}
				}
			}
		})
	}
}

// The exchange of rdma-core's rping, between two queue pairs of ours: the client tells
// by a SEND where its data is, the server READs it and says so, and WRITEs it to where
// the next SEND tells.
func TestRping(t *testing.T) {
	for _, c := range []struct {
		mtu    packet.MTU
		size   int
		rounds int
	}{{packet.MTU1024, 3000, 20}, {packet.MTU4096, 200000, 10}, {packet.MTU256, 1, 5}} {
		t.Run(fmt.Sprintf("%d bytes", c.size), func(t *testing.T) {
			loopback.Namespace(t, loopback.MTU)
			a, b := open(t, lo4, 2), open(t, lo4b, 1)
			l, err := b.CM().Listen(service, 1)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			served := make(chan struct{})
			go func() {
				defer close(served)
				in, err := l.Accept(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				q, advert := newQueuePair(t, b, 1), make([]byte, 16)
				psn := cm.NewPSN()
				q.attach(b, in.Peer(), in.Request.QPN, packet.MTU(in.Request.MTU), in.Request.PSN, psn, int(in.Request.ResponderResources))
				q.buffer(advert)
				if _, err := in.Accept(&cm.Reply{QPN: q.v.Num, PSN: psn, ResponderResources: 4, InitiatorDepth: 4}, cm.Hooks{}); err != nil {
					t.Error(err)
					return
				}
				data, ready := make([]byte, c.size), make([]byte, 4)
				for range c.rounds {
					for _, step := range []struct {
						op verbs.Opcode
						wc verbs.WCOpcode
					}{{verbs.OpRead, verbs.WCRead}, {verbs.OpWrite, verbs.WCWrite}} {
						if !q.completed(ctx, verbs.WCRecv) {
							return
						}
						to := verbs.RemoteAddr{TO: binary.BigEndian.Uint64(advert), STag: binary.BigEndian.Uint32(advert[8:])}
						q.buffer(advert)
						q.post(step.op, data, to)
						if !q.completed(ctx, step.wc) {
							return
						}
						q.post(verbs.OpSend, ready, verbs.RemoteAddr{})
					}
				}
			}()

			q, psn := newQueuePair(t, a, 2*c.size), cm.NewPSN()
			req := request(q.v.Num)
			req.MTU, req.PSN, req.ResponderResources, req.InitiatorDepth = uint8(c.mtu), psn, 4, 4
			conn, err := a.CM().Connect(ctx, lo4b, req, cm.Hooks{})
			if err != nil {
				t.Fatal(err)
			}
			r := conn.Reply()
			q.attach(a, lo4b, r.QPN, c.mtu, r.PSN, psn, int(r.ResponderResources))
			if err := conn.Establish(); err != nil {
				t.Fatal(err)
			}
			advert, done := make([]byte, 16), make([]byte, 16)
			for round := range c.rounds {
				q.v.Mu.Lock()
				for i := range c.size {
					q.mem[i], q.mem[c.size+i] = byte(round+i), 0
				}
				q.v.Mu.Unlock()
				for step := range 2 {
					binary.BigEndian.PutUint64(advert, q.base+uint64(step*c.size))
					binary.BigEndian.PutUint32(advert[8:], q.key)
					q.buffer(done)
					q.post(verbs.OpSend, advert, verbs.RemoteAddr{})
					if !q.completed(ctx, verbs.WCSend, verbs.WCRecv) {
						t.FailNow()
					}
				}
				q.v.Mu.Lock()
				if !bytes.Equal(q.mem[:c.size], q.mem[c.size:]) {
					t.Fatalf("round %d: other bytes came back", round)
				}
				q.v.Mu.Unlock()
			}
			<-served
			q.v.Mu.Lock()
			defer q.v.Mu.Unlock()
			if s := q.req.Stats(); s.Repeated-s.Probes+s.Strange != 0 { // a probe asks whether an answer is only late
				t.Errorf("%+v", s)
			}
		})
	}
}
