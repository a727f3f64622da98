package cm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/verbs"
)

// What each side says arrives at the other.
func TestConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 1)
		defer p.n.close()
		got := make(chan Request, 1)
		go func() {
			in, err := p.l.Accept(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			got <- in.Request
			if _, err := in.Accept(&Reply{QPN: 9, PSN: 0x654321, ResponderResources: 3, InitiatorDepth: 4, RNRRetry: 6, SRQ: true, Private: []byte("welcome")}, Hooks{}); err != nil {
				t.Error(err)
			}
		}()
		want := request(7)
		c, err := p.a.Connect(t.Context(), p.b.cfg.Local, want, Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		in := <-got
		if in.QPN != 7 || in.PSN != want.PSN || in.ResponderResources != 4 || in.InitiatorDepth != 3 || in.MTU != 3 || in.SrcPort != 33000 || in.GUID != p.a.cfg.GUID ||
			in.AckTimeout != ackTimeout || in.FlowLabel != (33000*31+7174)&0xfffff || len(in.Private) != mad.UserREQ || !bytes.HasPrefix(in.Private, []byte("hello\x00")) {
			t.Errorf("request %+v", in)
		}
		r := c.Reply()
		if r.QPN != 9 || r.PSN != 0x654321 || r.ResponderResources != 3 || r.InitiatorDepth != 4 || r.RNRRetry != 6 || !r.SRQ || r.AckDelay != ackDelay || r.GUID != p.b.cfg.GUID ||
			len(r.Private) != mad.PrivateREP || !bytes.HasPrefix(r.Private, []byte("welcome\x00")) {
			t.Errorf("reply %+v", r)
		}
	})
}

// A connection ends by a DREQ of either side, or of both at once, and its numbers
// stay in use until no packet of it can come.
func TestDisconnect(t *testing.T) {
	for _, who := range []string{"active", "passive", "both"} {
		t.Run(who, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, 2)
				defer p.n.close()
				ca, cp, ea, ep := p.connect(t, 20)
				start := time.Now()
				wantA, wantP := ErrDisconnected, ErrDisconnected
				if who != "passive" {
					wantA = nil
					if err := ca.Disconnect(); err != nil {
						t.Fatal(err)
					}
				}
				if who != "active" {
					wantP = nil
					if err := cp.Disconnect(); err != nil {
						t.Fatal(err)
					}
				}
				if err := wait(t, "the end", ea.ended); err != wantA {
					t.Errorf("active side: %v, want %v", err, wantA)
				}
				if err := wait(t, "the end", ep.ended); err != wantP {
					t.Errorf("passive side: %v, want %v", err, wantP)
				}
				if ca.State() != TimeWait || cp.State() != TimeWait {
					t.Errorf("%v, %v", ca.State(), cp.State())
				}
				wait(t, "Gone", ea.gone)
				wait(t, "Gone", ep.gone)
				if d := time.Since(start); d < 2*timeout(ackTimeout) || d > 2*timeout(ackTimeout)+time.Second {
					t.Errorf("gone after %v", d)
				}
				if a, b := p.a.Stats(), p.b.Stats(); a.Connections+b.Connections+b.Pending != 0 {
					t.Errorf("left over: %+v, %+v", a, b)
				}
			})
		})
	}
}

// On a network that loses, repeats and reorders, every connection opens and ends, and
// nothing is left behind.
func TestLossyNetwork(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, seed)
			defer p.n.close()
			p.n.loss, p.n.twice, p.n.latest = 0.1, 0.2, 500*time.Millisecond
			if seed%2 == 0 {
				p.n.loss = 0.02
			}
			for i := range uint32(4) {
				ca, cp, ea, ep := p.connect(t, 100+i)
				end := ca
				if i%2 == 1 {
					end = cp
				}
				if err := end.Disconnect(); err != nil {
					t.Fatal(err)
				}
				for _, e := range []*events{ea, ep} {
					if err := wait(t, "the end", e.ended); err != nil && !errors.Is(err, ErrDisconnected) {
						t.Errorf("seed %d, connection %d: %v", seed, i, err)
					}
					wait(t, "Gone", e.gone)
				}
			}
			if a, b := p.a.Stats(), p.b.Stats(); a.Connections+b.Connections+b.Pending != 0 {
				t.Errorf("seed %d: left over: %+v, %+v", seed, a, b)
			}
		})
	}
}

// Each message of the opening and of the end may be lost, once or several times.
func TestEachMessageLost(t *testing.T) {
	for _, lost := range []mad.Attr{mad.AttrREQ, mad.AttrREP, mad.AttrRTU, mad.AttrDREQ, mad.AttrDREP} {
		for _, times := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, 3)
				defer p.n.close()
				left := times
				p.n.losing(func(s *sentMAD) bool {
					if s.attr != lost || left == 0 {
						return false
					}
					left--
					return true
				})
				start := time.Now()
				ca, _, ea, ep := p.connect(t, 30)
				if err := ca.Disconnect(); err != nil {
					t.Fatal(err)
				}
				if err := wait(t, "the end", ea.ended); err != nil {
					t.Errorf("%v lost %d times: %v", lost, times, err)
				}
				wait(t, "the end", ep.ended)
				// 200, 400, 800 ms, and not the 6 s of Linux.
				if d, most := time.Since(start), (1<<times-1)*firstRepeat+100*time.Millisecond; d > most {
					t.Errorf("%v lost %d times: it took %v, more than %v", lost, times, d, most)
				}
				if left != 0 {
					t.Errorf("%v was not lost", lost)
				}
			})
		}
	}
}

// A packet of the queue pair does what the RTU does.
func TestHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 4)
		defer p.n.close()
		p.n.losing(func(s *sentMAD) bool { return s.attr == mad.AttrRTU })
		e := newEvents()
		var passive *Conn
		go func() {
			in, err := p.l.Accept(t.Context())
			if err == nil {
				passive, err = in.Accept(&Reply{QPN: 9}, e.hooks())
			}
			if err != nil {
				t.Error(err)
			}
		}()
		c, err := p.a.Connect(t.Context(), p.b.cfg.Local, request(7), Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Establish(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		passive.Heard()
		wait(t, "Established", e.established)
		reps := p.n.count(mad.AttrREP, addrA)
		time.Sleep(bound)
		if got := p.n.count(mad.AttrREP, addrA); got != reps || passive.State() != Established {
			t.Errorf("%d REPs, then %d; %v", reps, got, passive.State())
		}
		passive.Heard()
	})
}

func TestRejected(t *testing.T) {
	refusals := []struct {
		name   string
		answer func(*Incoming) error
		why    mad.Reason
		text   string
	}{
		{"by the application", func(in *Incoming) error { return in.Reject([]byte("go away")) }, mad.ReasonConsumer, "go away"},
		{"for lack of queue pairs", func(in *Incoming) error { return in.Refuse(mad.ReasonNoQP) }, mad.ReasonNoQP, ""},
	}
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, 5)
				defer p.n.close()
				go func() {
					in, err := p.l.Accept(t.Context())
					if err == nil {
						err = r.answer(in)
					}
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := in.Accept(&Reply{QPN: 9}, Hooks{}); !errors.Is(err, verbs.ErrState) && !errors.Is(err, verbs.ErrTimeout) {
						t.Errorf("accepted after a refusal: %v", err)
					}
				}()
				e := newEvents()
				_, err := p.a.Connect(t.Context(), p.b.cfg.Local, request(7), e.hooks())
				var rej *RejectError
				if !errors.As(err, &rej) || !errors.Is(err, verbs.ErrRejected) || rej.Reason != r.why || rej.Peer != p.b.cfg.Local || !bytes.HasPrefix(rej.Private, append([]byte(r.text), 0)) {
					t.Fatalf("%v", err)
				}
				wait(t, "Gone", e.gone)
				if len(e.ended) != 0 {
					t.Error("Ended was called for a connection that never was")
				}
				if s := p.b.Stats(); s.Pending != 0 || s.Connections != 0 {
					t.Errorf("left over: %+v", s)
				}
			})
		})
	}
}

// What is wrong with a request is said by the reason that the standard has for it.
func TestInvalidRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 6)
		defer p.n.close()
		from := netip.MustParseAddr("10.0.0.9")
		for _, c := range []struct {
			name   string
			change func(*mad.REQ)
			want   mad.Reason // 0: dropped
		}{
			{"another port", func(r *mad.REQ) { r.ServiceID++ }, mad.ReasonInvalidServiceID},
			{"not a port", func(r *mad.REQ) { r.ServiceID = 5 }, mad.ReasonInvalidServiceID},
			{"XRC", func(r *mad.REQ) { r.Service = mad.ServiceXRC }, mad.ReasonInvalidTransport},
			{"RD", func(r *mad.REQ) { r.Service = mad.ServiceRD }, mad.ReasonInvalidTransport},
			{"MTU 0", func(r *mad.REQ) { r.PathMTU = 0 }, mad.ReasonInvalidMTU},
			{"MTU 6", func(r *mad.REQ) { r.PathMTU = 6 }, mad.ReasonInvalidMTU},
			{"GID of another", func(r *mad.REQ) { r.Primary.LocalGID[15]++ }, mad.ReasonInvalidGID},
			{"GID not ours", func(r *mad.REQ) { r.Primary.RemoteGID[15]++ }, mad.ReasonInvalidGID},
			{"addresses of rdma_cm: version", func(r *mad.REQ) { r.Private[0] = 1 }, mad.ReasonConsumer},
			{"addresses of rdma_cm: source", func(r *mad.REQ) { r.Private[19]++ }, mad.ReasonConsumer},
			{"addresses of rdma_cm: destination", func(r *mad.REQ) { r.Private[35]++ }, mad.ReasonConsumer},
			{"no communication ID", func(r *mad.REQ) { r.LocalCommID = 0 }, 0},
			{"queue pair 1", func(r *mad.REQ) { r.LocalQPN = 1 }, 0},
			{"multicast queue pair", func(r *mad.REQ) { r.LocalQPN = 0xffffff }, 0},
			{"partition", func(r *mad.REQ) { r.PKey = 0x8001 }, 0},
		} {
			r := reqFrom(t, p.b, from, 50)
			c.change(r)
			before := p.n.total()
			p.b.Receive(from, mad.Append(nil, 77, r))
			out := p.n.since(before)
			if c.want == 0 {
				if len(out) != 0 {
					t.Errorf("%s: answered by %v", c.name, out[0].attr)
				}
				continue
			}
			if len(out) != 1 {
				t.Fatalf("%s: %d answers", c.name, len(out))
			}
			tid, msg, err := mad.Parse(out[0].b)
			if err != nil {
				t.Fatal(err)
			}
			if rej, ok := msg.(*mad.REJ); !ok || rej.Reason != c.want || tid != 77 || rej.RemoteCommID != r.LocalCommID || rej.LocalCommID != 0 || rej.Which != mad.WhichREQ {
				t.Errorf("%s: %+v, want reason %v", c.name, msg, c.want)
			}
		}
		if s := p.b.Stats(); s.Connections != 0 || s.Pending != 0 {
			t.Errorf("something was kept: %+v", s)
		}
	})
}

// What a request may ask for at most and at least is passed on.
func TestValidRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 6)
		defer p.n.close()
		for i, c := range []struct {
			service mad.Service
			mtu     uint8
		}{{mad.ServiceRC, 1}, {mad.ServiceRC, 5}, {mad.ServiceUC, 3}} {
			r := reqFrom(t, p.b, p.a.cfg.Local, uint32(50+i))
			r.Service, r.PathMTU = c.service, c.mtu
			p.b.Receive(p.a.cfg.Local, mad.Append(nil, 1, r))
			if n := p.b.Stats().Pending; n != 1 {
				t.Fatalf("%+v: %d pending", c, n)
			}
			in, err := p.l.Accept(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if in.Request.Transport != c.service || in.Request.MTU != c.mtu {
				t.Errorf("%+v, not %+v", in.Request, c)
			}
			if err := in.Reject(nil); err != nil {
				t.Error(err)
			}
		}
	})
}

// A peer that waits no longer for an answer takes its request back by its own ID, as it has heard of no
// other; nobody else does, and no other message (IBA vol. 1 §12.6.7.2, reason 4).
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 6)
		defer p.n.close()
		from := p.a.cfg.Local
		r := reqFrom(t, p.b, from, 50)
		p.b.Receive(from, mad.Append(nil, 1, r))
		rej := func(change func(*mad.REJ)) []byte {
			m := &mad.REJ{LocalCommID: r.LocalCommID, Which: mad.WhichREQ, Reason: mad.ReasonTimeout, InfoLength: 8}
			binary.BigEndian.PutUint64(m.ARI[:], r.LocalCAGUID)
			change(m)
			return mad.Append(nil, 2, m)
		}
		same := func(*mad.REJ) {}
		for _, c := range []struct {
			name   string
			from   netip.Addr
			change func(*mad.REJ)
		}{
			{"from elsewhere", netip.MustParseAddr("10.0.0.66"), same},
			{"another reason", from, func(m *mad.REJ) { m.Reason = mad.ReasonConsumer }},
			{"of a REP", from, func(m *mad.REJ) { m.Which = mad.WhichREP }},
			{"seven bytes of a GUID", from, func(m *mad.REJ) { m.InfoLength = 7 }},
			{"another GUID", from, func(m *mad.REJ) { m.ARI[7]++ }},
			{"another ID", from, func(m *mad.REJ) { m.LocalCommID++ }},
		} {
			p.b.Receive(c.from, rej(c.change))
			if n := p.b.Stats().Pending; n != 1 {
				t.Fatalf("%s: %d pending", c.name, n)
			}
		}
		p.b.Receive(from, rej(same))
		if s := p.b.Stats(); s.Pending != 0 || s.Connections != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// reqFrom is a REQ to m as from would send it.
func reqFrom(t *testing.T, m *Manager, from netip.Addr, id uint32) *mad.REQ {
	t.Helper()
	r, err := New(Config{Local: from, GUID: 1}).request(m.cfg.Local, request(id))
	if err != nil {
		t.Fatal(err)
	}
	r.LocalCommID = id
	return r
}

// Nobody is there: an end comes, and says what to look at.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(7)
		defer n.close()
		m := n.manager(addrA, Limits{})
		e := newEvents()
		_, err := m.Connect(t.Context(), netip.MustParseAddr(addrB), request(7), e.hooks())
		if !errors.Is(err, verbs.ErrTimeout) {
			t.Fatal(err)
		}
		wait(t, "Gone", e.gone)
		if got := n.count(mad.AttrREQ, addrB); got != 1+repeatsREQ {
			t.Errorf("%d REQs", got)
		}
		if got := n.count(mad.AttrREJ, addrB); got != 1 {
			t.Errorf("%d REJs", got)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.Connect(ctx, netip.MustParseAddr(addrB), request(7), e.hooks()); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		wait(t, "Gone", e.gone)
	})
}

// A peer that dies is not waited for; one that gives up its request takes it along.
func TestPeerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 8)
		defer p.n.close()
		ca, _, ea, _ := p.connect(t, 40)
		p.n.losing(func(s *sentMAD) bool { return s.to == p.b.cfg.Local })
		if err := ca.Disconnect(); err != nil {
			t.Fatal(err)
		}
		if err := wait(t, "the end", ea.ended); !errors.Is(err, verbs.ErrTimeout) {
			t.Error(err)
		}
		wait(t, "Gone", ea.gone)
		if got := p.n.count(mad.AttrDREQ, addrB); got != 1+repeatsDREQ {
			t.Errorf("%d DREQs", got)
		}
		p.n.losing(nil)

		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := p.a.Connect(ctx, p.b.cfg.Local, request(41), Hooks{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if s := p.b.Stats(); s.Pending != 0 {
			t.Errorf("a request that was given up is kept: %+v", s)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if in, err := p.l.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it was handed out: %v, %v", in, err)
		}
	})
}

// The application takes its time: the peer is asked for patience, and has it.
func TestSlowAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 9)
		defer p.n.close()
		e := newEvents()
		go func() {
			in, err := p.l.Accept(t.Context())
			if err == nil {
				time.Sleep(20 * time.Second)
				_, err = in.Accept(&Reply{QPN: 9}, e.hooks())
			}
			if err != nil {
				t.Error(err)
			}
		}()
		c, err := p.a.Connect(t.Context(), p.b.cfg.Local, request(7), Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		if reqs := p.n.count(mad.AttrREQ, addrB); reqs != 2 {
			t.Errorf("%d REQs; the first MRA ends them", reqs)
		}
		time.Sleep(20 * time.Second)
		if err := c.Establish(); err != nil {
			t.Fatal(err)
		}
		wait(t, "Established", e.established)
		if reps := p.n.count(mad.AttrREP, addrA); reps != 2 {
			t.Errorf("%d REPs", reps)
		}
	})
}

// … but not for ever.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 10)
		defer p.n.close()
		_, err := p.a.Connect(t.Context(), p.b.cfg.Local, request(7), Hooks{})
		var rej *RejectError
		if !errors.As(err, &rej) || rej.Reason != mad.ReasonTimeout {
			t.Error(err)
		}
		in := <-p.l.reqs
		if _, err := in.Accept(&Reply{QPN: 9}, Hooks{}); !errors.Is(err, verbs.ErrTimeout) {
			t.Error(err)
		}

		// The active side does not make its queue pair ready.
		e := newEvents()
		go func() {
			if in, err := p.l.Accept(t.Context()); err != nil {
				t.Error(err)
			} else if _, err := in.Accept(&Reply{QPN: 10}, e.hooks()); err != nil {
				t.Error(err)
			}
		}()
		ea := newEvents()
		c, err := p.a.Connect(t.Context(), p.b.cfg.Local, request(8), ea.hooks())
		if err != nil {
			t.Fatal(err)
		}
		if err := wait(t, "the end", e.ended); !errors.As(err, &rej) || rej.Reason != mad.ReasonTimeout {
			t.Error(err)
		}
		if err := wait(t, "the end", ea.ended); !errors.Is(err, verbs.ErrTimeout) {
			t.Error(err)
		}
		if err := c.Establish(); !errors.Is(err, verbs.ErrState) {
			t.Error(err)
		}
	})
}

// A peer that has started anew uses numbers that an old connection still has.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 11)
		defer p.n.close()
		_, cp, _, ep := p.connect(t, 50)
		guid := p.a.cfg.GUID
		p.n.losing(func(s *sentMAD) bool { return s.from == p.a.cfg.Local || s.to == p.a.cfg.Local }) // dies without a word
		synctest.Wait()
		p.a.Close()
		p.n.losing(nil)
		a := p.n.manager(addrA, Limits{})
		a.cfg.GUID = guid
		_, err := a.Connect(t.Context(), p.b.cfg.Local, request(50), Hooks{})
		var rej *RejectError
		if !errors.As(err, &rej) || rej.Reason != mad.ReasonStaleConn {
			t.Fatal(err)
		}
		if err := wait(t, "the end", ep.ended); !errors.Is(err, ErrStale) {
			t.Error(err)
		}
		time.Sleep(time.Second) // the DREQ for what it does not know is answered
		if cp.State() != TimeWait {
			t.Errorf("%v", cp.State())
		}
		p.a = a
		ca, _, _, _ := p.connect(t, 50)
		if err := ca.Disconnect(); err != nil {
			t.Error(err)
		}
	})
}

// The same address, as a service and as its client.
func TestToOneself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(12)
		defer n.close()
		m := n.manager(addrA, Limits{})
		l, err := m.Listen(service, 1)
		if err != nil {
			t.Fatal(err)
		}
		p := &pair{n, m, m, l}
		e := newEvents()
		go func() {
			if in, err := l.Accept(t.Context()); err != nil {
				t.Error(err)
			} else if _, err := in.Accept(&Reply{QPN: 61}, e.hooks()); err != nil {
				t.Error(err)
			}
		}()
		c, err := p.a.Connect(t.Context(), m.cfg.Local, request(60), Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Establish(); err != nil {
			t.Fatal(err)
		}
		wait(t, "Established", e.established)
		if err := c.Disconnect(); err != nil {
			t.Fatal(err)
		}
		if err := wait(t, "the end", e.ended); !errors.Is(err, ErrDisconnected) {
			t.Error(err)
		}
		wait(t, "Gone", e.gone)
	})
}

// Private data that does not fit, and what else makes no sense, is refused here.
func TestArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 13)
		defer p.n.close()
		for name, change := range map[string]func(*Request){
			"private data": func(r *Request) { r.Private = make([]byte, mad.UserREQ+1) },
			"QPN":          func(r *Request) { r.QPN = 1 },
			"PSN":          func(r *Request) { r.PSN = 1 << 24 },
			"MTU":          func(r *Request) { r.MTU = 0 },
			"RNR retry":    func(r *Request) { r.RNRRetry = 8 },
			"service":      func(r *Request) { r.Service = 1 },
			"ack timeout":  func(r *Request) { r.AckTimeout = 32 },
		} {
			r := request(7)
			change(r)
			if _, err := p.a.Connect(t.Context(), p.b.cfg.Local, r, Hooks{}); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := p.a.Connect(t.Context(), netip.MustParseAddr("fd00::1"), request(7), Hooks{}); !errors.Is(err, verbs.ErrInvalid) {
			t.Error(err)
		}
		if _, err := p.b.Listen(service, 1); !errors.Is(err, verbs.ErrInvalid) {
			t.Error(err)
		}
		go func() { _, _ = p.a.Connect(t.Context(), p.b.cfg.Local, request(7), Hooks{}) }()
		in, err := p.l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Accept(&Reply{QPN: 9, Private: make([]byte, mad.PrivateREP+1)}, Hooks{}); !errors.Is(err, verbs.ErrInvalid) {
			t.Error(err)
		}
		if _, err := in.Accept(&Reply{QPN: 0}, Hooks{}); !errors.Is(err, verbs.ErrInvalid) {
			t.Error(err)
		}
		if err := in.Reject(make([]byte, mad.PrivateREJ+1)); !errors.Is(err, verbs.ErrInvalid) {
			t.Error(err)
		}
		if err := in.Reject(make([]byte, mad.PrivateREJ)); err != nil {
			t.Error(err)
		}
	})
}

func TestLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 14)
		defer p.n.close()
		udp := mad.ServiceOf(mad.ProtocolUDP, 7174)
		err := p.b.Serve(udp, func(l *Lookup) LookupAnswer {
			if l.SrcPort != 9 || l.Peer != p.a.cfg.Local || !bytes.HasPrefix(l.Private, []byte("who?\x00")) || len(l.Private) != mad.UserSIDRREQ {
				t.Errorf("lookup %+v", l)
			}
			return LookupAnswer{QPN: 77, QKey: 0x1234567, Private: []byte("I")}
		})
		if again := p.b.Serve(udp, func(*Lookup) LookupAnswer { return LookupAnswer{} }); err != nil || !errors.Is(again, verbs.ErrInvalid) {
			t.Errorf("%v, and a second one: %v", err, again)
		}
		lost := 0
		p.n.losing(func(s *sentMAD) bool { lost++; return lost <= 2 })
		a, err := p.a.Resolve(t.Context(), p.b.cfg.Local, &Lookup{Service: udp, SrcPort: 9, Private: []byte("who?")})
		if err != nil || a.Status != mad.SIDROK || a.QPN != 77 || a.QKey != 0x1234567 || !bytes.HasPrefix(a.Private, []byte("I\x00")) {
			t.Errorf("%+v, %v", a, err)
		}
		p.b.Unserve(udp)
		if a, err := p.a.Resolve(t.Context(), p.b.cfg.Local, &Lookup{Service: udp}); err != nil || a.Status != mad.SIDRUnsupported {
			t.Errorf("%+v, %v", a, err)
		}
		p.n.losing(func(*sentMAD) bool { return true })
		if _, err := p.a.Resolve(t.Context(), p.b.cfg.Local, &Lookup{Service: udp}); !errors.Is(err, verbs.ErrTimeout) {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.a.Resolve(ctx, p.b.cfg.Local, &Lookup{Service: udp}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if _, err := p.a.Resolve(ctx, p.b.cfg.Local, &Lookup{Private: make([]byte, mad.UserSIDRREQ+1)}); !errors.Is(err, verbs.ErrInvalid) {
			t.Error(err)
		}
		if len(p.a.lookups) != 0 {
			t.Errorf("%d lookups left", len(p.a.lookups))
		}
	})
}

// A closed Manager has told its peers and holds nothing.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 15)
		defer p.n.close()
		_, _, ea, ep := p.connect(t, 70)
		failed := make(chan error, 2)
		go func() {
			_, err := p.a.Connect(t.Context(), p.b.cfg.Local, request(71), Hooks{})
			failed <- err
		}()
		go func() {
			_, err := p.a.Resolve(t.Context(), netip.MustParseAddr("10.0.0.99"), &Lookup{})
			failed <- err
		}()
		synctest.Wait()
		p.a.Close()
		for range 2 {
			if err := wait(t, "an error", failed); !errors.Is(err, verbs.ErrClosed) {
				t.Error(err)
			}
		}
		wait(t, "Gone", ea.gone)
		if err := wait(t, "the end", ep.ended); !errors.Is(err, ErrDisconnected) {
			t.Error(err)
		}
		if s := p.a.Stats(); s.Connections != 0 {
			t.Errorf("%+v", s)
		}
		p.l.Close()
		if _, err := p.l.Accept(t.Context()); !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
		p.a.Close()
		if _, err := p.a.Connect(t.Context(), p.b.cfg.Local, request(72), Hooks{}); !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestNumbers(t *testing.T) {
	var q QPNs
	seen := map[uint32]bool{}
	for range 10000 {
		n, err := q.Take()
		if err != nil || seen[n] || n < 2 || n >= 0xffffff {
			t.Fatal(n, err)
		}
		seen[n] = true
	}
	for n := range seen {
		q.Release(n)
	}
	if len(q.taken) != 0 || NewGUID() == NewGUID() || NewPSN() > 0xffffff {
		t.Error(len(q.taken))
	}
}

func TestStateNames(t *testing.T) {
	if Gone.String() != "Gone" || State(99).String() != "State(99)" {
		t.Error(Gone, State(99))
	}
}
