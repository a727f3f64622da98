package nvmetcp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/faultmap"
	"softiser/internal/loopback"
	"softiser/internal/nvme"
	"softiser/internal/nvme/queuetest"
	. "softiser/internal/nvmetcp"
	"softiser/internal/sockio/layertest"
)

// connect makes the host's side of a connection whose other side peer answers for.
func connect(t testing.TB, cfg HostConfig, entries, inCapsule int, peer func(*net.TCPConn)) *queuetest.Queue {
	t.Helper()
	client, server := loopback.Pair(t)
	peer(server)
	h, err := NewHost(t.Context(), client, cfg, nvme.HostQueue{ID: 1, Entries: entries, InCapsule: inCapsule})
	if err != nil {
		t.Fatal(err)
	}
	q := queuetest.NewQueue(t, h, entries)
	h.Start(q)
	return q
}

// peer is a controller that the test writes: it answers the ICReq, then the test reads
// and writes PDUs.
type peer struct{ host }

func script(t testing.TB, cfg HostConfig, entries int) (*queuetest.Queue, *peer) {
	p := &peer{host{t: t, digests: cfg.Digests}}
	p.limits = Limits{FromHost: true, MaxData: 4 << 20, Digests: cfg.Digests}
	q := connect(t, cfg, entries, 8<<10, func(nc *net.TCPConn) {
		p.nc = nc
		b := (&ICResp{Digests: cfg.Digests, MaxH2CData: 8192}).AppendTo(nil)
		if _, err := nc.Write(b); err != nil { // before it is asked, which a host cannot tell
			t.Fatal(err)
		}
	})
	b := make([]byte, ICLen)
	p.read(b)
	return q, p
}

// command reads the next capsule.
func (p *peer) command() (nvme.SQE, []byte) {
	p.t.Helper()
	b, data := p.next()
	if (*CH)(b).Type() != TypeCapsuleCmd {
		p.t.Fatalf("%s: %x", (*CH)(b).Type(), b)
	}
	return *(*CapsuleCmd)(b).SQE(), data
}

func (p *peer) c2h(cid uint16, off int, data []byte, f Flags) []byte {
	var d Data
	d.Set(TypeC2HData, f, p.digests, cid, 0, uint32(off), uint32(len(data)), 0)
	return pdu(d[:], data)
}

func (p *peer) r2t(cid, tag uint16, off, n uint32) []byte {
	var d Data
	d.Set(TypeR2T, 0, p.digests, cid, tag, off, n, 0)
	return pdu(d[:], nil)
}

func (p *peer) resp(cid uint16, s nvme.Status) []byte {
	var c CapsuleResp
	c.CQE().SetCID(cid)
	c.CQE().SetStatus(s)
	c.SetHeader(p.digests)
	return pdu(c[:], nil)
}

// Commands that are answered in any order, with data in any number of pieces that are
// mixed with each other, as a controller over a disk answers them; what the host guesses
// to come is right, or wrong at any place.
func TestHostAnyOrder(t *testing.T) {
	for _, tt := range []struct {
		name            string
		success, pieces bool
		swaps           int // of 100 commands
		digests         Digests
	}{
		{name: "in order, folded", success: true},
		{name: "in order, with responses"},
		{name: "sometimes out of order", success: true, swaps: 5},
		{name: "sometimes out of order, with responses", swaps: 5},
		{name: "in any order", success: true, swaps: 100},
		{name: "in pieces", pieces: true, swaps: 20},
		{name: "in pieces, with digests", pieces: true, swaps: 20, digests: DigestHeader | DigestData},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const depth, rounds = 24, 60
			q, p := script(t, HostConfig{Digests: tt.digests}, depth)
			src := queuetest.Pattern(1<<20, 7)
			rnd := rand.New(rand.NewPCG(1, 2))
			bufs := make([][]byte, depth)
			for round := range rounds {
				type todo struct {
					cid    uint16
					at, n  int
					off    int
					isRead bool
				}
				var all []*todo
				for i := range depth {
					at := rnd.IntN(1 << 19)
					n := []int{512, 4096, 4096, 4096, 20_000, 40_000}[rnd.IntN(6)]
					op := nvme.OpRead
					if rnd.IntN(10) == 0 {
						op = nvme.OpFlush
					}
					if op == nvme.OpRead {
						bufs[i] = make([]byte, n)
						q.H.Submit(q.Set(i, op, at, bufs[i]))
					} else {
						bufs[i] = nil
						q.H.Submit(q.Set(i, op, at))
					}
				}
				q.H.Push()
				for range depth {
					s, _ := p.command()
					all = append(all, &todo{s.CID(), int(s.ReadWrite().SLBA()), int(s.SGL().Length()), 0, s.Opcode() == nvme.OpRead})
				}
				for i := range all {
					if rnd.IntN(100) < tt.swaps {
						j := rnd.IntN(len(all))
						all[i], all[j] = all[j], all[i]
					}
				}
				var out []byte
				for len(all) > 0 {
					i := 0
					if tt.pieces {
						i = rnd.IntN(len(all))
					}
					k := all[i]
					if k.isRead {
						n := k.n - k.off
						if tt.pieces && rnd.IntN(2) == 0 {
							n = 1 + rnd.IntN(n)
						}
						f := Flags(0)
						if n == k.n-k.off {
							f = FlagLast
							if tt.success {
								f |= FlagSuccess
							}
						}
						out = append(out, p.c2h(k.cid, k.off, src[k.at+k.off:][:n], f)...)
						if k.off += n; k.off < k.n {
							continue
						}
					}
					if !k.isRead || !tt.success {
						out = append(out, p.resp(k.cid, 0)...)
					}
					all = slices.Delete(all, i, i+1)
				}
				for len(out) > 0 { // the stream arrives as it likes
					n := min(len(out), 1+rnd.IntN(200_000))
					p.write(out[:n])
					out = out[n:]
				}
				for range depth {
					c := q.Wait()
					if c.Err != nil || c.CQE.Status() != 0 {
						t.Fatalf("round %d: %v, %v", round, c.CQE.Status(), c.Err)
					}
					if b := bufs[c.Slot]; !bytes.Equal(b, src[c.SQE.ReadWrite().SLBA():][:len(b)]) {
						t.Fatalf("round %d: other data", round)
					}
				}
			}
			if s := q.H.Stats(); tt.swaps == 0 && tt.success && s.PayloadCopied > 4<<20 {
				t.Errorf("%d bytes of payload were copied", s.PayloadCopied)
			}
			p.nc.Close()
			if err := q.End(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Two reads to the same memory harm nobody but themselves.
func TestHostSameBuffer(t *testing.T) {
	q, p := script(t, HostConfig{}, 8)
	src := queuetest.Pattern(1<<16, 7)
	buf := make([]byte, 8192)
	for range 200 {
		for i := range 8 {
			q.H.Submit(q.Set(i, nvme.OpRead, i*100, buf[i%2*2048:][:4096]))
		}
		q.H.Push()
		var out []byte
		var cids []nvme.SQE
		for range 8 {
			s, _ := p.command()
			cids = append(cids, s)
		}
		for _, i := range []int{0, 1, 3, 2, 4, 7, 5, 6} {
			s := &cids[i]
			out = append(out, p.c2h(s.CID(), 0, src[s.ReadWrite().SLBA():][:4096], FlagLast|FlagSuccess)...)
		}
		p.write(out)
		for range 8 {
			if c := q.Wait(); c.CQE.Status() != 0 || c.Err != nil {
				t.Fatal(c.CQE.Status(), c.Err)
			}
		}
	}
	p.nc.Close()
	if err := q.End(); err != nil {
		t.Error(err)
	}
}

// A stream that comes in two parts, cut at every byte, is understood.
func TestHostSplitPoints(t *testing.T) {
	for _, dg := range []Digests{0, DigestHeader | DigestData} {
		q, p := script(t, HostConfig{Digests: dg}, 2)
		src := queuetest.Pattern(200, 7)
		for cut := 0; ; cut++ {
			one, two := make([]byte, 60), make([]byte, 70)
			q.H.Submit(q.Set(0, nvme.OpRead, 0, one))
			q.H.Submit(q.Set(1, nvme.OpRead, 0, two))
			q.H.Push()
			a, _ := p.command()
			b, _ := p.command()
			out := slices.Concat(p.c2h(a.CID(), 0, src[:20], 0), p.c2h(a.CID(), 20, src[20:60], FlagLast), p.resp(a.CID(), 0),
				p.c2h(b.CID(), 0, src[60:130], FlagLast|FlagSuccess))
			if cut > len(out) {
				q.H.Terminate(errors.New("enough"))
				break
			}
			before := q.H.Stats().ReceiveCalls
			p.write(out[:cut])
			await.True(t, "what comes before the cut is received", func() bool { return cut == 0 || q.H.Stats().ReceiveCalls != before })
			p.write(out[cut:])
			for range 2 {
				if c := q.Wait(); c.CQE.Status() != 0 || c.Err != nil {
					t.Fatalf("cut at %d: %v, %v", cut, c.CQE.Status(), c.Err)
				}
			}
			if !bytes.Equal(one, src[:60]) || !bytes.Equal(two, src[60:130]) {
				t.Fatalf("cut at %d: other data", cut)
			}
		}
		q.End()
		p.nc.Close()
	}
}

// Reads that take their time, as those of a slow namespace do, keep nobody from guessing where
// the data of others goes.
func TestGuessPastSlow(t *testing.T) {
	const slow, depth, rounds, n = 4, 24, 24, 4096
	q, p := script(t, HostConfig{}, depth)
	src := queuetest.Pattern(1<<20, 7)
	read := func(slot, at int) []byte {
		b := make([]byte, n)
		q.H.Submit(q.Set(slot, nvme.OpRead, at, b))
		return b
	}
	answer := func(count int) {
		q.H.Push()
		var out []byte
		for range count {
			s, _ := p.command()
			out = append(out, p.c2h(s.CID(), 0, src[s.ReadWrite().SLBA():][:n], FlagLast|FlagSuccess)...)
		}
		p.write(out)
	}
	var held []byte
	for i := range slow {
		read(i, i*n)
	}
	q.H.Push()
	for range slow {
		s, _ := p.command()
		held = append(held, p.c2h(s.CID(), 0, src[s.ReadWrite().SLBA():][:n], FlagLast|FlagSuccess)...)
	}
	for round := range rounds {
		bufs := map[int][]byte{}
		for i := slow; i < depth; i++ {
			bufs[i] = read(i, i*n+round)
		}
		answer(len(bufs))
		for range bufs {
			c := q.Wait()
			if b := bufs[c.Slot]; c.Err != nil || !bytes.Equal(b, src[c.SQE.ReadWrite().SLBA():][:n]) {
				t.Fatalf("round %d: other data, or %v", round, c.Err)
			}
		}
	}
	if s := q.H.Stats(); s.PayloadCopied > rounds*(depth-slow)*n/4 {
		t.Errorf("%d bytes of payload were copied", s.PayloadCopied)
	}
	p.write(held)
	for range slow {
		if c := q.Wait(); c.Err != nil {
			t.Fatal(c.Err)
		}
	}
	p.nc.Close()
}

// What a controller does wrong ends the connection, after a TermReq that says what it
// was, and nothing else; no memory but that of reads is touched.
func TestHostBreaches(t *testing.T) {
	flip := func(b []byte, at int, v byte) []byte { b[at] = v; return b }
	for _, tt := range []struct {
		name    string
		digests Digests
		write   bool // the command writes 64 KiB; otherwise it reads 8 KiB
		step    func(p *peer, cid uint16) []byte
		fes     FES
		fei     uint32
	}{
		{name: "ICResp twice", step: func(*peer, uint16) []byte { return (&ICResp{MaxH2CData: 8192}).AppendTo(nil) }, fes: FESSequence},
		{name: "a command", step: func(p *peer, cid uint16) []byte { return flip(p.resp(cid, 0), 0, 4) }, fes: FESInvalidHeader},
		{name: "unknown type", step: func(p *peer, cid uint16) []byte { return flip(p.resp(cid, 0), 0, 0x0C) }, fes: FESInvalidHeader},
		{name: "a long response", step: func(p *peer, cid uint16) []byte { return append(flip(p.resp(cid, 0), 4, 28), 1, 2, 3, 4) }, fes: FESInvalidHeader, fei: 4},
		{name: "header digest", digests: DigestHeader, step: func(p *peer, cid uint16) []byte { return flip(p.resp(cid, 0), 9, 1) }, fes: FESHeaderDigest, fei: 0xFFFFFFFF},
		{name: "a response to nobody", step: func(p *peer, cid uint16) []byte { return p.resp(cid+1, 0) }, fes: FESInvalidHeader, fei: 20},
		{name: "a second response", step: func(p *peer, cid uint16) []byte { p.write(p.resp(cid, 0)); return p.resp(cid, 0) }, fes: FESInvalidHeader, fei: 20},
		{name: "data for nobody", step: func(p *peer, cid uint16) []byte { return p.c2h(cid+1, 0, make([]byte, 8192), 0) }, fes: FESInvalidHeader, fei: AtCCCID},
		{name: "data for a write", write: true, step: func(p *peer, cid uint16) []byte { return p.c2h(cid, 0, make([]byte, 8192), 0) }, fes: FESInvalidHeader, fei: AtCCCID},
		{name: "too much data", step: func(p *peer, cid uint16) []byte { return p.c2h(cid, 0, make([]byte, 8193), 0) }, fes: FESOutOfRange},
		{name: "data beyond the end", step: func(p *peer, cid uint16) []byte {
			p.write(p.c2h(cid, 0, make([]byte, 8000), 0))
			return p.c2h(cid, 8000, make([]byte, 193), 0)
		}, fes: FESOutOfRange},
		{name: "a gap", step: func(p *peer, cid uint16) []byte { return p.c2h(cid, 4096, make([]byte, 4096), 0) }, fes: FESOutOfRange},
		{name: "data twice", step: func(p *peer, cid uint16) []byte {
			p.write(p.c2h(cid, 0, make([]byte, 4096), 0))
			return p.c2h(cid, 0, make([]byte, 4096), 0)
		}, fes: FESOutOfRange},
		{name: "another length", step: func(p *peer, cid uint16) []byte {
			return flip(p.c2h(cid, 0, make([]byte, 8192), 0), AtLength+1, 0x10)
		}, fes: FESInvalidHeader, fei: AtLength},
		{name: "no data", step: func(p *peer, cid uint16) []byte { return p.c2h(cid, 0, nil, 0) }, fes: FESInvalidHeader, fei: AtLength},
		{name: "4 GiB", step: func(p *peer, cid uint16) []byte { return flip(p.c2h(cid, 0, make([]byte, 8), 0), 7, 0xFF) }, fes: FESDataLimit},
		{name: "success before the end", step: func(p *peer, cid uint16) []byte {
			return p.c2h(cid, 0, make([]byte, 4096), FlagLast|FlagSuccess)
		}, fes: FESInvalidHeader, fei: 1},
		{name: "success without last", step: func(p *peer, cid uint16) []byte { return p.c2h(cid, 0, make([]byte, 8192), FlagSuccess) }, fes: FESInvalidHeader, fei: 1},
		{name: "data behind the last", step: func(p *peer, cid uint16) []byte {
			p.write(p.c2h(cid, 0, make([]byte, 4096), FlagLast))
			return p.c2h(cid, 4096, make([]byte, 4096), 0)
		}, fes: FESSequence},
		{name: "data behind success", step: func(p *peer, cid uint16) []byte {
			p.write(p.c2h(cid, 0, make([]byte, 8192), FlagLast|FlagSuccess))
			return p.c2h(cid, 0, make([]byte, 8192), 0)
		}, fes: FESInvalidHeader, fei: AtCCCID},
		{name: "R2T for nobody", write: true, step: func(p *peer, cid uint16) []byte { return p.r2t(cid+1, 0, 0, 4096) }, fes: FESInvalidHeader, fei: AtCCCID},
		{name: "R2T for a read", step: func(p *peer, cid uint16) []byte { return p.r2t(cid, 0, 0, 4096) }, fes: FESInvalidHeader, fei: AtCCCID},
		{name: "R2T for nothing", write: true, step: func(p *peer, cid uint16) []byte { return p.r2t(cid, 0, 0, 0) }, fes: FESInvalidHeader, fei: AtLength},
		{name: "R2T beyond the end", write: true, step: func(p *peer, cid uint16) []byte { return p.r2t(cid, 0, 4096, 64<<10) }, fes: FESOutOfRange},
		{name: "R2T that wraps", write: true, step: func(p *peer, cid uint16) []byte { return p.r2t(cid, 0, 4096, 0xFFFFFFFF) }, fes: FESOutOfRange},
		{name: "R2T behind the end", write: true, step: func(p *peer, cid uint16) []byte { return p.r2t(cid, 0, 64<<10+1, 1) }, fes: FESOutOfRange},
		{name: "R2T twice", write: true, step: func(p *peer, cid uint16) []byte {
			p.write(p.r2t(cid, 0, 0, 4096))
			p.next()
			return p.r2t(cid, 1, 0, 4096)
		}, fes: FESOutOfRange},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q, p := script(t, HostConfig{Digests: tt.digests}, 4)
			buf := make([]byte, 64<<10)
			c := q.Set(3, nvme.OpRead, 0, buf[:8192])
			if tt.write {
				c = q.Set(3, nvme.OpWrite, 0, buf)
			}
			q.H.Submit(c)
			q.H.Push()
			s, _ := p.command()
			bad := tt.step(p, s.CID())
			p.write(bad)
			b, rest := p.next()
			for (*CH)(b).Type() == TypeH2CData {
				b, rest = p.next()
			}
			if (*CH)(b).Type() != TypeH2CTermReq {
				t.Fatalf("%s: %x", (*CH)(b).Type(), b)
			}
			r, err := ParseTermReq(append(b, rest...))
			if err != nil || r.FES != tt.fes || r.FEI != tt.fei && tt.fei != 0xFFFFFFFF {
				t.Errorf("%s at %d, %v; want %s at %d", r.FES, r.FEI, err, tt.fes, tt.fei)
			}
			if n := min(len(r.Header), len(bad)); n < CHLen || !bytes.Equal(r.Header[:n], bad[:n]) {
				t.Errorf("the TermReq repeats %x of %x", r.Header, bad)
			}
			if n, err := io.Copy(io.Discard, p.nc); n != 0 || err != nil {
				t.Errorf("%d bytes behind the TermReq, %v", n, err)
			}
			p.nc.Close()
			var f *Fault
			if err := q.End(); !errors.As(err, &f) {
				t.Errorf("the connection ended with %v", err)
			}
			if !bytes.Equal(buf[8192:], make([]byte, len(buf)-8192)) {
				t.Error("memory was changed that no read names")
			}
			q.H.Submit(c) // harmless
			q.H.Push()
		})
	}
}

// A controller asks for a write in parts, one after the other; more than one at a time
// it may not ask for.
func TestHostR2TParts(t *testing.T) {
	q, p := script(t, HostConfig{}, 1)
	data := queuetest.Pattern(50_000, 7)
	c := q.Set(0, nvme.OpWrite, 0, data[:7], data[7:])
	q.H.Submit(c)
	q.H.Push()
	s, _ := p.command()
	var got []byte
	for tag := uint16(0); len(got) < len(data); tag++ {
		n := min(20_000, len(data)-len(got))
		p.write(p.r2t(s.CID(), tag, uint32(len(got)), uint32(n)))
		for n > 0 {
			b, part := p.next()
			d := (*Data)(b)
			if d.CH().Type() != TypeH2CData || d.TTAG() != tag || int(d.Offset()) != len(got) || len(part) > 8192 ||
				(d.CH().Flags()&FlagLast != 0) != (len(part) == n) {
				t.Fatalf("%x with %d bytes, %d to go", b, len(part), n)
			}
			got = append(got, part...)
			n -= len(part)
		}
	}
	p.write(p.resp(s.CID(), nvme.WriteFault))
	if q.Wait(); c.CQE.Status() != nvme.WriteFault || !bytes.Equal(got, data) {
		t.Error(c.CQE.Status())
	}
	p.nc.Close()
	if err := q.End(); err != nil {
		t.Error(err)
	}
}

// Many small R2Ts at once would fill the transmit queue.
func TestHostR2TFlood(t *testing.T) {
	q, p := script(t, HostConfig{Linger: 20 * time.Millisecond}, 1)
	q.H.Submit(q.Set(0, nvme.OpWrite, 0, make([]byte, 64<<20)))
	q.H.Push()
	s, _ := p.command()
	var flood []byte
	for i := range uint32(60) {
		flood = append(flood, p.r2t(s.CID(), uint16(i), i<<20, 1<<20)...) // more than sockets hold
	}
	p.write(flood)
	var f *Fault
	go io.Copy(io.Discard, p.nc)
	if err := q.End(); !errors.As(err, &f) || f.FES != FESDataLimit {
		t.Errorf("the connection ended with %v", err)
	}
	p.nc.Close()
}

// A command that is answered before its data has gone keeps its memory until then.
func TestHostAnsweredEarly(t *testing.T) {
	q, p := script(t, HostConfig{Linger: 20 * time.Millisecond}, 2)
	q.H.Submit(q.Set(0, nvme.OpWrite, 0, make([]byte, 32<<20)))
	q.H.Push()
	s, _ := p.command()
	p.write(p.r2t(s.CID(), 0, 0, 32<<20))
	p.read(make([]byte, 1)) // the data has begun to flow
	p.write(p.resp(s.CID(), nvme.WriteFault))
	p.write(p.r2t(s.CID()+1, 0, 0, 1)) // nonsense: whoever has read it has read the response
	await.True(t, "the response is read", func() bool { return q.H.Stats().PDUsIn >= 2 })
	if q.Done() != 0 {
		t.Error("completed while its memory is being sent")
	}
	go io.Copy(io.Discard, p.nc)
	if c := q.Wait(); c.CQE.Status() != nvme.WriteFault {
		t.Error(c.CQE.Status())
	}
	q.End()
	p.nc.Close()
}

// Wrong data fails its command; the connection goes on.
func TestHostDataDigest(t *testing.T) {
	q, p := script(t, HostConfig{Digests: DigestData}, 1)
	for _, folded := range []bool{false, true} {
		got := make([]byte, 512)
		q.H.Submit(q.Set(0, nvme.OpRead, 0, got))
		q.H.Push()
		s, _ := p.command()
		f := FlagLast
		if folded {
			f |= FlagSuccess
		}
		b := p.c2h(s.CID(), 0, queuetest.Pattern(512, 7), f)
		b[40] ^= 1
		if !folded {
			b = append(b, p.resp(s.CID(), 0)...)
		}
		p.write(b)
		if c := q.Wait(); !errors.Is(c.Err, nvme.ErrDataDigest) {
			t.Error(c.Err)
		}
	}
	p.nc.Close()
	if err := q.End(); err != nil {
		t.Error(err)
	}
}

// The connection ends with commands outstanding: none of them is completed, and the
// reason is told.
func TestHostLost(t *testing.T) {
	for _, cut := range []int{0, 5, 24, 2000} {
		q, p := script(t, HostConfig{}, 2)
		q.H.Submit(q.Set(0, nvme.OpRead, 0, make([]byte, 4096)))
		q.H.Submit(q.Set(1, nvme.OpWrite, 0, make([]byte, 40960)))
		q.H.Push()
		s, _ := p.command()
		p.command()
		p.write(p.c2h(s.CID(), 0, make([]byte, 4096), FlagLast)[:cut])
		p.nc.Close()
		if err := q.End(); (err == nil) != (cut == 0) {
			t.Errorf("cut at %d: %v", cut, err)
		}
		if q.Done() != 0 {
			t.Error("a command was completed")
		}
	}
}

// Of a connection that is given up, nothing that waits in the socket is sent any more: the write that
// it is of is repeated over another one, and may have been followed by others when it arrives.
func TestHostLeavesNothing(t *testing.T) {
	q, p := script(t, HostConfig{}, 1)
	q.H.Submit(q.Set(0, nvme.OpWrite, 0, make([]byte, 64<<20)))
	q.H.Push()
	s, _ := p.command()
	p.write(p.r2t(s.CID(), 0, 0, 64<<20)) // more than sockets hold
	p.read(make([]byte, 1))               // the data has begun to flow
	mute := errors.New("mute")
	q.H.Terminate(mute)
	if err := q.End(); !errors.Is(err, mute) {
		t.Errorf("the connection ended with %v", err)
	}
	if _, err := io.Copy(io.Discard, p.nc); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the controller reads to the end of what the host has left: %v", err)
	}
	p.nc.Close()
}

// A controller that says why it ends the connection is heard.
func TestControllerTerminates(t *testing.T) {
	q, p := script(t, HostConfig{}, 1)
	p.write((&TermReq{FES: FESDataLimit, Header: []byte("12345678")}).AppendTo(nil, TypeC2HTermReq))
	if err := q.End(); err == nil || !bytes.Contains([]byte(err.Error()), []byte(FESDataLimit.String())) {
		t.Error(err)
	}
	p.nc.Close()
}

// Whoever does not answer the ICReq as agreed is no controller.
func TestHostInitialisation(t *testing.T) {
	good := (&ICResp{MaxH2CData: 8192}).AppendTo(nil)
	with := func(at int, v byte) []byte { b := slices.Clone(good); b[at] = v; return b }
	for name, answer := range map[string][]byte{
		"closes": nil, "half": good[:50], "digests": with(11, 1), "PFV": with(8, 1), "CPDA": with(10, 32),
		"little data": (&ICResp{MaxH2CData: 4095}).AppendTo(nil), "ICReq": with(0, 0), "HTTP": bytes.Repeat([]byte("HTTP/1.1 400 Bad"), 8),
	} {
		client, server := loopback.Pair(t)
		server.Write(answer)
		server.CloseWrite()
		if h, err := NewHost(t.Context(), client, HostConfig{}, nvme.HostQueue{Entries: 1}); err == nil {
			t.Errorf("%s: a connection", name)
			h.Terminate(errors.New("enough"))
		}
		server.Close()
	}
	// Nobody waits for the rest of an ICResp of somebody who has begun something else, and keeps the connection.
	for answer, want := range map[string]string{
		"SSH-2.0-OpenSSH_9.2p1\r\n": `does not speak NVMe/TCP: it begins with "SSH-2.0-OpenSSH_9.2p1\r\n"`,
		string((&TermReq{FES: FESUnsupported}).AppendTo(nil, TypeC2HTermReq)): FESUnsupported.String(),
	} {
		client, server := loopback.Pair(t)
		server.Write([]byte(answer))
		if _, err := NewHost(t.Context(), client, HostConfig{}, nvme.HostQueue{Entries: 1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", answer, err)
		}
		server.Close()
	}
	client, server := loopback.Pair(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	time.AfterFunc(20*time.Millisecond, func() { cancel(enough) })
	if _, err := NewHost(ctx, client, HostConfig{}, nvme.HostQueue{Entries: 1}); !errors.Is(err, enough) {
		t.Errorf("a silent controller: %v", err)
	}
	server.Close()
	client, server = loopback.Pair(t)
	if _, err := NewHost(t.Context(), client, HostConfig{}, nvme.HostQueue{Entries: nvme.MaxHostEntries + 1}); err == nil {
		t.Error("a queue of any length")
	}
	server.Close()
}

// FuzzHost is fed by a controller that says what it likes.
func FuzzHost(f *testing.F) {
	p := &peer{}
	const one, two = 1 << 10, 1<<10 | 1 // the identifiers of the first commands
	f.Add(slices.Concat(p.c2h(one, 0, make([]byte, 512), FlagLast|FlagSuccess), p.r2t(two, 0, 0, 100), p.resp(two, 0)))
	f.Add(slices.Concat(p.c2h(one, 0, make([]byte, 100), 0), p.c2h(one, 100, make([]byte, 412), FlagLast), p.resp(one, 0)))
	f.Add(slices.Concat(p.r2t(two, 7, 100, 4000), p.c2h(one, 0, make([]byte, 513), 0)))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, p := script(t, HostConfig{}, 4)
		room := bytes.Repeat([]byte{0xA5}, 4096)
		q.H.Submit(q.Set(0, nvme.OpRead, 0, room[1000:1512]))
		q.H.Submit(q.Set(1, nvme.OpWrite, 0, make([]byte, 20_000)))
		q.H.Submit(q.Set(2, nvme.OpRead, 0, room[2000:2004], room[3000:3100]))
		q.H.Push()
		p.nc.Write(b)
		p.nc.CloseWrite()
		io.Copy(io.Discard, p.nc)
		p.nc.Close()
		q.End()
		for i, v := range room {
			if v != 0xA5 && (i < 1000 || i >= 1512 && i < 2000 || i >= 2004 && i < 3000 || i >= 3100) {
				t.Fatalf("byte %d was written to", i)
			}
		}
	})
}

// A command of which a part cannot be written fails, whether that part or another one comes
// last; the others do not.
func TestHostFaultInPieces(t *testing.T) {
	for _, digests := range []Digests{0, DigestData} {
		for _, first := range []bool{true, false} {
			q, p := script(t, HostConfig{Digests: digests}, 4)
			good, bad := make([]byte, 8192), faultmap.New(t, 8192, 0)
			pieces := [][]byte{good, bad}
			if first {
				pieces = [][]byte{bad, good}
			}
			data := queuetest.Pattern(16384, 3)
			for _, c := range []*nvme.HostCommand{q.Set(0, nvme.OpRead, 0, pieces...), q.Set(1, nvme.OpRead, 0, make([]byte, 4096))} {
				q.H.Submit(c)
			}
			q.H.Push()
			a, _ := p.command()
			b, _ := p.command()
			p.write(p.c2h(a.CID(), 0, data[:8192], 0))
			p.write(p.c2h(a.CID(), 8192, data[8192:], FlagLast|FlagSuccess))
			p.write(p.c2h(b.CID(), 0, data[:4096], FlagLast|FlagSuccess))
			if c := q.Wait(); c != q.Command(0) || c.Err != nvme.ErrMemoryFault {
				t.Errorf("digests %v, the first part %v: %v", digests, first, c.Err)
			}
			if c := q.Wait(); c != q.Command(1) || c.Err != nil || !bytes.Equal(c.Data[0], data[:4096]) {
				t.Errorf("digests %v: the next command: %v", digests, c.Err)
			}
		}
	}
}

// A damaged part is not made good by sound ones behind it.
func TestHostDamagedPart(t *testing.T) {
	for bad := range 3 {
		q, p := script(t, HostConfig{Digests: DigestData}, 4)
		data := queuetest.Pattern(12288, 3)
		q.H.Submit(q.Set(0, nvme.OpRead, 0, make([]byte, 12288)))
		q.H.Push()
		s, _ := p.command()
		for i := range 3 {
			var f Flags
			if i == 2 {
				f = FlagLast | FlagSuccess
			}
			b := p.c2h(s.CID(), 4096*i, data[4096*i:][:4096], f)
			if i == bad {
				b[len(b)-1]++
			}
			p.write(b)
		}
		if c := q.Wait(); c.Err != nvme.ErrDataDigest || c.Received != 12288 {
			t.Errorf("part %d: %v, %d bytes", bad, c.Err, c.Received)
		}
	}
}

// FIN waits until what lies below has said that nothing follows, also where the last data has filled the socket.
func TestEndOnFullSocket(t *testing.T) {
	client, server := loopback.Pair(t)
	if _, err := server.Write((&ICResp{MaxH2CData: 8192}).AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	below := &layertest.Filled{Conn: client}
	h, err := NewHost(t.Context(), below, HostConfig{}, nvme.HostQueue{ID: 1, Entries: 4})
	if err != nil {
		t.Fatal(err)
	}
	q := queuetest.NewQueue(t, h, 4)
	h.Start(q)
	h.Terminate(nil)
	if b, err := io.ReadAll(server); err != nil || !bytes.HasSuffix(b, []byte{layertest.Said}) {
		t.Errorf("FIN behind %d bytes: %v", len(b), err)
	}
	server.Close()
	q.End()
}
