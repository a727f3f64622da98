package iwarp

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"softiser/internal/faultmap"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// warm teaches the machine the pattern of answers.
func (r *rxRig) warm() {
	k := r.lend(8<<10, 2, 7)
	for i := range k {
		r.feed(r.answer(&k[i], 1<<16, false))
	}
	r.verify(k)
}

// One window of many that a call is aimed at cannot be touched: that one tells,
// and everything else arrives, wherever the stream is cut.
func TestCutsFaultInWindow(t *testing.T) {
	const n, bad = 8 << 10, 3
	for _, crc := range rigModes {
		for _, peek := range rigModes {
			t.Run(fmt.Sprintf("crc=%v/peek=%v", crc, peek), func(t *testing.T) {
				size := 1
				for cut := 0; cut < size; cut += 4001 {
					r := newRig(t, crc)
					r.warm()
					if peek {
						r.qp.rx.in.pattern.pause = 1000
					}
					k := r.lend(n, 8, 1)
					k[bad].w.close()
					k[bad].mem = faultmap.New(t, n, n/2)
					k[bad].w, k[bad].stag, k[bad].base = r.window(k[bad].mem, scratch)
					// In the order of lending.
					k = append(slices.Delete(slices.Clone(k), bad, bad+1), k[bad])
					var b []byte
					for range 2 {
						for i := range k {
							b = append(b, r.answer(&k[i], 1<<16, false)...)
						}
					}
					size = len(b)
					r.feed(b[:cut])
					r.feed(b[cut:])
					if r.over {
						t.Fatalf("cut at %d: the connection has ended: %v", cut, r.qp.rx.err)
					}
					last := k[len(k)-1]
					if last.w.r.Faults() != 2 {
						t.Fatalf("cut at %d: the window tells of %d faults, not 2", cut, last.w.r.Faults())
					}
					if got := len(r.poll()); got != 2*len(k) {
						t.Fatalf("cut at %d: %d Sends completed, want %d", cut, got, 2*len(k))
					}
					for i := range k[:len(k)-1] {
						if !bytes.Equal(k[i].mem, k[i].data) || k[i].w.r.Faults() != 0 {
							t.Fatalf("cut at %d: window %d is wrong, or tells of faults: %d", cut, i, k[i].w.r.Faults())
						}
					}
				}
			})
		}
	}
}

// The same for the sinks of Reads; of the long one only the last FPDU cannot be
// placed.
func TestCutsFaultInSink(t *testing.T) {
	for _, crc := range rigModes {
		faultInSink(t, crc, 8<<10, func() []byte { return faultmap.New(t, 8<<10, 4<<10) })
		faultInSink(t, crc, 64<<10, func() []byte { return faultmap.New(t, 128<<10, 64<<10)[4<<10:][:64<<10] })
	}
}

func faultInSink(t *testing.T, crc bool, n int, badMem func() []byte) {
	t.Helper()
	const bad = 2
	r := newRig(t, crc)
	var mems, want [][]byte
	var ops []*verbs.WQE
	var b []byte
	for i := range 6 {
		mem := make([]byte, n)
		if i == bad {
			mem = badMem()
		}
		e, stag, base := r.read(mem)
		mems, ops, want = append(mems, mem), append(ops, e), append(want, fill(n, uint64(i)))
		b = append(b, r.message(wire.ReadResponse, stag, base, want[i], 60<<10)...)
		b = append(b, r.send(make([]byte, 80), 0)...)
	}
	r.feed(b)
	for i, e := range ops {
		switch {
		case r.over || !e.Done:
			t.Fatalf("crc %v: Read %d of %d bytes is not done: %v", crc, i, n, r.qp.rx.err)
		case i == bad && e.Status != verbs.StatusLocalFault:
			t.Errorf("crc %v: the Read of %d bytes into bad memory ended with %v", crc, n, e.Status)
		case i != bad && (e.Status != verbs.StatusSuccess || !bytes.Equal(mems[i], want[i])):
			t.Errorf("crc %v: Read %d of %d bytes is wrong: %v", crc, i, n, e.Status)
		}
	}
	if got := len(r.poll()); got != 6 {
		t.Errorf("crc %v: %d Sends completed, want 6", crc, got)
	}
}

// A Terminate between payloads ends the connection there: what came before it is
// complete, and nothing behind it is.
func TestCutsTerminate(t *testing.T) {
	for _, peek := range rigModes {
		for at := range 6 {
			r := newRig(t, true)
			r.warm()
			if peek {
				r.qp.rx.in.pattern.pause = 1000
			}
			k := r.lend(8<<10, 6, 1)
			var b []byte
			for i := range k {
				if i == at {
					h := wire.Untagged{Ctrl: wire.Ctrl(wire.Terminate, true), QN: wire.QNTerminate, MSN: 1}
					term := wire.Term{Cause: wire.CauseDDPLocal}
					b = append(b, r.fpdu(term.Append(h.Append(nil)))...)
				}
				b = append(b, r.answer(&k[i], 1<<16, false)...)
			}
			r.feed(b)
			var te *Terminated
			if !r.over || !errors.As(r.qp.rx.err, &te) || !te.Remote {
				t.Fatalf("peek %v, at %d: ended: %v, because of %v", peek, at, r.over, r.qp.rx.err)
			}
			if got := len(r.poll()); got != at {
				t.Fatalf("peek %v, at %d: %d Sends completed", peek, at, got)
			}
			for i := range k[:at] {
				if !bytes.Equal(k[i].mem, k[i].data) {
					t.Fatalf("peek %v, at %d: window %d is wrong", peek, at, i)
				}
			}
		}
	}
}

// Windows are taken back while the machine may be aiming at them. When that has
// returned the memory is the owner's again, and nothing is placed there any more.
func TestCutsInvalidateRace(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	ended := 0
	for round := range 120 {
		r := newRig(t, round%2 == 0)
		r.warm()
		if round%3 == 0 {
			r.qp.rx.in.pattern.pause = 1000
		}
		k := r.lend(8<<10, 12, uint64(round))
		var b []byte
		for i := range k {
			b = append(b, r.answer(&k[i], 1<<16, false)...)
		}
		victim, mine := &k[rng.IntN(len(k))], bytes.Repeat([]byte{0xee}, 8<<10)
		start, done := make(chan struct{}), make(chan struct{})
		spin := rng.IntN(20000)
		go func() {
			defer close(done)
			<-start
			for range spin {
				_ = victim.w.r.State()
			}
			victim.w.r.Revoke()
			copy(victim.mem, mine)
		}()
		close(start)
		r.feed(b)
		<-done
		if !bytes.Equal(victim.mem, mine) {
			t.Fatalf("round %d: bytes were placed in memory that had been taken back", round)
		}
		n := len(r.poll())
		if r.over {
			ended++
		}
		if r.over != (n < len(k)) {
			t.Fatalf("round %d: ended: %v (%v) after %d Sends", round, r.over, r.qp.rx.err, n)
		}
		for i := range k[:n] {
			if &k[i] != victim && !bytes.Equal(k[i].mem, k[i].data) {
				t.Fatalf("round %d: window %d is wrong", round, i)
			}
		}
	}
	t.Logf("in %d of 120 rounds the window was taken back first", ended)
}

// The same for memory regions, which are peeked at, and their end.
func TestCutsDeregRace(t *testing.T) {
	const rights = mem.LocalWrite | mem.RemoteWrite
	rng := rand.New(rand.NewPCG(5, 5))
	for round := range 60 {
		r := newRig(t, true)
		r.warm()
		k := r.lend(8<<10, 4, uint64(round)) // so that something is lent
		mem := make([]byte, 64<<10)
		mr := newWindow(t, r.qp, true)
		stag, base := mr.r.OpenKey(nil, [][]byte{mem}, rights, 1)
		var b []byte
		data := fill(8<<10, 1)
		for i := range uint64(8) {
			b = append(b, r.message(wire.Write, stag, base+i<<13, data, 1<<16)...)
		}
		mine := bytes.Repeat([]byte{0xee}, len(mem))
		start, done := make(chan struct{}), make(chan struct{})
		spin := rng.IntN(20000)
		go func() {
			defer close(done)
			<-start
			for range spin {
				_ = mr.r.State()
			}
			mr.close()
			copy(mem, mine)
		}()
		close(start)
		r.feed(b)
		<-done
		if !bytes.Equal(mem, mine) {
			t.Fatalf("round %d: bytes were placed in memory that had been taken back", round)
		}
		for i := range k {
			k[i].w.close()
		}
	}
}

// Sinks are taken away while Read Responses arrive: the connection goes on.
func TestCutsDiscardRace(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	for round := range 60 {
		r := newRig(t, round%2 == 0)
		var b []byte
		var mems, want [][]byte
		var ops []*verbs.WQE
		var regs []*mem.Region
		n := []int{8 << 10, 64 << 10}[round/2%2]
		for i := range 16 {
			p := make([]byte, n)
			e, stag, base := r.read(p)
			regs = append(regs, r.qp.Dev.Table.Lookup(stag))
			mems, want, ops = append(mems, p), append(want, fill(len(p), uint64(i))), append(ops, e)
			b = append(b, r.message(wire.ReadResponse, stag, base, want[i], 60<<10)...)
			b = append(b, r.send(make([]byte, 80), 0)...)
		}
		victim := rng.IntN(16)
		mine := bytes.Repeat([]byte{0xee}, n)
		start, done := make(chan struct{}), make(chan struct{})
		spin := rng.IntN(10000)
		go func() {
			defer close(done)
			<-start
			for range spin {
				_ = regs[victim].Faults()
			}
			regs[victim].Discard()
			copy(mems[victim], mine)
		}()
		close(start)
		r.feed(b)
		<-done
		if r.over || len(r.poll()) != 16 {
			t.Fatalf("round %d: the connection has ended, or Sends are missing: %v", round, r.qp.rx.err)
		}
		if !bytes.Equal(mems[victim], mine) {
			t.Fatalf("round %d: bytes were placed in memory that had been taken away", round)
		}
		for i := range mems {
			if !ops[i].Done || i != victim && !bytes.Equal(mems[i], want[i]) {
				t.Fatalf("round %d: Read %d is wrong", round, i)
			}
		}
	}
}

// A window of more pieces than one call takes: the CRC is still that of the bytes.
func TestCutsScattered(t *testing.T) {
	for _, crc := range rigModes {
		r := newRig(t, crc)
		r.warm()
		k := r.lend(16, 2, 3) // too short to be noticed; the windows are bound below
		for i := range k {
			k[i].mem, k[i].data = make([]byte, 32<<10), fill(32<<10, uint64(i))
			var segs [][]byte
			for p := k[i].mem; len(p) > 0; p = p[256:] {
				segs = append(segs, p[:256])
			}
			k[i].stag, k[i].base = k[i].w.bind(r.qp, segs, mem.RemoteWrite)
		}
		var b []byte
		for i := range k {
			b = append(b, r.answer(&k[i], 20<<10, false)...)
		}
		r.feed(b)
		if r.over {
			t.Fatalf("crc %v: the connection has ended: %v", crc, r.qp.rx.err)
		}
		r.verify(k)
	}
}
