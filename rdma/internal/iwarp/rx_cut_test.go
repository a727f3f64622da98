package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// rxRig is the receive side of a queue pair without its goroutines: the test is
// the peer, and says when the machine runs and what lies in the socket then.
type rxRig struct {
	t    testing.TB
	qp   *QP
	cq   *verbs.CQ
	peer net.Conn
	over bool // the machine has ended

	msn, recvd uint32
	bufs       [][]byte // posted
}

func newRig(t testing.TB, crc bool) *rxRig {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var nc [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if nc[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	conn, err := sockio.New(nc[0], sockio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); nc[1].Close() })
	qp, cq := newPair(t, 256)
	qp.conn, qp.Connected = conn, true
	qp.Mu.Lock()
	qp.SetState(verbs.StateRTS)()
	qp.Mu.Unlock()
	qp.start.initiator = true
	sink, err := qp.reads.makeSink()
	if err != nil {
		t.Fatal(err)
	}
	qp.reads.openLocked(sink, 32)
	qp.asked.openLocked(0)
	qp.tx.init(crc, 65536)
	qp.rx.init(crc)
	r := &rxRig{t: t, qp: qp, cq: cq, peer: nc[1], msn: 1}
	r.post(64)
	return r
}

// post keeps n receive buffers posted.
func (r *rxRig) post(n int) {
	for len(r.bufs)-int(r.recvd) < n {
		b := make([]byte, 6000)
		r.qp.RQ.Lock()
		buf, err := r.qp.RQ.PostLocked(uint64(len(r.bufs)))
		if err != nil {
			r.t.Fatal(err)
		}
		buf.Add(b, mem.LocalKey)
		r.qp.RQ.Unlock()
		r.bufs = append(r.bufs, b)
	}
}

// feed puts b into the socket and lets the machine run until it is empty.
func (r *rxRig) feed(b []byte) {
	r.t.Helper()
	for len(b) > 0 && !r.over {
		n := min(len(b), 48<<10) // what the socket takes for certain
		if _, err := r.peer.Write(b[:n]); err != nil {
			r.t.Fatal(err)
		}
		b = b[n:]
		r.over = r.qp.rx.Ready()
	}
}

func (r *rxRig) fpdu(u []byte) []byte { return wire.AppendFPDU(nil, u, r.qp.rx.crcOn) }

func (r *rxRig) tagged(op wire.Opcode, stag uint32, to uint64, last bool, p []byte) []byte {
	h := wire.Tagged{Ctrl: wire.Ctrl(op, last), STag: stag, TO: to}
	return r.fpdu(append(h.Append(nil), p...))
}

// message is a tagged message in FPDUs with at most seg bytes of payload.
func (r *rxRig) message(op wire.Opcode, stag uint32, to uint64, p []byte, seg int) (b []byte) {
	for off := 0; off < len(p); off += seg {
		n := min(seg, len(p)-off)
		b = append(b, r.tagged(op, stag, to+uint64(off), off+n == len(p), p[off:off+n])...)
	}
	return b
}

func (r *rxRig) send(p []byte, inv uint32) []byte {
	h := wire.Untagged{Ctrl: wire.Ctrl(wire.Send, true), MSN: r.msn}
	if inv != 0 {
		h.Ctrl, h.Inv = wire.Ctrl(wire.SendInv, true), inv
	}
	r.msn++
	return r.fpdu(append(h.Append(nil), p...))
}

func (r *rxRig) window(p []byte, a mem.Access) (w *window, stag uint32, base uint64) {
	r.t.Helper()
	w = newWindow(r.t, r.qp, false)
	stag, base = w.bind(r.qp, [][]byte{p}, a)
	return w, stag, base
}

// read makes an outstanding RDMA Read with the given sink.
func (r *rxRig) read(p []byte) (e *verbs.WQE, stag uint32, base uint64) {
	r.qp.Mu.Lock()
	defer r.qp.Mu.Unlock()
	e = &verbs.WQE{Op: verbs.OpRead, Length: uint32(len(p))}
	if !r.qp.reads.roomLocked() {
		r.t.Fatal("no room for another Read")
	}
	stag, base = r.qp.reads.sentLocked(e).Open(&r.qp.Mem, [][]byte{p}, mem.Sink)
	return e, stag, base
}

// poll takes the receive completions; they must be good and in order.
func (r *rxRig) poll() (got [][]byte) {
	r.t.Helper()
	r.cq.Lock()
	defer r.cq.Unlock()
	for {
		wc := r.cq.NextLocked()
		if wc == nil {
			return got
		}
		if wc.ID != uint64(r.recvd) || wc.Status != verbs.StatusSuccess {
			r.t.Fatalf("completion %+v, expected number %d", wc, r.recvd)
		}
		got = append(got, r.bufs[r.recvd][:wc.ByteLen])
		r.recvd++
	}
}

func fill(n int, seed uint64) []byte {
	b := make([]byte, (n+7)&^7)
	rng := rand.New(rand.NewPCG(seed, 5))
	for i := 0; i < n; i += 8 { // by bytes it is most of what these tests take under race
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b[:n:n]
}

const scratch = mem.RemoteWrite | mem.Scratch

const answerLen = 76 // of a Send behind the data of a READ

// readTask is a READ: a lent window, and what is to be in it in the end.
type readTask struct {
	w         *window
	mem, data []byte
	stag      uint32
	base      uint64
}

func (r *rxRig) lend(n, count int, seed uint64) (out []readTask) {
	for i := range count {
		k := readTask{mem: make([]byte, n), data: fill(n, seed+uint64(i))}
		k.w, k.stag, k.base = r.window(k.mem, scratch)
		out = append(out, k)
	}
	return out
}

func (r *rxRig) answer(k *readTask, seg int, inv bool) []byte {
	b := r.message(wire.Write, k.stag, k.base, k.data, seg)
	if inv {
		return append(b, r.send(make([]byte, answerLen), k.stag)...)
	}
	return append(b, r.send(make([]byte, answerLen), 0)...)
}

func (r *rxRig) verify(tasks []readTask) {
	r.t.Helper()
	for i := range tasks {
		if !bytes.Equal(tasks[i].mem, tasks[i].data) {
			r.t.Fatalf("window %d holds wrong data", i)
		}
		tasks[i].w.close()
	}
	r.poll()
	r.post(64)
}

var rigModes = []bool{true, false}

// In the order of the commands everything goes to its place, from the first byte
// on, many payloads in a call.
func TestGuessInOrder(t *testing.T) {
	for _, crc := range rigModes {
		for _, n := range []int{4 << 10, 16 << 10, 60 << 10, 64 << 10, 256 << 10} {
			t.Run(fmt.Sprintf("%v/%dk", crc, n>>10), func(t *testing.T) {
				r := newRig(t, crc)
				want := uint64(0)
				for round := range 6 {
					before := r.qp.rx.stats.RecvCalls
					tasks := r.lend(n, 32, uint64(round))
					var b []byte
					inv := round%2 == 0
					for i := range tasks {
						b = append(b, r.answer(&tasks[i], 60<<10, inv)...)
					}
					r.feed(b)
					for i := range tasks {
						if tasks[i].w.r.State().Valid == inv {
							t.Fatalf("round %d: window %d invalidated: %v, want %v", round, i, !inv, inv)
						}
					}
					r.verify(tasks)
					want += uint64(32 * n)
					if s := &r.qp.rx.stats; s.Direct != want || s.Copied != uint64(32*(round+1)*answerLen) {
						t.Fatalf("round %d: %d of %d bytes placed directly, %d copied", round, s.Direct, want, s.Copied)
					}
					// One call for what the socket held each time, and one that finds it empty.
					if calls := r.qp.rx.stats.RecvCalls - before; n == 4<<10 && round > 0 && calls > 32/3 {
						t.Errorf("round %d: %d calls for 32 payloads", round, calls)
					}
				}
			})
		}
	}
}

// READs that take their time, as those of a slow volume do, keep nobody from guessing where the
// data of others goes.
func TestGuessPastSlow(t *testing.T) {
	for _, crc := range rigModes {
		r := newRig(t, crc)
		slow := r.lend(4<<10, 8, 100)
		for round := range 8 {
			before := r.qp.rx.stats.RecvCalls
			tasks := r.lend(4<<10, 24, uint64(round))
			var b []byte
			for i := range tasks {
				b = append(b, r.answer(&tasks[i], 60<<10, true)...)
			}
			r.feed(b)
			r.verify(tasks)
			if calls := r.qp.rx.stats.RecvCalls - before; round > 1 && calls > 24/3 {
				t.Errorf("round %d: %d calls for 24 payloads", round, calls)
			}
		}
		for i := range slow {
			r.feed(r.answer(&slow[i], 60<<10, true))
		}
		r.verify(slow)
		if s := &r.qp.rx.stats; s.Copied > s.Direct/4 {
			t.Errorf("%d bytes placed directly, %d copied", s.Direct, s.Copied)
		}
	}
}

// holdRevoke begins to invalidate w and stops while w is locked, in front of the list
// of windows, until goOn is closed. done is closed afterwards.
func holdRevoke(qp *QP, w *window) (goOn, done chan struct{}) {
	goOn, done = make(chan struct{}), make(chan struct{})
	there := make(chan struct{})
	qp.Mem.Closed = func(r *mem.Region) {
		close(there)
		<-goOn
		qp.lent.closed(r)
	}
	go func() {
		w.r.Revoke()
		close(done)
	}()
	<-there
	return goOn, done
}

// A window that is being revoked is locked by someone who is about to wait for the
// list of windows, which the receiver holds while it chooses some to guess into. It
// must not wait for that window, but go without it.
func TestGuessOnlyTries(t *testing.T) {
	for _, revoked := range []int{0, 2} {
		r := newRig(t, true)
		qp := r.qp
		tasks := r.lend(4<<10, 4, 1)
		goOn, revoking := holdRevoke(qp, tasks[revoked].w)
		qp.rx.in.take()
		qp.rx.in.vec = qp.rx.in.vec[:0]
		guessed := make(chan int, 1)
		go func() {
			qp.rx.in.guess(segGap)
			guessed <- qp.rx.in.cuts.aimed
		}()
		select {
		case n := <-guessed:
			if n != revoked {
				t.Errorf("%d windows are aimed at, where number %d is being revoked", n, revoked)
			}
		case <-time.After(time.Minute):
			t.Fatal("the receiver waits for a window that is being revoked")
		}
		close(goOn)
		<-revoking
		qp.rx.in.releaseCuts()
	}
}

// The same for what is looked at before: while one payload is being placed, the
// next one's memory is only tried.
func TestPeekOnlyTries(t *testing.T) {
	r := newRig(t, true)
	k := &r.lend(4<<10, 1, 1)[0]
	goOn, revoking := holdRevoke(r.qp, k.w)
	aimed := make(chan bool, 1)
	go func() {
		aimed <- r.qp.rx.in.aimCut(&rxCut{size: len(k.mem)}, &wire.Tagged{Ctrl: wire.Ctrl(wire.Write, true), STag: k.stag, TO: k.base})
	}()
	select {
	case ok := <-aimed:
		if ok {
			t.Error("memory that is being revoked is aimed at")
		}
	case <-time.After(time.Minute):
		t.Fatal("the receiver waits for a window that is being revoked")
	}
	close(goOn)
	<-revoking
}

// Whatever the order, the data is right; where guessing pauses, nothing is copied.
func TestGuessOutOfOrder(t *testing.T) {
	for _, crc := range rigModes {
		r := newRig(t, crc)
		rng := rand.New(rand.NewPCG(1, 1))
		for round := range 40 {
			tasks := r.lend(4096, 24, uint64(round))
			var b []byte
			for _, i := range rng.Perm(len(tasks)) {
				b = append(b, r.answer(&tasks[i], 1<<16, round%2 == 0)...)
			}
			r.feed(b)
			r.verify(tasks)
		}
		s := &r.qp.rx.stats
		copied := s.Copied - 40*24*answerLen
		if copied == 0 || copied > s.Direct/5 {
			t.Errorf("%d bytes placed directly, %d copied: few, but some wrong guesses were expected", s.Direct, copied)
		}
	}
}

// A Write that has been guessed right, but is not as it should be, is refused for what is wrong
// with it, and so is a Send behind a good one that names other memory.
func TestGuessedWriteIsChecked(t *testing.T) {
	control := func(r *rxRig, k *readTask, c wire.Control) []byte {
		h := wire.Tagged{Ctrl: c, STag: k.stag, TO: k.base}
		return append(r.fpdu(append(h.Append(nil), k.data...)), r.send(make([]byte, answerLen), 0)...)
	}
	good := wire.Ctrl(wire.Write, true)
	for name, c := range map[string]struct {
		cause wire.Cause
		bytes func(r *rxRig, k []readTask) []byte
	}{
		"DDP version":   {wire.CauseTaggedVersion, func(r *rxRig, k []readTask) []byte { return control(r, &k[0], good^0x0300) }},
		"RDMAP version": {wire.CauseRDMAPVersion, func(r *rxRig, k []readTask) []byte { return control(r, &k[0], good^0x00c0) }},
		"opcode":        {wire.CauseOpcode, func(r *rxRig, k []readTask) []byte { return control(r, &k[0], good|wire.Control(wire.Send)) }},
		"offset": {wire.CauseBounds, func(r *rxRig, k []readTask) []byte {
			return r.tagged(wire.Write, k[0].stag, k[0].base+8, true, k[0].data)
		}},
		"reserved bits": {causeNone, func(r *rxRig, k []readTask) []byte { return control(r, &k[0], good|0x3c30) }},
		"closed window": {wire.CauseRemoteNoInval, func(r *rxRig, k []readTask) []byte {
			k[3].w.close()
			return append(r.message(wire.Write, k[0].stag, k[0].base, k[0].data, 1<<16), r.send(make([]byte, answerLen), k[3].stag)...)
		}},
		"another window": {causeNone, func(r *rxRig, k []readTask) []byte {
			return append(r.message(wire.Write, k[0].stag, k[0].base, k[0].data, 1<<16), r.send(make([]byte, answerLen), k[3].stag)...)
		}},
	} {
		for _, crc := range rigModes {
			r := newRig(t, crc)
			r.warm()
			k := r.lend(4096, 4, 1)
			r.feed(c.bytes(r, k))
			var term *Terminated
			if errors.As(r.qp.rx.err, &term) != (c.cause != causeNone) || term != nil && term.Cause != c.cause {
				t.Errorf("%s, crc %v: ended with %v, want %v", name, crc, r.qp.rx.err, c.cause)
			}
			if s := r.qp.rx.stats; s.Direct < 3*4096 {
				t.Errorf("%s, crc %v: nothing was guessed", name, crc)
			}
			if name == "another window" && (k[3].w.r.State().Valid || !k[0].w.r.State().Valid) {
				t.Errorf("crc %v: the wrong window has been invalidated", crc)
			}
			for i := range k {
				k[i].w.close()
			}
		}
	}
}

// A Send that is read together with a guessed Write behind it, and closes the window of that, has come first.
func TestGuessedWriteToWhatWasInvalidated(t *testing.T) {
	for _, crc := range rigModes {
		for _, at := range []int{1, 2} { // the next window, or the one behind it
			r := newRig(t, crc)
			r.warm()
			k := r.lend(4096, 4, 1)
			b := r.message(wire.Write, k[0].stag, k[0].base, k[0].data, 1<<16)
			b = append(b, r.send(make([]byte, answerLen), k[at].stag)...)
			for i := 1; i <= at; i++ {
				b = append(b, r.answer(&k[i], 1<<16, false)...)
			}
			r.feed(b)
			var term *Terminated
			if !errors.As(r.qp.rx.err, &term) || term.Cause != wire.CauseSTag {
				t.Errorf("crc %v, window %d: ended with %v, want %v", crc, at, r.qp.rx.err, wire.CauseSTag)
			}
			if s := r.qp.rx.stats; s.Direct < uint64(3+at)*4096 {
				t.Errorf("crc %v, window %d: nothing was guessed", crc, at)
			}
			for i := range k {
				k[i].w.close()
			}
		}
	}
}

// When a Read has been answered its memory is the user's again: a peer that goes on answering it
// places nothing there, also where the stream is looked at beforehand.
func TestAnsweredReadIsClosed(t *testing.T) {
	const n = 8 << 10
	for _, crc := range rigModes {
		r := newRig(t, crc)
		mem := make([]byte, n)
		_, stag, base := r.read(mem)
		r.read(make([]byte, n)) // its answer is expected next
		r.feed(r.message(wire.ReadResponse, stag, base, fill(n, 1), 60<<10))
		if !bytes.Equal(mem, fill(n, 1)) {
			t.Fatalf("crc %v: wrong data", crc)
		}
		if n, sinks, _ := r.qp.lent.lent(); n != 1 || sinks != 1 {
			t.Errorf("crc %v: %d pieces of memory are lent, %d of them to Reads; one Read has not been answered", crc, n, sinks)
		}
		clear(mem)
		r.feed(r.message(wire.ReadResponse, stag, base, fill(n, 2), 60<<10))
		var term *Terminated
		if !errors.As(r.qp.rx.err, &term) || term.Cause != wire.CauseSTag {
			t.Errorf("crc %v: ended with %v, want %v", crc, r.qp.rx.err, wire.CauseSTag)
		}
		if !bytes.Equal(mem, make([]byte, n)) {
			t.Errorf("crc %v: an answer has been placed where the Read before it went", crc)
		}
	}
}

// What comes behind wrong guesses is right again, at every split point of the
// stream and with every kind of surprise.
func TestGuessSplits(t *testing.T) {
	surprises := map[string]func(r *rxRig, k []readTask) []byte{
		"none":    func(r *rxRig, k []readTask) []byte { return r.answer(&k[0], 1<<16, false) },
		"swapped": func(r *rxRig, k []readTask) []byte { return r.answer(&k[2], 1<<16, true) },
		"send":    func(r *rxRig, k []readTask) []byte { return r.send(fill(333, 1), 0) },
		"long send": func(r *rxRig, k []readTask) []byte {
			return r.send(fill(5000, 1), 0)
		},
		"short": func(r *rxRig, k []readTask) []byte {
			k[0].data = append(k[0].data[:1000:1000], make([]byte, 4096-1000)...)
			b := r.message(wire.Write, k[0].stag, k[0].base, k[0].data[:1000], 4096)
			b = append(b, r.send(nil, 0)...)
			// Nothing may be left of the guess behind the end, or the test could not say what is right.
			return append(b, r.message(wire.Write, k[0].stag, k[0].base+1000, k[0].data[1000:], 4096)...)
		},
		"segments": func(r *rxRig, k []readTask) []byte { return r.answer(&k[0], 1024, false) },
		"backwards": func(r *rxRig, k []readTask) []byte {
			b := r.message(wire.Write, k[0].stag, k[0].base+2048, k[0].data[2048:], 4096)
			return append(b, r.message(wire.Write, k[0].stag, k[0].base, k[0].data[:2048], 4096)...)
		},
		"overwritten": func(r *rxRig, k []readTask) []byte {
			b := r.message(wire.Write, k[0].stag, k[0].base+8, fill(900, 9), 4096)
			return append(b, r.message(wire.Write, k[0].stag, k[0].base, k[0].data, 4096)...)
		},
		"no send": func(r *rxRig, k []readTask) []byte {
			return r.message(wire.Write, k[0].stag, k[0].base, k[0].data, 1<<16)
		},
	}
	for name, f := range surprises {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, true)
			step, size := 37, 1
			for cut := 0; cut < size; cut += step {
				warm := r.lend(4096, 2, 7)
				for i := range warm {
					r.feed(r.answer(&warm[i], 1<<16, false))
				}
				r.verify(warm)
				r.qp.rx.in.pattern.pause, r.qp.rx.in.pattern.back = 0, 0
				k := r.lend(4096, 4, uint64(cut))
				b := f(r, k)
				done := map[string]int{"none": 1, "segments": 1, "backwards": 1, "no send": 1, "short": 1, "overwritten": 1}[name]
				rest := slices.Clone(k[done:])
				if name == "swapped" {
					rest = []readTask{k[0], k[1], k[3]}
				}
				for i := range rest {
					b = append(b, r.answer(&rest[i], 1<<16, true)...)
				}
				size = len(b)
				r.feed(b[:cut])
				r.feed(b[cut:])
				r.verify(k)
			}
		})
	}
}

// Read Responses and windows without mem.Scratch are never guessed into, and are
// not copied either, whatever lies between them.
func TestPeekPlaces(t *testing.T) {
	for _, crc := range rigModes {
		for _, n := range []int{4 << 10, 16 << 10, 64 << 10} {
			r := newRig(t, crc)
			rng := rand.New(rand.NewPCG(3, uint64(n)))
			sends := uint64(0)
			for round := range 12 {
				var sinks, want [][]byte
				var ops []*verbs.WQE
				var b []byte
				for i := range 32 {
					mem, data := make([]byte, n), fill(n, uint64(i))
					e, stag, base := r.read(mem)
					sinks, want, ops = append(sinks, mem), append(want, data), append(ops, e)
					for range rng.IntN(3) {
						b = append(b, r.send(make([]byte, 80), 0)...)
						sends++
					}
					b = append(b, r.message(wire.ReadResponse, stag, base, data, 60<<10)...)
				}
				for len(b) > 0 {
					k := min(len(b), 1+rng.IntN(3*n))
					r.feed(b[:k])
					b = b[k:]
					r.poll()
					r.post(64)
				}
				for i := range sinks {
					if !ops[i].Done || ops[i].Status != verbs.StatusSuccess || !bytes.Equal(sinks[i], want[i]) {
						t.Fatalf("round %d: Read %d is wrong: done %v, %v", round, i, ops[i].Done, ops[i].Status)
					}
				}
			}
			if s := &r.qp.rx.stats; s.Copied != 80*sends || s.Direct != uint64(12*32*n) {
				t.Errorf("crc %v, %d bytes: %d placed directly, %d copied, of these %d of Sends", crc, n, s.Direct, s.Copied, 80*sends)
			}
		}
	}
}

// The short last FPDU of a Read Response, what follows, and the long first one of
// the next are read in one call.
func TestPeekPastShortRest(t *testing.T) {
	const n = 4
	for _, crc := range rigModes {
		r := newRig(t, crc)
		if err := r.peer.(*net.UnixConn).SetWriteBuffer(1 << 20); err != nil { // it gets what the system allows
			t.Fatal(err)
		}
		var b []byte
		var mems, want [][]byte
		for i := range n + 1 {
			mem, data := make([]byte, 64<<10), fill(64<<10, uint64(i))
			_, stag, base := r.read(mem)
			if i == n {
				break // one more is expected
			}
			mems, want = append(mems, mem), append(want, data)
			b = append(b, r.message(wire.ReadResponse, stag, base, data, 60<<10)...)
			b = append(b, r.send(make([]byte, 80), 0)...)
		}
		_ = r.peer.SetWriteDeadline(time.Now().Add(time.Second))
		if k, err := r.peer.Write(b); err != nil {
			t.Skipf("the socket takes %d of %d bytes at once", k, len(b))
		}
		if r.qp.rx.Ready() {
			t.Fatal(r.qp.rx.err)
		}
		for i := range mems {
			if !bytes.Equal(mems[i], want[i]) {
				t.Fatalf("crc %v: Read %d is wrong", crc, i)
			}
		}
		s := &r.qp.rx.stats
		if got := len(r.poll()); got != n || s.Copied != n*80 {
			t.Errorf("crc %v: %d Sends, %d bytes copied", crc, got, s.Copied)
		}
		// Two for each Read, two for its last rest, and one that finds the socket empty.
		if s.RecvCalls > 2*n+3 {
			t.Errorf("crc %v: %d calls for %d Reads", crc, s.RecvCalls, n)
		}
	}
}

// What has come together is taken together, also when few Reads are outstanding or
// none is any more: a look, a read, and one that finds the socket empty.
func TestPeekTakesAll(t *testing.T) {
	for _, reads := range []int{0, 1, 2} {
		r := newRig(t, true)
		_, stag, base := r.read(make([]byte, 4096))
		r.feed(r.message(wire.ReadResponse, stag, base, fill(4096, 1), 1<<16))
		before := r.qp.rx.stats.RecvCalls
		var b []byte
		for i := range 30 {
			if i < reads {
				_, stag, base := r.read(make([]byte, 4096))
				b = append(b, r.message(wire.ReadResponse, stag, base, fill(4096, 2), 1<<16)...)
			}
			b = append(b, r.send(make([]byte, 80), 0)...)
		}
		r.feed(b)
		if got := len(r.poll()); got != 30 || r.over {
			t.Fatalf("%d Reads: %d Sends have arrived: %v", reads, got, r.qp.rx.err)
		}
		if calls := r.qp.rx.stats.RecvCalls - before; calls > 3 {
			t.Errorf("%d Reads and 30 Sends took %d calls", reads, calls)
		}
	}
}

// A damaged byte anywhere is found, and no Send behind it is completed.
func TestCutsBitFlip(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for i := range 150 {
		r := newRig(t, true)
		warm := r.lend(4096, 2, 7)
		for i := range warm {
			r.feed(r.answer(&warm[i], 1<<16, false))
		}
		r.verify(warm)
		if i%2 == 0 {
			r.qp.rx.in.pattern.pause = 1000 // peek
		}
		k := r.lend(4096, 8, uint64(i))
		var b []byte
		var ends []int
		for j := range k {
			b = append(b, r.answer(&k[j], 1<<16, false)...)
			ends = append(ends, len(b))
		}
		at := rng.IntN(len(b))
		b[at] ^= 1 << rng.IntN(8)
		r.feed(b)
		whole := 0
		for whole < len(ends) && ends[whole] <= at {
			whole++
		}
		if got := len(r.poll()); got != whole {
			t.Fatalf("byte %d damaged: %d Sends completed, want %d", at, got, whole)
		}
		for j := range k[:whole] {
			if !bytes.Equal(k[j].mem, k[j].data) {
				t.Fatalf("byte %d damaged: window %d is wrong", at, j)
			}
		}
		// A damaged length may say that more is to come.
		if x := &r.qp.rx; !r.over && x.stage == rxHeader && x.in.r == x.in.w {
			t.Fatalf("byte %d damaged: nothing noticed", at)
		}
	}
}

// FuzzCuts feeds streams of RDMA Writes, Read Responses and Sends in any order and
// in any pieces, and compares all memory with what was sent.
func FuzzCuts(f *testing.F) {
	for i := range 12 {
		f.Add(fill(30*i, uint64(i)), i%2 == 0)
	}
	f.Add(bytes.Repeat([]byte{0}, 300), true)
	f.Add(bytes.Repeat([]byte{0, 9, 0, 200}, 100), true)
	f.Fuzz(func(t *testing.T, src []byte, crc bool) {
		if len(src) > 400 {
			t.Skip()
		}
		r := newRig(t, crc)
		at := 0
		draw := func(n int) int {
			if at >= len(src) {
				return 0
			}
			at++
			return int(src[at-1]) % n
		}
		want := uint64(0)
		for round := uint64(0); at < len(src); round++ {
			size := []int{4096, 4096, 4096, 8192, 5000, 61440, 65536}[draw(7)]
			seg := []int{61440, 61440, 4096, 8192, 1400}[draw(5)]
			tasks := r.lend(size, 1+draw(12), round)
			order := make([]int, len(tasks))
			for i := range order {
				order[i] = i
			}
			if mix := draw(4); mix > 1 {
				for range mix {
					i, j := draw(len(order)), draw(len(order))
					order[i], order[j] = order[j], order[i]
				}
			}
			var sinks, sunk, sent [][]byte
			var b []byte
			for _, i := range order {
				switch draw(8) {
				case 1:
					p := fill(draw(200), 1)
					sent = append(sent, p)
					b = append(b, r.send(p, 0)...)
				case 2:
					p := fill(4000+draw(200), 2)
					sent = append(sent, p)
					b = append(b, r.send(p, 0)...)
				case 3:
					mem, data := make([]byte, size), fill(size, uint64(at))
					_, stag, base := r.read(mem)
					sinks, sunk = append(sinks, mem), append(sunk, data)
					b = append(b, r.message(wire.ReadResponse, stag, base, data, seg)...)
					want += uint64(size)
				case 4:
					k := &tasks[i]
					first := fill(16*draw(256), 3) // to be overwritten by what follows
					b = append(b, r.message(wire.Write, k.stag, k.base, first, seg)...)
					want += uint64(len(first))
				}
				b = append(b, r.answer(&tasks[i], seg, draw(2) == 0)...)
				want += uint64(size)
				sent = append(sent, make([]byte, answerLen))
			}
			var got [][]byte
			for len(b) > 0 {
				n := len(b)
				switch draw(4) {
				case 1:
					n = 1 + draw(64)
				case 2:
					n = 1 + 16*draw(256)
				case 3:
					n = 1 + 600*draw(256)
				}
				n = min(n, len(b))
				r.feed(b[:n])
				b = b[n:]
				got = append(got, r.poll()...)
				r.post(64)
				if r.over {
					t.Fatalf("the connection has ended: %v, %v", r.qp.rx.err, r.qp.Err)
				}
			}
			if !slices.EqualFunc(got, sent, bytes.Equal) {
				t.Fatalf("%d Sends have arrived, not the %d that were sent", len(got), len(sent))
			}
			for i := range sinks {
				if !bytes.Equal(sinks[i], sunk[i]) {
					t.Fatalf("Read %d is wrong", i)
				}
			}
			r.verify(tasks)
			for _, p := range sent {
				want += uint64(len(p))
			}
			if s := &r.qp.rx.stats; s.Direct+s.Copied != want || s.Payload != want {
				t.Fatalf("%d bytes placed directly and %d copied of %d, %d received", s.Direct, s.Copied, want, s.Payload)
			}
			if n, sinks, bytes := r.qp.lent.lent(); n != 0 || bytes != 0 || sinks != 0 || r.qp.lent.head != nil || r.qp.lent.tail != nil {
				t.Fatalf("memory is counted as lent that is not")
			}
		}
	})
}

// A message goes on from its first byte to the end of its last FPDU, at which a new one may begin.
func TestWithinMessage(t *testing.T) {
	r := newRig(t, true)
	if r.qp.rx.Within() {
		t.Error("a message before the first byte")
	}
	k := r.lend(9000, 1, 1)
	b := r.answer(&k[0], 3000, false)
	part := len(r.tagged(wire.Write, 0, 0, false, make([]byte, 3000)))
	for at, within := range map[int]bool{1: true, part / 2: true, part: true, part + 1: true, 2 * part: true, 3 * part: false, 3*part + 1: true, len(b): false} {
		x := newRig(t, true)
		k := x.lend(9000, 1, 1)
		x.post(1)
		if x.feed(x.answer(&k[0], 3000, false)[:at]); x.qp.rx.Within() != within {
			t.Errorf("after %d of %d bytes: within a message %v", at, len(b), !within)
		}
	}
}
