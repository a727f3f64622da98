package cm

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/pcaptest"
	"softiser/rdma/internal/roce/mad"
)

// captured is one MAD of a capture.
type captured struct {
	at       time.Duration
	from, to netip.Addr
	tid      uint64
	msg      mad.Message
	b        []byte
}

func capture(t testing.TB, name string) (out []captured) {
	t.Helper()
	const bth, deth, udSendOnly = 12, 8, 0x64
	for _, d := range pcaptest.RoCE(t, name) {
		if p := d.Payload(); p[0] == udSendOnly && bytes.Equal(p[5:8], []byte{0, 0, mad.GSIQPN}) {
			b := p[bth+deth : len(p)-4]
			tid, msg, err := mad.Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, captured{d.At, d.Src().Addr(), d.Dst().Addr(), tid, msg, b})
		}
	}
	return out
}

// replay puts a Manager in the place of one end of a capture: it gets what that end
// got, its application does what that end's did, at the same times, and it must send
// what that end sent, byte for byte. Numbers that an end chooses (GUID, communication
// IDs, queue pairs, PSNs) are given to it. Not compared are the transaction IDs of what
// it begins itself, and how often it repeats what is not answered.
type replay struct {
	t     *testing.T
	m     *Manager
	local netip.Addr
	mads  []captured
	ids   []uint32 // for newID, in order
	got   [][]byte

	conns    map[uint32]*Conn     // by our communication ID
	incoming map[uint32]*Incoming // by the peer's
}

func newReplay(t *testing.T, mads []captured, local netip.Addr) *replay {
	r := &replay{t: t, local: local, mads: mads, conns: map[uint32]*Conn{}, incoming: map[uint32]*Incoming{}}
	var guid uint64
	services := map[mad.ServiceID]bool{}
	accepted := map[uint32]bool{} // REQs that were not refused at once
	for _, c := range mads {
		if c.from == local {
			switch msg := c.msg.(type) {
			case *mad.REQ:
				guid = msg.LocalCAGUID
				r.id(msg.LocalCommID)
			case *mad.REP:
				guid = msg.LocalCAGUID
				r.id(msg.LocalCommID)
				accepted[msg.RemoteCommID] = true
			case *mad.REJ:
				if msg.Reason == mad.ReasonConsumer {
					r.id(msg.LocalCommID)
					accepted[msg.RemoteCommID] = true
				}
			}
		}
	}
	for _, c := range mads {
		if req, ok := c.msg.(*mad.REQ); ok && c.to == local && accepted[req.LocalCommID] {
			services[req.ServiceID] = true
		}
	}
	r.m = New(Config{Local: local, GUID: guid, Send: func(_ netip.Addr, b []byte) { r.got = append(r.got, bytes.Clone(b)) }})
	next := 0
	r.m.newID = func() uint32 {
		if next == len(r.ids) {
			return random32()
		}
		next++
		return r.ids[next-1]
	}
	for s := range services {
		l, err := r.m.Listen(s, 8)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		go func() {
			for {
				in, err := l.Accept(t.Context())
				if err != nil {
					return
				}
				r.incoming[in.c.remote] = in
			}
		}()
	}
	return r
}

func (r *replay) id(n uint32) {
	if !slices.Contains(r.ids, n) {
		r.ids = append(r.ids, n)
	}
}

func (r *replay) run() {
	defer r.m.Close()
	start := time.Now()
	for _, c := range r.mads {
		time.Sleep(c.at - time.Since(start)) // in a bubble
		synctest.Wait()
		if c.from == r.local {
			r.act(c)
		} else {
			r.m.Receive(c.from, c.b)
		}
		synctest.Wait()
	}
	var want [][]byte
	for _, c := range r.mads {
		if c.from == r.local {
			want = append(want, r.comparable(c.b))
		}
	}
	want = unrepeated(want)
	var got [][]byte
	for _, b := range r.got {
		got = append(got, r.comparable(b))
	}
	got = unrepeated(got)
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			r.t.Errorf("as %v: message %d is missing: %x", r.local, i, want[i])
		case i >= len(want):
			r.t.Errorf("as %v: message %d is too much: %x", r.local, i, got[i])
		case !bytes.Equal(got[i], want[i]):
			r.t.Errorf("as %v: message %d is\n%x, want\n%x", r.local, i, got[i], want[i])
		}
	}
}

// act is what the application of our end did to send c.
func (r *replay) act(c captured) {
	var err error
	switch msg := c.msg.(type) {
	case *mad.REQ:
		if r.m.conns[msg.LocalCommID] != nil {
			return // a repetition
		}
		var h mad.IPHeader
		if err = h.Parse(msg.Private[:]); err != nil {
			break
		}
		q := &Request{
			Service: msg.ServiceID, Transport: msg.Service, SrcPort: h.SrcPort, QPN: msg.LocalQPN, PSN: msg.StartingPSN,
			ResponderResources: msg.ResponderResources, InitiatorDepth: msg.InitiatorDepth, RetryCount: msg.RetryCount, RNRRetry: msg.RNRRetry,
			MTU: msg.PathMTU, AckTimeout: msg.Primary.AckTimeout, FlowControl: msg.FlowControl, SRQ: msg.SRQ, Private: msg.Private[mad.IPHeaderLen:],
		}
		go func() {
			if conn, err := r.m.Connect(r.t.Context(), c.to, q, Hooks{}); err == nil {
				r.conns[msg.LocalCommID] = conn
			}
		}()
	case *mad.REP:
		if in := r.incoming[msg.RemoteCommID]; in != nil && r.conns[msg.LocalCommID] == nil {
			r.conns[msg.LocalCommID], err = in.Accept(&Reply{
				QPN: msg.LocalQPN, PSN: msg.StartingPSN, ResponderResources: msg.ResponderResources, InitiatorDepth: msg.InitiatorDepth,
				RNRRetry: msg.RNRRetry, FlowControl: msg.FlowControl, SRQ: msg.SRQ, Private: msg.Private[:],
			}, Hooks{})
		}
	case *mad.REJ:
		if in := r.incoming[msg.RemoteCommID]; in != nil && msg.Reason == mad.ReasonConsumer {
			err = in.Reject(msg.Private[:])
		}
	case *mad.RTU:
		if conn := r.conns[msg.LocalCommID]; conn != nil && conn.State() == RepReceived {
			err = conn.Establish()
		}
	case *mad.DREQ:
		if conn := r.conns[msg.LocalCommID]; conn != nil {
			err = conn.Disconnect()
		}
	case *mad.SIDRREQ:
		var h mad.IPHeader
		if err = h.Parse(msg.Private[:]); err != nil {
			break
		}
		go func() {
			_, _ = r.m.Resolve(r.t.Context(), c.to, &Lookup{Service: msg.ServiceID, SrcPort: h.SrcPort, Private: msg.Private[mad.IPHeaderLen:]})
		}()
	}
	if err != nil {
		r.t.Errorf("%v: %v", c.msg.Attr(), err)
	}
}

// comparable is a MAD without the transaction ID, where the side that begins chooses it.
func (r *replay) comparable(b []byte) []byte {
	b = bytes.Clone(b)
	switch _, msg, _ := mad.Parse(b); msg.(type) {
	case *mad.REQ, *mad.RTU, *mad.DREQ, *mad.SIDRREQ:
		clear(b[8:16])
	}
	return b
}

// unrepeated is list without what was in it before.
func unrepeated(list [][]byte) (out [][]byte) {
	for _, b := range list {
		if !slices.ContainsFunc(out, func(o []byte) bool { return bytes.Equal(o, b) }) {
			out = append(out, b)
		}
	}
	return out
}

// In the place of either end of what Linux's ib_cm and rdma_cm were captured at, over
// rxe, a Manager sends what they sent.
func TestAsLinuxDoes(t *testing.T) {
	upTo := map[string]int{
		"cm-rej-consumer": 2,  // ends with the DREP of a connection from before the capture
		"iser-rxe":        8,  // ends with DREQs of both at once: who answers them first is chance
		"retry-exceeded":  -1, // the passive end did not answer its DREQs, for a reason that is not known
		"udaddy-sidr":     -1, // see TestLookupAsLinuxDoes
	}
	other := netip.MustParseAddr("10.9.0.1") // not Linux, in captures of a process and in cm-stale-conn
	replayed := 0
	for _, name := range pcaptest.RoCENames(t, "") {
		mads := capture(t, name)
		if n := upTo[name]; n < 0 || len(mads) == 0 {
			continue // pingpongs and perftest find each other over TCP
		} else if n > 0 {
			mads = mads[:n]
		}
		for _, local := range []netip.Addr{mads[0].from, mads[0].to} {
			if mads[0].from == other && local == other {
				continue
			}
			t.Run(name+" as "+local.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { newReplay(t, mads, local).run() })
			})
			replayed++
		}
	}
	if replayed < 40 {
		t.Errorf("only %d ends were replayed", replayed)
	}
}

func TestLookupAsLinuxDoes(t *testing.T) {
	mads := capture(t, "udaddy-sidr")
	for _, local := range []netip.Addr{mads[0].from, mads[0].to} {
		synctest.Test(t, func(t *testing.T) {
			r := newReplay(t, mads, local)
			for _, c := range mads {
				switch msg := c.msg.(type) {
				case *mad.SIDRREP:
					r.m.Unserve(msg.ServiceID)
					if err := r.m.Serve(msg.ServiceID, func(*Lookup) LookupAnswer { return LookupAnswer{QPN: msg.QPN, QKey: msg.QKey} }); err != nil {
						t.Fatal(err)
					}
				case *mad.SIDRREQ:
					r.ids = []uint32{msg.RequestID}
				}
			}
			r.run()
		})
	}
}
