package rdma_test

import (
	"bytes"
	"io"
	"testing"

	"softiser/internal/await"
	"softiser/rdma"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

// Transfers by MSG_ZEROCOPY arrive intact and complete only after the kernel's
// notice; auto gives up over loopback, where the kernel copies anyway.
func TestZerocopy(t *testing.T) {
	for _, mode := range []rdma.ZerocopyMode{rdma.ZerocopyAuto, rdma.ZerocopyOn} {
		for _, crc := range crcModes {
			t.Run(mode.String()+"/"+crc.String(), func(t *testing.T) {
				p := rdma.ConnParams{Zerocopy: mode, ZerocopyMin: 16 << 10, CRC: crc}
				a, b := rdmatest.NewPair(t, &rdmatest.Options{Client: p, Server: p})
				mem := make([]byte, 8<<20)
				mr, err := b.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteWrite|rdma.AccessRemoteRead)
				if err != nil {
					t.Fatal(err)
				}
				defer mr.Dereg()
				for round := range 8 {
					data := pattern(1<<20, uint64(round))
					rem := rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}
					b.Recv(t, 9, nil)
					if err := a.QP.PostSend(
						rdma.SendWR{ID: 1, Op: rdma.OpWrite, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{a.SGE(data[:768<<10])}, Remote: rem},
						rdma.SendWR{ID: 2, Op: rdma.OpWrite, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{a.SGE(data[768<<10:])}, Remote: rdma.RemoteAddr{TO: rem.TO + 768<<10, STag: rem.STag}},
						rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.FlagSignaled}); err != nil {
						t.Fatal(err)
					}
					for id, op := range []rdma.WCOpcode{rdma.WCWrite, rdma.WCWrite, rdma.WCSend} {
						a.Want(t, uint64(id+1), op, rdma.StatusSuccess)
					}
					clear(data) // it is ours again; the peer must have got what it was before
					b.Want(t, 9, rdma.WCRecv, rdma.StatusSuccess)
					if want := pattern(1<<20, uint64(round)); !bytes.Equal(mem[:1<<20], want) {
						t.Fatalf("round %d: wrong data", round)
					}
					got := make([]byte, 1<<20)
					a.Post(t, rdma.SendWR{ID: 4, Op: rdma.OpRead, SGL: []rdma.SGE{a.SGE(got)}, Remote: rem})
					a.Want(t, 4, rdma.WCRead, rdma.StatusSuccess)
				}
				n := a.QP.Stats().ZerocopyCalls
				t.Logf("%d calls by MSG_ZEROCOPY", n)
				if n == 0 {
					t.Error("no call by MSG_ZEROCOPY")
				}
				if mode == rdma.ZerocopyAuto && n > 20 {
					t.Errorf("auto goes on over loopback: %d calls", n)
				}
				if b.QP.Stats().ZerocopyCalls != 0 {
					t.Error("Read Responses were sent by reference")
				}
				a.QP.Disconnect()
				if err := a.WaitDone(t); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A graceful end waits for the kernel's notices, and the last of them lets it go on.
func TestZerocopyDisconnect(t *testing.T) {
	p, e := rawToClient(t, &rdmatest.Options{Client: rdma.ConnParams{Zerocopy: rdma.ZerocopyOn, ZerocopyMin: 4096}})
	e.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpWrite, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{e.SGE(make([]byte, 256<<10))}, Remote: rdma.RemoteAddr{STag: 1}})
	await.True(t, "a call by reference", func() bool { return e.QP.Stats().ZerocopyCalls > 0 })
	e.QP.Disconnect()
	for p.recvUntilEnd() != nil {
	}
	p.nc.Close()
	e.Want(t, 1, rdma.WCWrite, rdma.StatusSuccess)
	if err := e.WaitDone(t); err != nil {
		t.Error(err)
	}
}

// What has been flushed is its owner's again, and nothing that he puts there is sent, though the
// connection waits for the peer's FIN.
func TestZerocopyGivesBack(t *testing.T) {
	p, e := rawToClient(t, &rdmatest.Options{Client: rdma.ConnParams{Zerocopy: rdma.ZerocopyOn, ZerocopyMin: 4096}})
	defer p.nc.Close()
	data := pattern(16<<20, 1) // more than the socket takes; the peer does not read
	for id := range 4 {
		e.Post(t, rdma.SendWR{ID: uint64(id), Op: rdma.OpWrite, SGL: []rdma.SGE{e.SGE(data)}, Remote: rdma.RemoteAddr{STag: 1}})
	}
	await.True(t, "a call by reference", func() bool { return e.QP.Stats().ZerocopyCalls > 0 })
	h := wire.Untagged{Ctrl: wire.Ctrl(wire.Terminate, true), QN: wire.QNTerminate, MSN: 1}
	term := wire.Term{Cause: wire.CauseLocal}
	p.send(term.Append(h.Append(nil)))
	e.Poll(t, 4)
	const later = 0xA7 // not part of a header, but for chance in a CRC
	for i := range data {
		data[i] = later
	}
	got, _ := io.ReadAll(p.nc) // what the socket has had, and FIN or a reset
	if n := bytes.Count(got, bytes.Repeat([]byte{later}, 8)); n > 0 {
		t.Errorf("%d bytes came, with %d times what was put there after the completion", len(got), n)
	}
	e.WaitDone(t)
}

// The end of a connection with calls outstanding: everything comes back.
func TestZerocopyAbort(t *testing.T) {
	p, e := rawToClient(t, &rdmatest.Options{Client: rdma.ConnParams{Zerocopy: rdma.ZerocopyOn, ZerocopyMin: 4096}})
	data := make([]byte, 16<<20) // more than the socket takes; the peer does not read
	for id := range 4 {
		e.Post(t, rdma.SendWR{ID: uint64(id), Op: rdma.OpWrite, SGL: []rdma.SGE{e.SGE(data)}, Remote: rdma.RemoteAddr{STag: 1}})
	}
	e.QP.Abort(nil)
	for id, wc := range e.Poll(t, 4) {
		if wc.ID != uint64(id) || wc.Status == rdma.StatusSuccess {
			t.Errorf("%+v", wc)
		}
	}
	e.WaitDone(t)
	p.nc.Close()
}
