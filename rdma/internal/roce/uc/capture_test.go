package uc

import (
	"net/netip"
	"testing"

	"softiser/internal/pcaptest"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/verbstest"
)

// In the place of the two ends of a captured connection, the machines send what rxe
// sent, packet for packet, and receive every message of it.
func TestAsLinux(t *testing.T) {
	type end struct {
		to  netip.Addr
		qpn uint32
	}
	type flow struct {
		v        *verbstest.QP
		rx       *Receiver
		tx       *Sender
		size     int
		messages int
	}
	flows, compared := map[end]*flow{}, 0
	var out message.Outgoing
	for _, d := range pcaptest.RoCE(t, "ibv_uc_pingpong") {
		p, err := packet.Parse(d.Payload())
		if err != nil {
			t.Fatal(err)
		}
		if p.Op.Service() != packet.UC {
			continue
		}
		e := end{d.Dst().Addr(), p.QPN}
		f := flows[e]
		if f == nil {
			f = &flow{v: verbstest.NewQP(t)}
			f.v.Connect()
			f.rx = NewReceiver(f.v.QP, packet.MTU1024, p.PSN)
			f.tx = NewSender(f.v.QP, SenderParams{RemoteQPN: p.QPN, MTU: packet.MTU1024, PSN: p.PSN})
			flows[e] = f
		}
		tr := p.Op.Traits()
		if tr&packet.First != 0 {
			f.v.Buffer(t, 1<<16)
			f.size = 0
		}
		f.rx.Receive(&p)
		if f.size += len(p.Payload); tr&packet.Last == 0 {
			continue
		}
		if wcs := f.rx.TakeWCs(nil); len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess || int(wcs[0].ByteLen) != f.size {
			t.Fatalf("a message of %d bytes: %+v", f.size, wcs)
		}
		f.messages++
		f.v.Queue(verbs.OpSend, make([]byte, f.size), nil)
		first := p.PSN.Add(-(f.size - 1) / 1024)
		for i := 0; f.tx.Next(&out); i++ {
			want := packet.BTH{Op: packet.UC | packet.SendMiddle, PKey: packet.DefaultPKey, QPN: p.QPN, PSN: first.Add(i)}
			switch {
			case i == 0:
				want.Op = packet.UC | packet.SendFirst
			case want.PSN == p.PSN:
				want.Op = packet.UC | packet.SendLast
			}
			if want.Op == p.Op {
				want = p.BTH
			}
			if out.Packet.BTH != want {
				t.Fatalf("%+v, want %+v", out.Packet.BTH, want)
			}
			out.Release()
			compared++
		}
		f.tx.Sent()
		if wcs := f.v.Completions(); len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess {
			t.Fatalf("completions %+v", wcs)
		}
	}
	if len(flows) != 2 || compared < 16 {
		t.Errorf("%d packets of %d directions", compared, len(flows))
	}
	for e, f := range flows {
		if st := f.rx.Stats(); st != (Stats{Messages: uint64(f.messages)}) {
			t.Errorf("to %v: %+v of %d messages", e.to, st, f.messages)
		}
	}
	t.Log(compared, "packets")
}

const everything = mem.RemoteRead | mem.RemoteWrite | mem.ZeroBased
