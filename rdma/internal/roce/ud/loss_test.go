package ud

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"softiser/rdma/internal/roce/lossy"
	"softiser/rdma/internal/verbs"
)

// A datagram arrives as it was sent, as often as the network brings it: each fault by itself
// and all of them, of one packet in ten thousand to one in twenty.
func TestFaults(t *testing.T) {
	const count = 3000
	for name, of := range lossy.Each {
		for i, share := range []float64{0.0001, 0.001, 0.01, 0.05} {
			t.Run(fmt.Sprintf("%s/%v", name, share), func(t *testing.T) {
				lossyStream(t, lossy.New(t, uint64(300+i), of(share)), count)
			})
		}
	}
}

// lossyStream sends datagrams to itself over a network, and counts those that arrive.
func lossyStream(t *testing.T, net *lossy.Network, count int) {
	g, ah := newRig(t), &verbs.AddressHandle{Addr: there}
	sent, want, got := make([][]byte, count), make([]int, count), make([]int, count)
	bufs, id := map[uint64][]byte{}, uint64(0)
	arrive := func() {
		for net.InFlight() > 0 {
			for len(bufs) < 8 {
				id++
				bufs[id] = g.Buffer(t, GRHLen+256)
			}
			_, p, whole := net.Take()
			if !whole {
				continue
			}
			g.rx.Receive(there, here, &p)
			for _, wc := range g.rx.TakeWCs(nil) {
				b := bufs[wc.ID]
				delete(bufs, wc.ID)
				if wc.Status != verbs.StatusSuccess || b == nil || int(wc.ByteLen) < GRHLen+4 {
					t.Fatalf("%+v", wc)
				}
				b = b[GRHLen:wc.ByteLen]
				i := int(binary.BigEndian.Uint32(b))
				if i >= count || !bytes.Equal(b, sent[i]) {
					t.Fatalf("%x has arrived, which nobody has sent", b)
				}
				got[i]++
			}
		}
	}
	for i := range count {
		sent[i] = make([]byte, 4+net.Rand.IntN(253))
		for j := range sent[i] {
			sent[i][j] = byte(net.Rand.Uint32())
		}
		binary.BigEndian.PutUint32(sent[i], uint32(i))
		if !g.Queue(verbs.OpSend, sent[i], func(e *verbs.WQE) { e.Dest = verbs.Destination{AH: ah, QPN: 7, QKey: qkey} }) {
			t.Fatal("no room in the send queue")
		}
		id++ // the numbers of requests and buffers are one row
		for _, ok := g.tx.Next(&g.out); ok; _, ok = g.tx.Next(&g.out) {
			want[i] += net.Send(0, &g.out)
		}
		g.tx.Sent()
		if wcs := g.Completions(); len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess {
			t.Fatalf("datagram %d: %+v", i, wcs)
		}
		if net.Rand.IntN(20) == 0 {
			arrive()
		}
	}
	arrive()
	faulty := 0
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("datagram %d has arrived %d times; the network has brought it %d times", i, got[i], want[i])
		}
		if want[i] != 1 {
			faulty++
		}
	}
	if f := net.Faults; max(f.Lost, f.Twice, f.Damaged) >= 0.01 && faulty == 0 {
		t.Error("nothing was lost, and nothing has come twice")
	}
}
