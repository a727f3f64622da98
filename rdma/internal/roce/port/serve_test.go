package port

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
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

// served is a queue pair that executes its peer's requests, in memory of its own.
type served struct {
	resp   *rc.Responder
	sender *Sender
	mem    []byte
	key    uint32
	base   uint64
	// Batches that have ended, and the packets in them.
	batches, packets atomic.Int64
}

// serve accepts one connection at p and executes what comes on it.
func serve(t *testing.T, p *Port, in *cm.Incoming, size int, h cm.Hooks) *served {
	t.Helper()
	d, cq, v := new(verbs.Device), new(verbs.CQ), new(verbs.QP)
	d.Table.Limit(16)
	cq.Init(16, nil)
	dom := &mem.Domain{Revoked: func(*mem.Region) {}}
	v.Mem = mem.Stream{Opened: func(*mem.Region) {}, Closed: func(*mem.Region) {}, Revoked: func(*mem.Region) {}}
	v.Dev, v.PD, v.SendCQ, v.RecvCQ, v.MaxSend = d, dom, cq, cq, 16
	v.Init(nobody{}, 16)
	s := &served{mem: make([]byte, size)}
	region := &mem.Region{Remote: true}
	region.Init(dom)
	if err := d.Table.Insert(region); err != nil {
		t.Fatal(err)
	}
	s.key, s.base = region.Open(&v.Mem, [][]byte{s.mem}, mem.RemoteRead|mem.RemoteWrite)

	qpn, err := p.QPNs().Take()
	if err != nil {
		t.Fatal(err)
	}
	v.Num = qpn
	psn := cm.NewPSN()
	s.resp = rc.NewResponder(v, rc.Params{
		RemoteQPN: in.Request.QPN, MTU: packet.MTU(in.Request.MTU), PSN: packet.PSN(psn), Resources: int(in.Request.InitiatorDepth),
	})
	if s.sender, err = p.Sender(in.Peer(), qpn); err != nil {
		t.Fatal(err)
	}
	var o rc.Outgoing
	answer := func() {
		for s.resp.Next(&o) {
			ok, err := s.sender.Add(&o.Packet, o.Payload, o.N, true)
			if err == nil && !ok {
				if err = s.sender.Flush(); err == nil {
					_, err = s.sender.Add(&o.Packet, o.Payload, o.N, true)
				}
			}
			o.Release()
			if err != nil {
				t.Error(err)
			}
		}
		if err := s.sender.Flush(); err != nil {
			t.Error(err)
		}
	}
	p.Attach(qpn, in.Peer(), func(_ netip.AddrPort, pkt *packet.Packet) {
		s.packets.Add(1)
		s.resp.Receive(pkt)
	}, func() {
		s.batches.Add(1)
		answer()
	})
	if _, err := in.Accept(&cm.Reply{QPN: qpn, PSN: psn, ResponderResources: in.Request.InitiatorDepth}, h); err != nil {
		t.Fatal(err)
	}
	return s
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
			accepted, ended := make(chan *served, 1), make(chan error, 1)
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
			var srv *served
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
