package rdma_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// TestTypes: each provider makes queue pairs of the types that it says it has, and refuses
// the others when they are created, with the reason.
func TestTypes(t *testing.T) {
	forEach(t, func(t *testing.T, o *rdmatest.Options) {
		e := rdmatest.NewEnd(t, o, 0)
		attr := e.Dev.Attr()
		for _, typ := range []rdma.QPType{rdma.TypeRC, rdma.TypeUC, rdma.TypeUD, 7} {
			cfg := rdma.QPConfig{SendCQ: e.CQ, RecvCQ: e.CQ, Type: typ}
			if typ == rdma.TypeUD {
				cfg.Datagram.LocalAddr = rdmatest.RoCEAddr()
			}
			qp, err := e.PD.CreateQP(cfg)
			if !slices.Contains(attr.Types, typ) {
				if !errors.Is(err, rdma.ErrInvalid) || !strings.Contains(err.Error(), typ.String()) {
					t.Errorf("%v: %v", typ, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%v: %v", typ, err)
			}
			if qp.Type() != typ || qp.Attr().Type != typ {
				t.Errorf("made as %v: %v", typ, qp.Attr())
			}
			if ready := qp.State() == rdma.StateRTS; ready != (typ == rdma.TypeUD) {
				t.Errorf("%v is in state %v", typ, qp.State())
			}
			if err := qp.Close(); err != nil {
				t.Error(err)
			}
		}
		if roce := attr.Provider == rdma.ProviderRoCE; len(attr.Types) > 1 != roce || attr.SendImm != roce || attr.MaxMulticastGroups > 0 != roce || attr.PrivateData.Lookup > 0 != roce {
			t.Errorf("%+v", attr)
		}
	})
}

// TestDatagramThings: what goes with datagrams alone is refused by queue pairs and devices
// of another kind, with the reason.
func TestDatagramThings(t *testing.T) {
	forEach(t, func(t *testing.T, o *rdmatest.Options) {
		e := rdmatest.NewEnd(t, o, 0)
		group := netip.MustParseAddr("239.77.1.1")
		_, join := e.QP.JoinMulticast(group)
		_, resolve := e.QP.Resolve(ctxT(t), "roce", "127.0.0.1:1", nil)
		_, params := e.PD.CreateQP(rdma.QPConfig{SendCQ: e.CQ, RecvCQ: e.CQ, Datagram: rdma.DatagramParams{QKey: 1}})
		errs := map[string]error{"join": join, "leave": e.QP.LeaveMulticast(group), "resolve": resolve, "parameters": params}
		if o.Device.Provider != rdma.ProviderRoCE {
			_, errs["handle"] = e.PD.CreateAH(group)
			_, errs["service"] = e.Dev.ServeDatagrams("roce", "127.0.0.1:0", nil)
			errs["attach"] = e.QP.Attach(rdma.Endpoint{QPN: e.QP.Num()}, rdma.Endpoint{}, nil)
		}
		for name, err := range errs {
			if !errors.Is(err, rdma.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if e.QP.QKey() != 0 {
			t.Errorf("Q_Key %#x", e.QP.QKey())
		}
	})
}

// TestUDConfig: what a queue pair for datagrams cannot be made with.
func TestUDConfig(t *testing.T) {
	e := rdmatest.NewEnd(t, overRoCE(), 0)
	for want, p := range map[string]rdma.DatagramParams{
		"needs a local address": {},
		"path MTU 1500":         {LocalAddr: rdmatest.RoCEAddr(), PathMTU: 1500},
		"192.0.2.1":             {LocalAddr: netip.MustParseAddr("192.0.2.1")},
	} {
		if _, err := e.PD.CreateQP(rdma.QPConfig{SendCQ: e.CQ, RecvCQ: e.CQ, Type: rdma.TypeUD, Datagram: p}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, a := range []netip.Addr{{}, netip.IPv4Unspecified()} {
		if _, err := e.PD.CreateAH(a); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("handle for %v: %v", a, err)
		}
	}
}

// TestWhatTypesLack: requests that a type does not carry are refused when they are posted,
// and the queue pair goes on.
func TestWhatTypesLack(t *testing.T) {
	uc, _ := ucPair(t)
	ud := newUD(t, rdma.QPConfig{})
	iw, _ := rdmatest.Pair(t)
	other := newUD(t, rdma.QPConfig{})
	d, foreign := to(t, ud, ud), to(t, other, ud)
	word := make([]byte, 8)
	for _, tt := range []struct {
		e  *rdmatest.End
		wr rdma.SendWR
	}{
		{uc, rdma.SendWR{Op: rdma.OpRead}},
		{uc, rdma.SendWR{Op: rdma.OpFetchAdd, SGL: []rdma.SGE{uc.SGE(word)}}},
		{uc, rdma.SendWR{Op: rdma.OpCmpSwap, SGL: []rdma.SGE{uc.SGE(word)}}},
		{uc, rdma.SendWR{Op: rdma.OpSendInv}},
		{uc, rdma.SendWR{Op: rdma.OpSendImm, Imm: 1 << 32}},
		{ud, rdma.SendWR{Op: rdma.OpWrite, Dest: d}},
		{ud, rdma.SendWR{Op: rdma.OpWriteImm, Dest: d}},
		{ud, rdma.SendWR{Op: rdma.OpImm, Dest: d}},
		{ud, rdma.SendWR{Op: rdma.OpRead, Dest: d}},
		{ud, rdma.SendWR{Op: rdma.OpSendInv, Dest: d}},
		{ud, rdma.SendWR{Op: rdma.OpSend}},
		{ud, rdma.SendWR{Op: rdma.OpSend, Dest: foreign}},
		{iw, rdma.SendWR{Op: rdma.OpSendImm}},
	} {
		if err := tt.e.QP.PostSend(tt.wr); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%v by %v: %v", tt.wr.Op, tt.e.QP.Type(), err)
		}
	}
	ud.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend, Dest: d})
	ud.Want(t, 1, rdma.WCSend, rdma.StatusSuccess)
}

// TestTypesOfBothEnds: a connection has queue pairs of one type, and datagrams have none.
func TestTypesOfBothEnds(t *testing.T) {
	types := []rdma.QPType{rdma.TypeRC, rdma.TypeUC, rdma.TypeUD}
	for _, c := range types {
		for _, s := range types {
			t.Run(fmt.Sprint(c, s), func(t *testing.T) {
				var ends [2]*rdmatest.End
				for i, typ := range []rdma.QPType{c, s} {
					o := overRoCE()
					if o.QP.Type = typ; typ == rdma.TypeUD {
						o.QP.Datagram.LocalAddr = rdmatest.RoCEAddr()
					}
					ends[i] = rdmatest.NewEnd(t, o, i)
				}
				ln, err := ends[1].Dev.Listen("roce", net.JoinHostPort(rdmatest.RoCEAddr().String(), "0"), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer ln.Close()
				p := &rdma.ConnParams{RoCE: rdma.RoCEParams{LocalAddr: rdmatest.RoCEAddr()}}
				if c == rdma.TypeUD {
					if _, err := rdma.Dial(ctxT(t), "roce", ln.Addr().String(), ends[0].QP, p); !errors.Is(err, rdma.ErrInvalid) {
						t.Error(err)
					}
					return
				}
				errc := make(chan error, 1)
				go func() {
					req, err := ln.Accept(ctxT(t))
					if err == nil {
						if req.Type() != c {
							t.Errorf("the request says %v", req.Type())
						}
						err = req.Accept(ctxT(t), ends[1].QP, nil)
					}
					errc <- err
				}()
				_, err = rdma.Dial(ctxT(t), "roce", ln.Addr().String(), ends[0].QP, p)
				serr := <-errc
				if fits := c == s; (err == nil) != fits || (serr == nil) != fits || !fits && !errors.Is(serr, rdma.ErrInvalid) {
					t.Errorf("active side: %v; passive side: %v", err, serr)
				}
			})
		}
	}
}

// TestPrivateDataLimits: what DeviceAttr says fits, one byte more is refused at once.
func TestPrivateDataLimits(t *testing.T) {
	forEach(t, func(t *testing.T, o *rdmatest.Options) {
		probe := rdmatest.NewEnd(t, o, 0)
		lim := probe.Dev.Attr().PrivateData
		o.Client.PrivateData, o.Server.PrivateData = make([]byte, lim.Request), make([]byte, lim.Reply)
		o.Client.PrivateData[lim.Request-1], o.Server.PrivateData[lim.Reply-1] = 1, 2
		a, b := rdmatest.NewPair(t, o)
		if got := b.QP.Info().PrivateData; len(got) != lim.Request || got[lim.Request-1] != 1 {
			t.Errorf("request: %x", got)
		}
		if got := a.Info.PrivateData; len(got) != lim.Reply || got[lim.Reply-1] != 2 {
			t.Errorf("reply: %x", got)
		}
		net := o.Device.Provider.Network()
		ln, err := b.Dev.Listen(net, rdmatest.RoCEAddr().String()+":0", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		p := &rdma.ConnParams{PrivateData: make([]byte, lim.Request+1), RoCE: rdma.RoCEParams{LocalAddr: rdmatest.RoCEAddr()}}
		if _, err := rdma.Dial(ctxT(t), net, ln.Addr().String(), probe.QP, p); err == nil || !strings.Contains(err.Error(), fmt.Sprint(lim.Request+1)) {
			t.Errorf("one byte more: %v", err)
		}
	})
}

// TestAttach: connections by the numbers that the ends have told each other.
func TestAttach(t *testing.T) {
	for _, typ := range []rdma.QPType{rdma.TypeRC, rdma.TypeUC} {
		t.Run(typ.String(), func(t *testing.T) {
			var e [2]*rdmatest.End
			var at [2]rdma.Endpoint
			for i := range e {
				o := overRoCE()
				o.QP.Type = typ
				e[i] = rdmatest.NewEnd(t, o, i)
				at[i] = rdma.Endpoint{Addr: rdmatest.RoCEAddr(), QPN: e[i].QP.Num(), PSN: 0xfffffe + uint32(i)}
			}
			p := &rdma.ConnParams{RoCE: rdma.RoCEParams{PathMTU: 256}}
			for want, err := range map[string]error{
				"local queue pair":        e[0].QP.Attach(at[1], at[0], p),
				"24 bits":                 e[0].QP.Attach(at[0], rdma.Endpoint{Addr: at[1].Addr, PSN: 1 << 24}, p),
				"a connection from":       e[0].QP.Attach(at[0], rdma.Endpoint{}, p),
				"private data of 1 bytes": e[0].QP.Attach(at[0], at[1], &rdma.ConnParams{PrivateData: make([]byte, 1)}),
			} {
				if !errors.Is(err, rdma.ErrInvalid) || !strings.Contains(err.Error(), want) {
					t.Errorf("%q: %v", want, err)
				}
			}
			for i := range e {
				if err := e[i].QP.Attach(at[i], at[1-i], p); err != nil {
					t.Fatal(err)
				}
				if err := e[i].QP.Attach(at[i], at[1-i], p); !errors.Is(err, rdma.ErrState) {
					t.Errorf("twice: %v", err)
				}
				if info := e[i].QP.Info(); info.RoCE.PathMTU != 256 || info.RoCE.RemoteQPN != at[1-i].QPN {
					t.Errorf("%+v", info)
				}
			}
			for i := range e { // each is the first to send
				want, got := pattern(1000, uint64(i)), make([]byte, 1000)
				e[1-i].Recv(t, 1, got)
				e[i].Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend, SGL: []rdma.SGE{e[i].SGE(want)}})
				e[i].Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
				e[1-i].Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
				if string(got) != string(want) {
					t.Error("wrong data")
				}
			}
			e[0].QP.Disconnect()
			if err := e[0].WaitDone(t); err != nil {
				t.Errorf("after Disconnect: %v", err)
			}
			if err := e[1].QP.Err(); errors.Is(err, io.EOF) {
				t.Error("the peer was told")
			}
		})
	}
}
