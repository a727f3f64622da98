package iscsitcp

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"softiser/internal/await"
	"softiser/internal/faultmap"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/loopback"
	"softiser/internal/pdustream"
)

// reads is READs that are outstanding at the initiator's end of r.
type reads struct {
	*peer
	tags uint32 // used so far
}

// read is one of them.
type read struct {
	itt  uint32
	bufs *iscsi.TaskBuffers
	mem  []byte // what is read to, and guards around it
	want []byte // what the target has
}

const guard = 64

// submit sends n READs of size bytes.
func (r *reads) submit(n, size int) (all []*read) {
	r.t.Helper()
	for range n {
		r.tags++
		q := &read{itt: r.tags, mem: make([]byte, guard+size+guard), want: make([]byte, size)}
		for i := range q.want {
			q.want[i] = byte(int(q.itt)*31 + i*7)
		}
		p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{q.mem[guard : guard+size : guard+size]}}}
		p.BHS.NewSCSICommand().SetITT(q.itt)
		if err := r.c.SendControl(&p); err != nil {
			r.t.Fatal(err)
		}
		q.bufs = p.Bufs
		all = append(all, q)
	}
	r.c.Push()
	for range n {
		r.recv()
	}
	return all
}

// data is the Data-In number sn of q; folded: it is the command's response, too.
func (r *reads) data(q *read, sn uint32, off, n int, folded bool) []byte {
	var b iscsi.BHS
	d := b.NewDataIn()
	d.SetITT(q.itt)
	d.SetDataSN(sn)
	d.SetOffset(uint32(off))
	d.SetFinal(off+n == len(q.want))
	d.SetHasStatus(folded)
	return r.frame(b, nil, q.want[off:off+n])
}

// whole is all data of q.
func (r *reads) whole(q *read) []byte { return r.data(q, 0, 0, len(q.want), true) }

func (r *reads) answer(q *read) []byte {
	var b iscsi.BHS
	b.NewSCSIResponse().SetITT(q.itt)
	return r.frame(b, nil, nil)
}

// done waits until all have been answered, in whichever order, and checks their data.
func (r *reads) done(all []*read) {
	r.t.Helper()
	left := slices.Clone(all)
	for len(left) > 0 {
		p := r.up.PDU(r.t, "response")
		itt, op := p.BHS.ITT(), p.BHS.Opcode()
		p.Release()
		if op != iscsi.OpSCSIResponse {
			continue
		}
		i := slices.IndexFunc(left, func(q *read) bool { return q.itt == itt })
		if i < 0 {
			r.t.Fatalf("an answer for %d, which is not outstanding", itt)
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, q := range all {
		size := len(q.want)
		if !bytes.Equal(q.mem[guard:guard+size], q.want) || int(q.bufs.InLen) != size {
			r.t.Fatalf("wrong data of %d", q.itt)
		}
		if len(bytes.Trim(q.mem[:guard], "\x00")) != 0 || len(bytes.Trim(q.mem[guard+size:], "\x00")) != 0 {
			r.t.Fatalf("memory beside that of %d was touched", q.itt)
		}
	}
}

// In whichever order a target answers, and wherever the stream is cut, data ends up where
// it belongs.
func TestGuesses(t *testing.T) {
	const n, rounds = 12, 16
	nop := func(r *reads) []byte {
		var b iscsi.BHS
		b.NewNopIn().SetITT(iscsi.ReservedTag)
		b.SetTTT(iscsi.ReservedTag)
		return r.frame(b, nil, []byte("idle"))
	}
	for _, tc := range []struct {
		name string
		size int
		sure bool // guesses come true: few calls, and few bytes by way of the read-ahead
		make func(r *reads, all []*read) []byte
	}{
		{"in order", 512, true, func(r *reads, all []*read) (b []byte) {
			for _, q := range all {
				b = append(b, r.whole(q)...)
			}
			return b
		}},
		{"with responses", 512, true, func(r *reads, all []*read) (b []byte) {
			for _, q := range all {
				b = append(append(b, r.data(q, 0, 0, len(q.want), false)...), r.answer(q)...)
			}
			return b
		}},
		{"responses last", 512, false, func(r *reads, all []*read) (b []byte) {
			for _, q := range all {
				b = append(b, r.data(q, 0, 0, len(q.want), false)...)
			}
			for _, q := range all {
				b = append(b, r.answer(q)...)
			}
			return b
		}},
		{"backwards", 512, false, func(r *reads, all []*read) (b []byte) {
			for _, q := range slices.Backward(all) {
				b = append(b, r.whole(q)...)
			}
			return b
		}},
		{"every second one first", 512, false, func(r *reads, all []*read) (b []byte) {
			for i := range all {
				b = append(b, r.whole(all[2*i%n+2*i/n])...)
			}
			return b
		}},
		{"two Data-Ins each, mixed", 512, false, func(r *reads, all []*read) (b []byte) {
			for _, q := range all {
				b = append(b, r.data(q, 0, 0, 200, false)...)
			}
			for _, q := range all {
				b = append(b, r.data(q, 1, 200, 312, true)...)
			}
			return b
		}},
		{"in pieces, the second first", 512, false, func(r *reads, all []*read) (b []byte) {
			for _, q := range all {
				b = append(append(b, r.data(q, 0, 200, 312, false)...), r.data(q, 1, 0, 200, false)...)
				b = append(b, r.answer(q)...)
			}
			return b
		}},
		{"with pings", 512, false, func(r *reads, all []*read) (b []byte) {
			for i, q := range all {
				if b = append(b, r.whole(q)...); i%3 == 1 {
					b = append(b, nop(r)...)
				}
			}
			return b
		}},
		{"padded", 509, false, func(r *reads, all []*read) (b []byte) {
			for _, q := range all {
				b = append(b, r.whole(q)...)
			}
			return b
		}},
		{"long", 40 << 10, false, func(r *reads, all []*read) (b []byte) {
			for _, q := range all {
				b = append(b, r.whole(q)...)
			}
			return b
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, cut := range []bool{false, true} {
				r := &reads{peer: newPeer(t, iscsi.RoleInitiator, func(p *iscsi.Params) {
					p.MaxRecvDataSegmentLength = 64 << 10
					p.DataPDUInOrder = tc.name != "in pieces, the second first"
				})}
				rnd := rand.New(rand.NewPCG(1, uint64(len(tc.name))))
				for range rounds {
					all := r.submit(n, tc.size)
					b := tc.make(r, all)
					for cut && len(b) > 1 {
						k := 1 + rnd.IntN(min(len(b)-1, 3*(tc.size+iscsi.BHSLen)))
						r.send(b[:k])
						b = b[k:]
					}
					r.send(b)
					r.done(all)
				}
				if st := r.c.Stats(); !cut && tc.sure && (st.ReceiveCalls > 3*rounds || st.PayloadCopied > st.PayloadIn/3) {
					t.Errorf("%d receive calls for %d reads in %d bursts, %d of %d bytes were copied", st.ReceiveCalls, n*rounds, rounds, st.PayloadCopied, st.PayloadIn)
				}
			}
		})
	}
}

// Reads that take their time, as those of a slow volume do, keep nobody from guessing where the
// data of others goes.
func TestGuessPastSlow(t *testing.T) {
	const n, rounds = 12, 24
	r := &reads{peer: newPeer(t, iscsi.RoleInitiator, nil)}
	slow := r.submit(4, 512)
	answer := func(all []*read) {
		var b []byte
		for _, q := range all {
			b = append(b, r.whole(q)...)
		}
		r.send(b)
		r.done(all)
	}
	for range rounds {
		answer(r.submit(n, 512))
	}
	if st := r.c.Stats(); st.ReceiveCalls > 3*rounds || st.PayloadCopied > st.PayloadIn/3 {
		t.Errorf("%d receive calls for %d reads in %d bursts, %d of %d bytes were copied", st.ReceiveCalls, n*rounds, rounds, st.PayloadCopied, st.PayloadIn)
	}
	answer(slow)
}

// Memory that has been given back is not touched any more, though data was about to be
// aimed at it, or has come.
func TestGuessReleased(t *testing.T) {
	r := &reads{peer: newPeer(t, iscsi.RoleInitiator, nil)}
	mark := bytes.Repeat([]byte{0xee}, 512)
	var gone []*read
	for i := range 50 {
		all := r.submit(8, 512)
		var b []byte
		for _, q := range all {
			b = append(b, r.whole(q)...)
		}
		sent := make(chan error, 1)
		go func() {
			_, err := r.nc.Write(b)
			sent <- err
		}()
		// The first always answers: what is behind it may have come or not.
		taken := all[1+i%3 : 4+i%3]
		for _, q := range taken {
			r.c.ReleaseTask(q.bufs)
			copy(q.mem[guard:], mark)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		last := all[len(all)-1].itt
		for {
			p := r.up.PDU(t, "response")
			itt := p.BHS.ITT()
			if p.Release(); itt == last {
				break
			}
		}
		gone = append(gone, taken...)
		for _, q := range all {
			if slices.Contains(taken, q) {
				continue
			}
			if !bytes.Equal(q.mem[guard:guard+512], q.want) {
				t.Fatalf("wrong data of %d", q.itt)
			}
		}
	}
	for _, q := range gone {
		if !bytes.Equal(q.mem[guard:guard+512], mark) {
			t.Fatalf("memory of %d was written to after it had been given back", q.itt)
		}
	}
}

// settling is a foresight that calls first once before it lets go of memory.
type settling struct {
	foresight
	first func()
}

func (s *settling) Settle(g *pdustream.Guess) {
	if f := s.first; f != nil {
		s.first = nil
		f()
	}
	s.foresight.Settle(g)
}

// Whoever takes memory away that a call is aimed at waits until it is let go of.
func TestReleaseWaitsForGuess(t *testing.T) {
	a, b := loopback.Pair(t)
	defer a.Close()
	c, err := New(b, iscsi.RoleInitiator, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Enable(); err != nil {
		t.Fatal(err)
	}
	p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{make([]byte, 512)}}}
	p.BHS.NewSCSICommand().SetITT(1)
	if err := c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	early := make(chan bool)
	c.rx.Foresee(&settling{foresight{c}, func() {
		var over atomic.Bool
		go func() {
			c.ReleaseTask(p.Bufs)
			early <- !over.Load()
		}()
		for range 1000 {
			runtime.Gosched() // it has every chance to be early
		}
		over.Store(true)
	}})
	c.Start(datamovertest.NewRecorder())
	if <-early {
		t.Error("memory was given back that a call was aimed at")
	}
	c.Terminate(errors.New("enough"))
	<-c.Ended()
}

// Where one of the buffers that a call is aimed at cannot be written, that read fails alone.
func TestGuessFaults(t *testing.T) {
	r := &reads{peer: newPeer(t, iscsi.RoleInitiator, func(p *iscsi.Params) { p.MaxRecvDataSegmentLength = 64 << 10 })}
	mem := faultmap.New(t, 16<<10, 0)
	for range 4 {
		all := r.submit(8, 512)
		r.tags++
		p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{mem}}}
		p.BHS.NewSCSICommand().SetITT(r.tags)
		if err := r.c.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		r.recv()
		bad := &read{itt: r.tags, want: make([]byte, len(mem))}
		behind := r.submit(8, 512)
		var b []byte
		for _, q := range append(append(slices.Clone(all), bad), behind...) {
			b = append(b, r.whole(q)...)
		}
		r.send(b)
		r.done(all)
		a := r.up.PDU(t, "response")
		if s := a.BHS.SCSIResponse(); a.BHS.ITT() != bad.itt || s.Response() != iscsi.ResponseTargetFailure {
			t.Errorf("a read to memory that is not there: response %v for %d", s.Response(), a.BHS.ITT())
		}
		a.Release()
		r.done(behind)
	}
}

// TestNoGuess: what stands between the data of reads, and data that come in any order, are not
// guessed over.
func TestNoGuess(t *testing.T) {
	for _, d := range []struct{ header, data iscsi.Digest }{{iscsi.DigestCRC32C, iscsi.DigestNone}, {iscsi.DigestNone, iscsi.DigestCRC32C}, {iscsi.DigestCRC32C, iscsi.DigestCRC32C}} {
		r := &reads{peer: newPeer(t, iscsi.RoleInitiator, func(p *iscsi.Params) { p.HeaderDigest, p.DataDigest = d.header, d.data })}
		for range 5 {
			all := r.submit(8, 512)
			var b []byte
			for _, q := range all {
				b = append(b, r.whole(q)...)
			}
			r.send(b)
			r.done(all)
		}
	}
	for _, change := range []func(*iscsi.Params){
		func(p *iscsi.Params) { p.DataSequenceInOrder = false },
		func(p *iscsi.Params) { p.DataPDUInOrder = false },
	} {
		r := &reads{peer: newPeer(t, iscsi.RoleInitiator, change)}
		all := r.submit(2, 512)
		first, second := all[0], all[1]
		r.send(r.data(first, 0, 200, 312, false))
		await.True(t, "it has come", func() bool { return r.c.Stats().PayloadIn == 312 })
		r.send(r.whole(second)) // where the rest of the first could be expected
		await.True(t, "it has come", func() bool { return r.c.Stats().PayloadIn == 824 })
		r.send(append(r.data(first, 1, 0, 200, false), r.answer(first)...))
		r.done(all)
	}
}
