package cm

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/verbs"
)

// A flood of requests holds what the limits say, one address a part of that, and all
// of it only for a time.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(20)
		defer n.close()
		lim := Limits{Pending: 100, PendingPerPeer: 10}
		m := n.manager(addrB, lim)
		if _, err := m.Listen(service, 1000); err != nil {
			t.Fatal(err)
		}
		flood := func(from netip.Addr) {
			for id := range uint32(50) {
				m.Receive(from, mad.Append(nil, 1, reqFrom(t, m, from, 100+id)))
			}
		}
		flood(netip.MustParseAddr("10.1.0.1"))
		if s := m.Stats(); s.Pending != 10 || s.Full != 40 {
			t.Errorf("%d pending from one address, %d dropped", s.Pending, s.Full)
		}
		for i := range byte(50) {
			flood(netip.AddrFrom4([4]byte{10, 2, 0, i}))
		}
		s := m.Stats()
		if s.Pending != 100 || s.Connections != 100 {
			t.Errorf("%d pending, %d connections", s.Pending, s.Connections)
		}
		if n.total() != 0 {
			t.Errorf("%d messages for requests that nobody has accepted", n.total())
		}
		time.Sleep(31 * time.Second)
		if s := m.Stats(); s.Pending != 0 || s.Connections != 0 || len(m.byID)+len(m.byQP)+len(m.perPeer) != 0 {
			t.Errorf("left over: %+v, %d %d %d", s, len(m.byID), len(m.byQP), len(m.perPeer))
		}
	})
}

// The 64 bits of an IPv6 address that its owner chooses make no more shares.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(21)
		defer n.close()
		m := n.manager("fd00::2", Limits{PendingPerPeer: 3})
		if _, err := m.Listen(service, 1000); err != nil {
			t.Fatal(err)
		}
		for i := range byte(20) {
			a := netip.MustParseAddr("fd00:1::").As16()
			a[15] = i
			from := netip.AddrFrom16(a)
			m.Receive(from, mad.Append(nil, 1, reqFrom(t, m, from, 100)))
		}
		from := netip.MustParseAddr("fd00:2::1")
		m.Receive(from, mad.Append(nil, 1, reqFrom(t, m, from, 100)))
		if s := m.Stats(); s.Pending != 4 {
			t.Errorf("%d pending", s.Pending)
		}
	})
}

// What a request with a forged address makes us send to that address.
func TestAmplification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(22)
		defer n.close()
		m := n.manager(addrB, Limits{})
		l, err := m.Listen(service, 1)
		if err != nil {
			t.Fatal(err)
		}
		victim := netip.MustParseAddr("10.0.0.77")
		m.Receive(victim, mad.Append(nil, 1, reqFrom(t, m, victim, 5)))
		in, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		e := newEvents()
		if _, err := in.Accept(&Reply{QPN: 9}, e.hooks()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := wait(t, "the end", e.ended); !errors.Is(err, verbs.ErrTimeout) {
			t.Error(err)
		}
		if d := time.Since(start); d > 15*time.Second {
			t.Errorf("its queue pair was held for %v", d)
		}
		if got := n.total(); got != 1+repeatsREP+1 { // and a REJ
			t.Errorf("%d messages", got)
		}
	})
}

// Exponents in a request do not make us wait for hours.
func TestLongTimeouts(t *testing.T) {
	for n := range uint8(255) {
		if d := timeout(n); d < minTimeout || d > maxTimeout {
			t.Errorf("exponent %d: %v", n, d)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 23)
		defer p.n.close()
		r := reqFrom(t, p.b, p.a.cfg.Local, 5)
		r.LocalCMTimeout, r.Primary.AckTimeout = 31, 31
		p.b.Receive(p.a.cfg.Local, mad.Append(nil, 1, r))
		in, err := p.l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		e := newEvents()
		c, err := in.Accept(&Reply{QPN: 9}, e.hooks())
		if err != nil {
			t.Fatal(err)
		}
		p.b.Receive(p.a.cfg.Local, mad.Append(nil, 1, &mad.MRA{LocalCommID: 5, RemoteCommID: c.id, Which: mad.WhichREP, ServiceTimeout: 31}))
		start := time.Now()
		select {
		case <-e.gone:
		case <-time.After(3 * time.Minute):
		}
		if d := time.Since(start); d > 2*time.Minute {
			t.Errorf("gone after %v", d)
		}
	})
}

// Who does not know the numbers of a connection, or is not its peer, changes nothing.
func TestForged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 24)
		defer p.n.close()
		ca, cp, ea, ep := p.connect(t, 80)
		peer, other := p.b.cfg.Local, netip.MustParseAddr("10.0.0.66")
		givesUp := &mad.REJ{LocalCommID: cp.id, Which: mad.WhichREQ, Reason: mad.ReasonTimeout, InfoLength: 8}
		binary.BigEndian.PutUint64(givesUp.ARI[:], p.b.cfg.GUID)
		for _, f := range []struct {
			name string
			from netip.Addr
			msg  mad.Message
		}{
			{"DREQ from elsewhere", other, &mad.DREQ{LocalCommID: cp.id, RemoteCommID: ca.id, RemoteQPN: 80}},
			{"DREQ with another remote ID", peer, &mad.DREQ{LocalCommID: cp.id + 1, RemoteCommID: ca.id, RemoteQPN: 80}},
			{"DREQ for another queue pair", peer, &mad.DREQ{LocalCommID: cp.id, RemoteCommID: ca.id, RemoteQPN: 81}},
			{"DREP unasked", peer, &mad.DREP{LocalCommID: cp.id, RemoteCommID: ca.id}},
			{"REJ from elsewhere", other, &mad.REJ{LocalCommID: cp.id, RemoteCommID: ca.id, Reason: mad.ReasonTimeout}},
			{"REJ of a REQ that was ours", peer, givesUp},
			{"REJ without the remote ID", peer, &mad.REJ{RemoteCommID: ca.id, Reason: mad.ReasonStaleConn}},
			{"REP with another ID", peer, &mad.REP{LocalCommID: cp.id + 1, RemoteCommID: ca.id, LocalQPN: 80}},
			{"MRA", peer, &mad.MRA{LocalCommID: cp.id, RemoteCommID: ca.id, ServiceTimeout: 31}},
			{"RTU to the active side", peer, &mad.RTU{LocalCommID: cp.id, RemoteCommID: ca.id}},
			{"REQ for the same queue pair from elsewhere", other, reqFrom(t, p.a, other, 80)},
		} {
			p.a.Receive(f.from, mad.Append(nil, 1, f.msg))
			if ca.State() != Established {
				t.Fatalf("%s: %v", f.name, ca.State())
			}
		}
		if got := p.n.count(mad.AttrRTU, addrB); got != 1 {
			t.Errorf("%d RTUs", got)
		}
		time.Sleep(10 * time.Second)
		if len(ea.ended)+len(ep.ended) != 0 || cp.State() != Established {
			t.Error("the connection has ended")
		}
	})
}

// A peer that ends connections as fast as it makes them does not fill the memory.
func TestManyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(25)
		defer n.close()
		m := n.manager(addrB, Limits{TimeWait: 32})
		l, err := m.Listen(service, 1)
		if err != nil {
			t.Fatal(err)
		}
		peer, gone := netip.MustParseAddr(addrA), 0
		for id := uint32(1000); id < 1200; id++ {
			m.Receive(peer, mad.Append(nil, 1, reqFrom(t, m, peer, id)))
			in, err := l.Accept(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c, err := in.Accept(&Reply{QPN: id}, Hooks{Gone: func() { gone++ }})
			if err != nil {
				t.Fatal(err)
			}
			m.Receive(peer, mad.Append(nil, 1, &mad.RTU{LocalCommID: id, RemoteCommID: c.id}))
			m.Receive(peer, mad.Append(nil, 1, &mad.DREQ{LocalCommID: id, RemoteCommID: c.id, RemoteQPN: id}))
		}
		if s := m.Stats(); s.Connections != 32 || gone != 200-32 {
			t.Errorf("%d connections, %d gone", s.Connections, gone)
		}
	})
}

// hostile throws MADs at a Manager, captured ones with a few bytes changed and the
// numbers of live connections put in, and looks whether it still keeps its promises:
// at most two messages for one that came, the limits, and an end of everything.
func hostile(t *testing.T, seed uint64, rounds int) {
	rng := rand.New(rand.NewPCG(seed, 3))
	n := newNetwork(seed)
	lim := Limits{Pending: 20, PendingPerPeer: 8, TimeWait: 16}
	m := n.manager("10.9.0.1", lim)
	l, err := m.Listen(service, 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Serve(mad.ServiceOf(mad.ProtocolUDP, 7174), func(*Lookup) LookupAnswer { return LookupAnswer{QPN: 5} }); err != nil {
		t.Fatal(err)
	}
	qpn := uint32(100)
	var accepted atomic.Int32
	go func() {
		for {
			in, err := l.Accept(t.Context())
			if err != nil {
				return
			}
			switch qpn++; qpn % 5 {
			case 0:
				_ = in.Reject([]byte("no"))
			case 1: // left to itself
			default:
				if _, err := in.Accept(&Reply{QPN: qpn}, Hooks{}); err == nil {
					accepted.Add(1)
				}
			}
		}
	}()
	var seeds [][]byte
	for _, name := range []string{"rping-v4", "cm-rej-consumer", "cm-stale-conn", "udaddy-sidr"} {
		for _, c := range capture(t, name) {
			seeds = append(seeds, c.b)
		}
	}
	peers := []netip.Addr{netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("10.9.0.3"), netip.MustParseAddr("10.9.0.1")}
	for i := range rounds {
		b := append([]byte(nil), seeds[rng.IntN(len(seeds))]...)
		for range rng.IntN(4) {
			b[rng.IntN(len(b))] = byte(rng.Uint32())
		}
		m.mu.Lock()
		ids := make([]uint32, 0, len(m.conns))
		for id := range m.conns {
			ids = append(ids, id)
		}
		m.mu.Unlock()
		if len(ids) > 0 && rng.IntN(2) == 0 {
			binary.BigEndian.PutUint32(b[28:], ids[rng.IntN(len(ids))])
		}
		if rng.IntN(3) == 0 { // another communication ID and queue pair of few
			binary.BigEndian.PutUint32(b[24:], uint32(rng.IntN(40)))
			binary.BigEndian.PutUint32(b[24+32:], uint32(rng.IntN(40))<<8|4)
		}
		before := n.total()
		m.Receive(peers[rng.IntN(len(peers))], b)
		synctest.Wait()
		if got := n.total() - before; got > 2 {
			t.Fatalf("seed %d, round %d: %d messages for one", seed, i, got)
		}
		if s := m.Stats(); s.Pending > lim.Pending || s.Pending < 0 {
			t.Fatalf("seed %d, round %d: %d pending", seed, i, s.Pending)
		}
		if i%50 == 0 {
			time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond) // in a bubble
		}
	}
	m.Close()
	if s := m.Stats(); s.Connections != 0 || s.Pending != 0 || len(m.byID)+len(m.byQP)+len(m.perPeer)+len(m.lookups) != 0 {
		t.Errorf("seed %d: left over %+v, %d %d %d", seed, s, len(m.byID), len(m.byQP), len(m.perPeer))
	}
	if accepted.Load() == 0 {
		t.Errorf("seed %d: nothing was accepted", seed)
	}
}

func TestHostile(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) { hostile(t, seed, 2000) })
	}
}

// FuzzReceive: whatever comes in whatever order, with time between, is survived.
func FuzzReceive(f *testing.F) {
	var all []byte
	for _, c := range capture(f, "rping-v4") {
		all = append(all, c.b...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 64*mad.Len {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(1)
			m := n.manager("10.9.0.1", Limits{})
			defer n.close()
			l, err := m.Listen(service, 4)
			if err != nil {
				t.Fatal(err)
			}
			id := uint32(0xd1abf2a0) // as in the capture
			m.newID = func() uint32 { id++; return id - 1 }
			go func() {
				for {
					in, err := l.Accept(t.Context())
					if err != nil {
						return
					}
					if _, err := in.Accept(&Reply{QPN: 17}, Hooks{}); err != nil {
						return
					}
				}
			}()
			for peer := netip.MustParseAddr("10.9.0.2"); len(b) >= mad.Len; b = b[mad.Len:] {
				m.Receive(peer, b[:mad.Len])
				synctest.Wait()
				time.Sleep(time.Duration(b[4]) * 20 * time.Millisecond)
			}
		})
	})
}
