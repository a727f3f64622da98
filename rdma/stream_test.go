package rdma_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"softiser/internal/await"
	"softiser/internal/race"
	"softiser/rdma"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

// waitWire waits until the queue pair has read n bytes of the stream.
func waitWire(t testing.TB, e *rdmatest.End, n int) {
	t.Helper()
	await.True(t, fmt.Sprintf("%d bytes are read", n), func() bool { return e.QP.Stats().WireIn >= uint64(n) })
}

// The receive machine must be able to stop at every byte: a stream with every
// kind of placement is cut in two at each position, on one long connection.
func TestEverySplitPoint(t *testing.T) {
	p, e := rawToServer(t, nil, nil)
	mem := make([]byte, 6000)
	mr, err := e.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mr.Dereg() }()
	small, long := pattern(37, 1), pattern(5000, 2)
	text := pattern(300, 3)
	got := make([]byte, 1000)
	msn := uint32(1)
	sent := 0
	script := func() []byte {
		var b []byte
		for _, u := range [][]byte{
			taggedMsg(wire.Write, mr.RKey(), mr.Addr()+1, true, small),
			taggedMsg(wire.Write, mr.RKey(), mr.Addr()+100, false, long[:4500]),
			taggedMsg(wire.Write, mr.RKey(), mr.Addr()+4600, true, long[4500:]),
			taggedMsg(wire.Write, 0, 0, true, nil),
			untagged(wire.SendSE, 0, msn, 0, false, text[:100]),
			untagged(wire.SendSE, 0, msn, 100, true, text[100:]),
		} {
			b = append(b, p.fpdu(u)...)
		}
		msn++
		return b
	}
	n := len(script())
	step := 1
	if testing.Short() || race.Enabled {
		step = 7
	}
	msn = 1
	for i := 0; i < n; i += step {
		clear(mem)
		clear(got)
		// A new key each time; it also tells the race detector who goes first.
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
		if mr, err = e.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteWrite); err != nil {
			t.Fatal(err)
		}
		e.Recv(t, uint64(i), got)
		b := script()
		p.write(b[:i])
		waitWire(t, e, sent+i)
		p.write(b[i:])
		sent += n
		wc := e.Want(t, uint64(i), rdma.WCRecv, rdma.StatusSuccess)
		if wc.ByteLen != 300 || wc.Flags != rdma.WCSolicited || !bytes.Equal(got[:300], text) {
			t.Fatalf("cut at %d: the Send arrives as %+v", i, wc)
		}
		if !bytes.Equal(mem[1:38], small) || !bytes.Equal(mem[100:5100], long) {
			t.Fatalf("cut at %d: wrong data in memory", i)
		}
	}
	s := e.QP.Stats()
	if s.PlacedDirect == 0 || s.PlacedCopied == 0 {
		t.Errorf("placed %d bytes directly and %d by copy: one way was not taken", s.PlacedDirect, s.PlacedCopied)
	}
}

// The same byte by byte, for a queue pair that gets a Read answered.
func TestByteByByte(t *testing.T) {
	p, e := rawToClient(t, nil)
	sink := make([]byte, 700)
	got := make([]byte, 64)
	e.Recv(t, 2, got)
	e.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpRead, SGL: []rdma.SGE{e.SGE(sink[:300]), e.SGE(sink[300:])}})
	var r wire.ReadReq
	r.Parse(p.recv()[wire.UntaggedLen:])
	data := pattern(700, 9)
	var b []byte
	b = append(b, p.fpdu(taggedMsg(wire.ReadResponse, r.SinkSTag, r.SinkTO, false, data[:400]))...)
	b = append(b, p.fpdu(sendMsg(1, []byte("between")))...)
	b = append(b, p.fpdu(taggedMsg(wire.ReadResponse, r.SinkSTag, r.SinkTO+400, true, data[400:]))...)
	for i := range b {
		p.write(b[i : i+1])
		waitWire(t, e, i+1)
	}
	e.Want(t, 2, rdma.WCRecv, rdma.StatusSuccess)
	e.Want(t, 1, rdma.WCRead, rdma.StatusSuccess)
	if !bytes.Equal(sink, data) || string(got[:7]) != "between" {
		t.Error("wrong data")
	}
}

// With CRC on, no single flipped bit goes unnoticed, wherever it is: the message
// is not completed, and the connection ends.
func TestEveryBitFlip(t *testing.T) {
	for _, tt := range []struct {
		name    string
		payload int
		every   int // bits tested
	}{{"small", 21, 1}, {"direct", 8192, 1009}} {
		t.Run(tt.name, func(t *testing.T) {
			every := tt.every
			if race.Enabled {
				every *= 5
			}
			data := pattern(tt.payload, 4)
			for bit := 0; ; bit += every {
				p, e := rawToServer(t, nil, nil)
				mem := make([]byte, tt.payload)
				mr, err := e.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
				if err != nil {
					t.Fatal(err)
				}
				e.Recv(t, 1, make([]byte, 64))
				var b []byte
				b = append(b, p.fpdu(taggedMsg(wire.Write, mr.RKey(), mr.Addr(), true, data))...)
				b = append(b, p.fpdu(sendMsg(1, []byte("complete")))...)
				done := bit >= 8*len(b)
				if !done {
					b[bit/8] ^= 1 << (bit % 8)
				}
				p.write(b)
				_ = p.nc.CloseWrite()
				if done {
					e.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
					if !bytes.Equal(mem, data) {
						t.Fatal("wrong data without a flipped bit")
					}
				} else {
					e.Want(t, 1, rdma.WCRecv, rdma.StatusFlushed)
				}
				p.nc.Close()
				err = e.WaitDone(t)
				var te *rdma.TerminateError
				if !done && !errors.Is(err, io.ErrUnexpectedEOF) && (!errors.As(err, &te) || wire.MakeCause(wire.Layer(te.Layer), te.EType, te.Code) != wire.CauseCRC) {
					t.Fatalf("bit %d: the connection ended by: %v", bit, err)
				}
				mr.Dereg()
				e.QP.Close()
				if done {
					return
				}
			}
		})
	}
}

// A damaged header is a bad CRC, whatever else is wrong with what it says, also where it is looked
// at before the CRC has come.
func TestDamagedHeaderIsBadCRC(t *testing.T) {
	const part = 100 // header and some of the payload
	for bit := range 8 * wire.TaggedLen {
		p, e := rawToServer(t, nil, nil)
		m := newMemory(t, e)
		b := p.fpdu(taggedMsg(wire.Write, m.rw.RKey(), m.rw.Addr(), true, pattern(200, 4)))
		b[wire.LenField+bit/8] ^= 1 << (bit % 8)
		p.write(b[:part])
		waitWire(t, e, part)
		p.write(b[part:])
		if term := p.terminate(); term.Cause != wire.CauseCRC {
			t.Errorf("byte %d, bit %d of the header: %v", bit/8, bit%8, term.Cause)
		}
	}
}

// The pad is covered by the CRC, also where that is computed as the bytes come.
func TestDamagedPadIsBadCRC(t *testing.T) {
	const part = 100 // header and some of the payload
	for pad := 1; pad <= 3; pad++ {
		p, e := rawToServer(t, nil, nil)
		m := newMemory(t, e)
		n := 200
		for wire.Pad(wire.TaggedLen+n) != pad {
			n++
		}
		b := p.fpdu(taggedMsg(wire.Write, m.rw.RKey(), m.rw.Addr(), true, pattern(n, 4)))
		b[len(b)-wire.CRCLen-pad] ^= 0x80
		p.write(b[:part])
		waitWire(t, e, part)
		p.write(b[part:])
		if term := p.terminate(); term.Cause != wire.CauseCRC {
			t.Errorf("pad of %d bytes: %v", pad, term.Cause)
		}
	}
}

// Without CRC the field is ignored, whatever it holds.
func TestCRCFieldIgnored(t *testing.T) {
	o := &rdmatest.Options{Server: rdma.ConnParams{CRC: rdma.CRCOffered}}
	p, e := rawToServer(t, o, plainRequest())
	e.Recv(t, 1, make([]byte, 64))
	b := p.fpdu(sendMsg(1, []byte("hello")))
	copy(b[len(b)-7:], []byte{1, 2, 3, 4, 5, 6, 7}) // pad and CRC
	p.write(b)
	e.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
}

// Random bytes, and random damage to a sound stream, never do more than end the
// connection.
func TestGarbage(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 150 {
		o := &rdmatest.Options{Server: rdma.ConnParams{CRC: rdma.CRCOffered}}
		p, e := rawToServer(t, o, plainRequest())
		mem := make([]byte, 256)
		mr, err := e.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteWrite|rdma.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		for id := range 8 {
			e.Recv(t, uint64(id), make([]byte, 64))
		}
		var b []byte
		for j := range 20 {
			switch rng.IntN(4) {
			case 0:
				b = append(b, p.fpdu(sendMsg(uint32(j+1), pattern(rng.IntN(64), 1)))...)
			case 1:
				b = append(b, p.fpdu(taggedMsg(wire.Write, mr.RKey(), mr.Addr(), rng.IntN(2) == 0, pattern(rng.IntN(256), 2)))...)
			case 2:
				b = append(b, p.fpdu(readMsg(1, wire.ReadReq{Size: rng.Uint32N(300), SrcSTag: mr.RKey(), SrcTO: mr.Addr(), SinkSTag: 7}))...)
			case 3:
				u := make([]byte, rng.IntN(100))
				for k := range u {
					u[k] = byte(rng.Uint32())
				}
				if len(u) > 1 && rng.IntN(2) == 0 {
					binary.BigEndian.PutUint16(u, uint16(wire.Ctrl(wire.Opcode(rng.IntN(12)), rng.IntN(2) == 0)))
				}
				b = append(b, p.fpdu(u)...)
			}
		}
		for range rng.IntN(4) {
			b[rng.IntN(len(b))] ^= byte(rng.Uint32())
		}
		_, _ = p.nc.Write(b)
		_ = p.nc.CloseWrite()
		go func() { _, _ = io.Copy(io.Discard, p.nc); p.nc.Close() }()
		if err := e.WaitDone(t); err == nil {
			t.Fatalf("stream %d: no reason for the end", i)
		}
		mr.Dereg()
		e.QP.Close()
	}
}

// Zero copy where it counts: payloads that come while memory is lent for them go
// straight there, and a Write and the Send behind it leave in one call.
func TestPlacementIsDirect(t *testing.T) {
	for _, n := range []int{4096, 8192, 65536, 1 << 20} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			var a, b *rdmatest.End
			a, b = rdmatest.NewPair(t, &rdmatest.Options{Prepare: func(a, b *rdmatest.End) {
				for i := range 32 {
					a.Recv(t, uint64(i), make([]byte, 64))
					b.Recv(t, uint64(i), make([]byte, 64))
				}
			}})
			w, err := a.PD.AllocWindow()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			mem := make([]byte, n)
			data := pattern(n, 5)
			for i := range 10 {
				stag, base, err := w.Bind(a.QP, [][]byte{mem}, rdma.AccessRemoteWrite|rdma.AccessRemoteRead)
				if err != nil {
					t.Fatal(err)
				}
				a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE(make([]byte, 48))}})
				a.Want(t, 1, rdma.WCSend, rdma.StatusSuccess)
				b.Want(t, uint64(i), rdma.WCRecv, rdma.StatusSuccess)
				before := b.QP.Stats().SendCalls
				if err := b.QP.PostSend(
					rdma.SendWR{Op: rdma.OpWrite, SGL: []rdma.SGE{b.SGE(data)}, Remote: rdma.RemoteAddr{TO: base, STag: stag}},
					rdma.SendWR{ID: 2, Op: rdma.OpSendInv, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{b.SGE(make([]byte, 48))}, InvSTag: stag}); err != nil {
					t.Fatal(err)
				}
				b.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
				a.Want(t, uint64(i), rdma.WCRecv, rdma.StatusSuccess)
				if calls := b.QP.Stats().SendCalls - before; n <= 65536 && calls != 1 {
					t.Errorf("Write and Send took %d calls", calls)
				}
				if !bytes.Equal(mem, data) {
					t.Fatal("wrong data")
				}
				// And back, by RDMA Read.
				if stag, base, err = w.Bind(a.QP, [][]byte{mem}, rdma.AccessRemoteRead); err != nil {
					t.Fatal(err)
				}
				sink := make([]byte, n)
				b.Post(t, rdma.SendWR{ID: 3, Op: rdma.OpRead, SGL: []rdma.SGE{b.SGE(sink)}, Remote: rdma.RemoteAddr{TO: base, STag: stag}})
				b.Want(t, 3, rdma.WCRead, rdma.StatusSuccess)
				if !bytes.Equal(sink, data) {
					t.Fatal("wrong data read")
				}
			}
			for _, e := range []*rdmatest.End{a, b} {
				// The peer may have everything before the sender's call has returned.
				await.True(t, "the payloads are sent by reference", func() bool { return e.QP.Stats().SentDirect >= uint64(10*n) })
				s := e.QP.Stats()
				want, sends := uint64(10*n), uint64(480)
				if s.PlacedDirect+s.PlacedCopied != want+sends || s.SentDirect != want {
					t.Errorf("placed %d bytes directly, %d by copy; sent %d by reference; want %d", s.PlacedDirect, s.PlacedCopied, s.SentDirect, want)
				}
				// A receiver that is held up between its look for memory that is lent and
				// its read takes what has come meanwhile into its buffer: once, not always.
				if s.PlacedCopied > sends+uint64(min(n, 64<<10)) {
					t.Errorf("%d bytes copied, want the %d of the Sends", s.PlacedCopied, sends)
				}
			}
		})
	}
}
