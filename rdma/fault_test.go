package rdma_test

import (
	"bytes"
	"fmt"
	"testing"

	"softiser/internal/await"
	"softiser/internal/faultmap"
	"softiser/rdma"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

var crcModes = []rdma.CRCMode{rdma.CRCRequired, rdma.CRCOff}

// faultCase is what a test of faults runs over.
type faultCase struct {
	provider rdma.Provider
	crc      rdma.CRCMode
}

func (c faultCase) String() string { return fmt.Sprint(c.provider, c.crc) }

var faultCases = []faultCase{{crc: rdma.CRCRequired}, {crc: rdma.CRCOff}, {provider: rdma.ProviderRoCE}}

func faultPair(t *testing.T, c faultCase) (a, b *rdmatest.End) {
	return rdmatest.NewPair(t, &rdmatest.Options{
		Device: rdma.DeviceConfig{Provider: c.provider},
		Client: rdma.ConnParams{CRC: c.crc}, Server: rdma.ConnParams{CRC: c.crc},
		Prepare: func(a, b *rdmatest.End) {
			for i := range 8 {
				a.Recv(t, uint64(100+i), make([]byte, 64))
				b.Recv(t, uint64(100+i), make([]byte, 64))
			}
		}})
}

// A Read whose sink cannot be written fails alone, whatever the size; the
// connection goes on.
func TestFaultInReadSink(t *testing.T) {
	for _, mode := range faultCases {
		for _, n := range []int{1000, 16 << 10, 300 << 10} {
			t.Run(fmt.Sprintf("%v/%d", mode, n), func(t *testing.T) {
				a, b := faultPair(t, mode)
				data := pattern(n, 1)
				mr, err := b.PD.RegMR(data, rdma.AccessRemoteRead)
				if err != nil {
					t.Fatal(err)
				}
				defer mr.Dereg()
				rem := rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}
				mem := faultmap.New(t, 1<<20, 512<<10)
				bad := mem[512<<10-n/2:][:n]
				good := make([]byte, n)
				if err := a.QP.PostSend(
					rdma.SendWR{ID: 1, Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{a.SGE(bad)}, Remote: rem},
					rdma.SendWR{ID: 2, Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{a.SGE(good)}, Remote: rem},
					rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.FlagSignaled}); err != nil {
					t.Fatal(err)
				}
				a.Want(t, 1, rdma.WCRead, rdma.StatusLocalFault)
				a.Want(t, 2, rdma.WCRead, rdma.StatusSuccess)
				a.Want(t, 3, rdma.WCSend, rdma.StatusSuccess)
				if !bytes.Equal(good, data) {
					t.Error("the Read behind it brought wrong data")
				}
				await.True(t, "the fault is counted", func() bool { return a.QP.Stats().Faults > 0 }) // behind the completions
			})
		}
	}
}

// The same for a Write of the peer into a window: the window tells.
func TestFaultInWindow(t *testing.T) {
	for _, mode := range faultCases {
		for _, n := range []int{1000, 16 << 10, 300 << 10} {
			t.Run(fmt.Sprintf("%v/%d", mode, n), func(t *testing.T) {
				a, b := faultPair(t, mode)
				mem := faultmap.New(t, 1<<20, 512<<10)
				w, err := b.PD.AllocWindow()
				if err != nil {
					t.Fatal(err)
				}
				defer w.Close()
				stag, base, err := w.Bind(b.QP, [][]byte{mem[512<<10-n/2:][:n]}, rdma.AccessRemoteWrite)
				if err != nil {
					t.Fatal(err)
				}
				if err := a.QP.PostSend(
					rdma.SendWR{Op: rdma.OpWrite, SGL: []rdma.SGE{a.SGE(pattern(n, 2))}, Remote: rdma.RemoteAddr{TO: base, STag: stag}},
					rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.FlagSignaled}); err != nil {
					t.Fatal(err)
				}
				a.Want(t, 1, rdma.WCSend, rdma.StatusSuccess)
				b.Want(t, 100, rdma.WCRecv, rdma.StatusSuccess)
				if w.Faults() == 0 {
					t.Error("the window does not tell")
				}
			})
		}
	}
}

// A plain region has no owner who would look: the Write ends the connection.
func TestFaultInRegion(t *testing.T) {
	a, b := faultPair(t, faultCase{})
	mr, err := b.PD.RegMR(faultmap.New(t, 1<<20, 512<<10), rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Dereg()
	a.Post(t, rdma.SendWR{Op: rdma.OpWrite, SGL: []rdma.SGE{a.SGE(make([]byte, 8192))}, Remote: rdma.RemoteAddr{TO: mr.Addr() + 600<<10, STag: mr.RKey()}})
	checkTerminate(t, b.WaitDone(t), false, wire.CauseDDPLocal)
	checkTerminate(t, a.WaitDone(t), true, wire.CauseDDPLocal)
}

// A receive buffer that faults: that receive fails, the next one does not.
func TestFaultInReceiveBuffer(t *testing.T) {
	for _, mode := range crcModes {
		t.Run(mode.String(), func(t *testing.T) {
			mem := faultmap.New(t, 1<<20, 512<<10)
			a, b := rdmatest.NewPair(t, &rdmatest.Options{
				Client: rdma.ConnParams{CRC: mode}, Server: rdma.ConnParams{CRC: mode},
				Prepare: func(_, b *rdmatest.End) {
					b.Recv(t, 1, mem[600<<10:][:100<<10])
					b.Recv(t, 2, make([]byte, 100))
				}})
			a.Post(t, rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE(make([]byte, 90<<10))}})
			a.Post(t, rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE(make([]byte, 90))}})
			b.Want(t, 1, rdma.WCRecv, rdma.StatusLocalFault)
			b.Want(t, 2, rdma.WCRecv, rdma.StatusSuccess)
		})
	}
}

// Memory that cannot be read when it is to be sent costs the connection, and the
// request that named it says why; what was queued before has been sent.
func TestFaultInSource(t *testing.T) {
	for _, mode := range faultCases {
		for _, n := range []int{100, 200 << 10} {
			t.Run(fmt.Sprintf("%v/%d", mode, n), func(t *testing.T) {
				a, b := faultPair(t, mode)
				mem := faultmap.New(t, 1<<20, 512<<10)
				if err := a.QP.PostSend(
					rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.FlagSignaled},
					rdma.SendWR{ID: 2, Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE(mem[600<<10:][:n])}},
					rdma.SendWR{ID: 3, Op: rdma.OpSend}); err != nil {
					t.Fatal(err)
				}
				a.Want(t, 1, rdma.WCSend, rdma.StatusSuccess)
				a.Want(t, 2, rdma.WCSend, rdma.StatusLocalFault)
				a.Want(t, 3, rdma.WCSend, rdma.StatusFlushed)
				a.WaitDone(t)
				b.Want(t, 100, rdma.WCRecv, rdma.StatusSuccess)
				if err := b.WaitDone(t); err == nil {
					t.Error("the peer does not notice")
				}
			})
		}
	}
}

// The peer reads memory of ours that faults.
func TestFaultInReadSource(t *testing.T) {
	for _, mode := range faultCases {
		t.Run(mode.String(), func(t *testing.T) {
			a, b := faultPair(t, mode)
			mr, err := b.PD.RegMR(faultmap.New(t, 1<<20, 512<<10), rdma.AccessRemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			defer mr.Dereg()
			a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpRead, SGL: []rdma.SGE{a.SGE(make([]byte, 9000))}, Remote: rdma.RemoteAddr{TO: mr.Addr() + 600<<10, STag: mr.RKey()}})
			if wc := a.Poll(t, 1)[0]; wc.Status == rdma.StatusSuccess {
				t.Error("the Read succeeded")
			}
			if err := b.WaitDone(t); err == nil {
				t.Error("no reason for the end")
			}
		})
	}
}
