package iwarp

import (
	"encoding/binary"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"softiser/internal/faultmap"
	"softiser/internal/resident"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Read Responses and the send queue take turns, message by message, in one round as well.
func TestTurnsOfARound(t *testing.T) {
	r := newRig(t, true)
	qp, tx := r.qp, &r.qp.tx
	w, stag, base := r.window(fill(4096, 3), mem.RemoteRead)
	defer w.close()
	tx.allowed = true
	qp.asked.openLocked(4)
	for range 3 {
		qp.asked.putLocked(irqEntry{size: 100, sinkSTag: 1, srcSTag: stag, srcTO: base})
	}
	src := fill(100, 4)
	qp.Mu.Lock()
	for i := range 6 {
		e, err := qp.PostLocked(uint64(i), verbs.OpWrite)
		if err != nil {
			t.Fatal(err)
		}
		e.Flags, e.Remote = verbs.FlagSignaled, verbs.RemoteAddr{STag: 9}
		e.Add(src, mem.LocalKey)
	}
	qp.Mu.Unlock()

	tx.io.Lock()
	defer tx.io.Unlock()
	tx.buildRound()
	if tx.reason != nil {
		t.Fatal(tx.reason)
	}
	var b []byte
	for _, v := range tx.round.iov {
		b = append(b, unsafe.Slice(v.Base, v.Len)...)
	}
	tx.round.taken(tx.round.bytes)
	var got []wire.Opcode
	for len(b) > 0 {
		got = append(got, wire.Control(binary.BigEndian.Uint16(b[wire.LenField:])).Op())
		b = b[wire.FPDULen(int(binary.BigEndian.Uint16(b))):]
	}
	const resp, write = wire.ReadResponse, wire.Write
	if want := []wire.Opcode{resp, write, resp, write, resp, write, write, write, write}; !slices.Equal(got, want) {
		t.Errorf("messages of the round: %v, want %v", got, want)
	}
}

// A round is as much as stays in the cache between the pass over it, which is the CRC's or only
// for that, and the kernel's copy; more where there is none: where the kernel does not copy, which
// is never of what the peer reads, and of what has been sent lately.
func TestRoundsFitTheCache(t *testing.T) {
	for _, c := range []struct {
		name                       string
		crc, byRef, copies, answer bool
		first, again               int
	}{
		{name: "with CRC", crc: true, first: roundRead, again: roundRead},
		{name: "without", first: roundRead, again: roundBytes},
		{name: "by reference", byRef: true, first: roundBytes, again: roundBytes},
		{name: "by reference, which the kernel has copied", byRef: true, copies: true, first: roundRead, again: roundBytes},
		{name: "an answer", byRef: true, answer: true, first: roundRead, again: roundBytes},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.crc)
			qp, tx := r.qp, &r.qp.tx
			tx.allowed = true
			qp.zc.used, qp.zc.off = c.byRef, c.copies
			data := fill(2*roundBytes, 1) // in memory
			w, stag, base := r.window(data, mem.RemoteRead)
			defer w.close()
			for _, want := range []int{c.first, c.again} {
				qp.Mu.Lock()
				if c.answer {
					qp.asked.putLocked(irqEntry{size: uint32(len(data)), sinkSTag: 1, srcSTag: stag, srcTO: base})
				} else {
					e, err := qp.PostLocked(0, verbs.OpWrite)
					if err != nil {
						t.Fatal(err)
					}
					e.Remote, e.Length = verbs.RemoteAddr{STag: 9}, uint32(len(data))
					e.Add(data, mem.LocalKey)
				}
				qp.Mu.Unlock()
				tx.io.Lock()
				for first := true; first || tx.cur.active; first = false {
					tx.buildRound()
					if tx.reason != nil {
						t.Fatal(tx.reason)
					}
					if n := tx.round.bytes; first && (n < want || n >= want+64<<10) {
						t.Errorf("a round of %d bytes, want one that ends with the FPDU that reaches %d", n, want)
					}
					if want := !c.byRef || c.copies || c.answer && want == roundRead; tx.round.soon != want {
						t.Errorf("sending it cannot wait for a disk: %v, want %v", tx.round.soon, want)
					}
					tx.round.taken(tx.round.bytes)
				}
				tx.io.Unlock()
			}
		})
	}
}

// Memory that cannot be read ends the message in front of the FPDU that it belongs to, with and
// without CRC: no header goes out whose payload does not follow.
func TestRoundOfMemoryThatIsGone(t *testing.T) {
	const size, good = 256 << 10, 128 << 10
	data := faultmap.Untouched(t, size)
	clear(data) // it is in memory
	if err := unix.Mprotect(data[good:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	for _, crc := range rigModes {
		r := newRig(t, crc)
		qp, tx := r.qp, &r.qp.tx
		tx.allowed = true
		w := newWindow(t, qp, true)
		defer w.close()
		key, _ := w.r.Open(nil, [][]byte{data}, 0)
		qp.Mu.Lock()
		e, err := qp.PostLocked(0, verbs.OpWrite)
		if err != nil {
			t.Fatal(err)
		}
		e.Remote, e.Length = verbs.RemoteAddr{STag: 9}, size
		e.Add(data, key)
		qp.Mu.Unlock()
		tx.io.Lock()
		tx.buildRound()
		if tx.reason != errTouch {
			t.Errorf("CRC %v: the round ends by %v", crc, tx.reason)
		}
		if tx.keys.mem != nil {
			t.Errorf("CRC %v: the memory of a key is kept beyond the round", crc)
		}
		n := 0
		for _, v := range tx.round.iov {
			n += int(v.Len)
		}
		fpdu := wire.FPDULen(wire.TaggedLen + tx.form.maxTagged)
		if want := good / tx.form.maxTagged * fpdu; n != want || n != tx.round.bytes {
			t.Errorf("CRC %v: %d bytes are to go, of %d built, want %d: the FPDUs that can be read", crc, n, tx.round.bytes, want)
		}
		tx.round.taken(tx.round.bytes)
		tx.io.Unlock()
	}
}

// Without CRC nothing is touched that is not in memory, which might wait for a disk in Go code: the
// kernel is left to read it, in a call that the scheduler is told of. A volume in memory is not
// asked for.
func TestRoundLoadsOnlyWhatIsInMemory(t *testing.T) {
	const size = 128 << 10
	for _, c := range []struct {
		name                string
		touched, known      bool
		soon, inMemoryAfter bool
	}{
		{name: "not in memory"},
		{name: "in memory", touched: true, soon: true, inMemoryAfter: true},
		{name: "a volume in memory", known: true, soon: true, inMemoryAfter: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := faultmap.Untouched(t, size)
			if c.touched {
				clear(data)
			}
			if c.known {
				defer resident.Add(data)()
			}
			r := newRig(t, false)
			qp, tx := r.qp, &r.qp.tx
			tx.allowed = true
			qp.Mu.Lock()
			e, err := qp.PostLocked(0, verbs.OpWrite)
			if err != nil {
				t.Fatal(err)
			}
			e.Remote, e.Length = verbs.RemoteAddr{STag: 9}, size
			e.Add(data, mem.LocalKey)
			qp.Mu.Unlock()
			tx.io.Lock()
			defer tx.io.Unlock()
			tx.buildRound()
			if tx.reason != nil || tx.round.bytes < size {
				t.Fatalf("a round of %d bytes: %v", tx.round.bytes, tx.reason)
			}
			if tx.round.soon != c.soon {
				t.Errorf("sending it cannot wait: %v, want %v", tx.round.soon, c.soon)
			}
			if got := resident.InMemory(data); got != c.inMemoryAfter {
				t.Errorf("it is in memory afterwards: %v, want %v", got, c.inMemoryAfter)
			}
			tx.round.taken(tx.round.bytes)
		})
	}
}

// What has been found in memory for a message is asked for again for the next one, and says nothing
// of memory elsewhere.
func TestInMemoryIsAskedForEachMessage(t *testing.T) {
	const size = 128 << 10
	all := faultmap.Untouched(t, 3*size)
	first, second := all[:size], all[2*size:]
	clear(all)
	r := newRig(t, false)
	qp, tx := r.qp, &r.qp.tx
	tx.allowed = true
	send := func(pieces ...[]byte) {
		qp.Mu.Lock()
		e, err := qp.PostLocked(0, verbs.OpWrite)
		if err != nil {
			t.Fatal(err)
		}
		e.Remote = verbs.RemoteAddr{STag: 9}
		for _, p := range pieces {
			e.Length += uint32(len(p))
			e.Add(p, mem.LocalKey)
		}
		qp.Mu.Unlock()
		tx.io.Lock()
		defer tx.io.Unlock()
		for first := true; first || tx.cur.active; first = false {
			if tx.buildRound(); tx.reason != nil {
				t.Fatal(tx.reason)
			}
			tx.round.taken(tx.round.bytes)
		}
	}
	send(second)
	for i, p := range [][]byte{first, second} {
		if err := unix.Madvise(p, unix.MADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			send(second[len(second)/2:], first)
		} else {
			send(second[len(second)/2+4:]) // part of what the message before asked for, but not sent lately from there
		}
		if resident.InMemory(p[len(p)-1:]) {
			t.Errorf("memory %d was touched though it was not in memory", i)
		}
	}
}

// A key may name other memory in the middle of a round: it has been given back and used again.
func TestKeyUsedAgainInARound(t *testing.T) {
	r := newRig(t, true)
	qp, tx := r.qp, &r.qp.tx
	w := newWindow(t, qp, true)
	defer w.close()
	const key = 7
	var e verbs.WQE
	e.Op = verbs.OpWrite
	for i := range 2 {
		p := fill(100, uint64(i))
		w.r.Revoke()
		lkey, _ := w.r.OpenKey(nil, [][]byte{p}, 0, key)
		e.Segs, e.LKeys = e.Segs[:0], e.LKeys[:0]
		e.Add(p, lkey)
		if !tx.holdsKeys(&e) || tx.reason != nil {
			t.Errorf("memory %d of a key is refused: %v", i, tx.reason)
		}
	}
	e.Segs[0] = fill(100, 9)
	if tx.holdsKeys(&e) || tx.reason != errLKey {
		t.Errorf("memory that is not the key's is sent: %v", tx.reason)
	}
	tx.reason = nil
	tx.keys.forget()
}

// A request that is posted when the memory of its key has been given back is refused, in the
// round under way as well, in which the key was still good for an earlier one.
func TestKeyGivenBackInARound(t *testing.T) {
	r := newRig(t, true)
	qp, tx := r.qp, &r.qp.tx
	tx.allowed = true
	w := newWindow(t, qp, true)
	defer w.close()
	data := fill(100, 1)
	key, _ := w.r.Open(nil, [][]byte{data}, 0)
	post := func() {
		qp.Mu.Lock()
		defer qp.Mu.Unlock()
		e, err := qp.PostLocked(0, verbs.OpWrite)
		if err != nil {
			t.Fatal(err)
		}
		e.Remote, e.Length = verbs.RemoteAddr{STag: 9}, uint32(len(data))
		e.Add(data, key)
	}
	tx.io.Lock()
	defer tx.io.Unlock()
	tx.round.enter()
	post()
	post()
	if !tx.next() || !tx.segment() || !tx.follow() || !tx.segment() || tx.ahead.built != 2 {
		t.Fatalf("%d of two requests are built: %v", tx.ahead.built, tx.reason)
	}
	w.r.Revoke()
	post()
	if tx.follow() || tx.next() || tx.reason != errLKey {
		t.Errorf("a request under a key that had been given back ends by %v", tx.reason)
	}
	tx.reason = nil
	tx.round.iov = tx.round.vec
	tx.round.taken(tx.round.bytes)
}

// A Read Response has no short last segment where the others can take it, and no more segments than that
// needs. Writes are cut into whole pages.
func TestNoShortLastSegment(t *testing.T) {
	const pages = 60 << 10
	for _, c := range []struct {
		name   string
		answer bool
		size   int
		limit  int // of the FPDU
		want   []int
	}{
		{name: "a page is left", answer: true, size: 1 << 20, want: append(slices.Repeat([]int{61696}, 16), 61440)},
		{name: "of a Write", size: 1 << 20, want: append(slices.Repeat([]int{pages}, 17), 4096)},
		{name: "one block is left", answer: true, size: pages + 512, want: []int{pages + 512}},
		{name: "it fits nowhere", answer: true, size: 64 << 10, want: []int{pages, 4096}},
		{name: "two would have to be too long", answer: true, size: 128 << 10, want: []int{pages, pages, 8192}},
		{name: "much is left", answer: true, size: 256 << 10, want: append(slices.Repeat([]int{pages}, 4), 16384)},
		{name: "nothing is left", answer: true, size: 2 * pages, want: []int{pages, pages}},
		{name: "short FPDUs", answer: true, size: 4096, limit: 1448, want: []int{1428, 1428, 1240}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, false)
			qp, tx := r.qp, &r.qp.tx
			tx.init(false, fpduSize(0, true, c.limit))
			tx.allowed = true
			data := fill(c.size, 1)
			w, stag, base := r.window(data, mem.RemoteRead)
			defer w.close()
			qp.Mu.Lock()
			if c.answer {
				qp.asked.putLocked(irqEntry{size: uint32(c.size), sinkSTag: 1, srcSTag: stag, srcTO: base})
			} else {
				e, err := qp.PostLocked(0, verbs.OpWrite)
				if err != nil {
					t.Fatal(err)
				}
				e.Remote, e.Length = verbs.RemoteAddr{STag: 9}, uint32(c.size)
				e.Add(data, mem.LocalKey)
			}
			qp.Mu.Unlock()
			tx.io.Lock()
			defer tx.io.Unlock()
			var got []int
			var came []byte
			for first := true; first || tx.cur.active; first = false {
				tx.buildRound()
				if tx.reason != nil {
					t.Fatal(tx.reason)
				}
				var b []byte
				for _, v := range tx.round.iov {
					b = append(b, unsafe.Slice(v.Base, v.Len)...)
				}
				tx.round.taken(tx.round.bytes)
				for len(b) > 0 {
					ulen := int(binary.BigEndian.Uint16(b))
					var h wire.Tagged
					h.Parse(b[wire.LenField:])
					if h.TO != uint64(len(came)) {
						t.Fatalf("segment %d is for %d, want %d", len(got), h.TO, len(came))
					}
					got = append(got, ulen-wire.TaggedLen)
					came = append(came, b[wire.LenField+wire.TaggedLen:][:ulen-wire.TaggedLen]...)
					b = b[wire.FPDULen(ulen):]
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("segments of %v bytes, want %v", got, c.want)
			}
			if !slices.Equal(came, data) {
				t.Error("they do not carry the memory that was asked for")
			}
		})
	}
}
