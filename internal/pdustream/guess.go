package pdustream

import (
	"unsafe"

	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// Guess is how the side that asks for data takes that of many short reads by one system
// call, each straight to its buffer: the call is aimed at what is most likely to come, which
// is the data of the reads in the order in which they were sent.
//
//	... rest of the PDU under way │ header │ data of read 1 │ header │ data of read 2 │ ... │ read-ahead
//
// What has come is believed only as far as its headers say that it is where it belongs.
// From the first that says something else, everything is moved to the read-ahead. Then the
// memory is let go of, and only then the headers are parsed, like any others: what they lead
// to may take away the memory of any read. The buffers that were written to by mistake
// belong to reads that were outstanding, which this peer may write to, and whose data was
// yet to come. A peer that answers in another order is not guessed at for a while.
//
// It belongs to the receive goroutine.
type Guess struct {
	r     *Receiver
	g     Guesser // nil: nothing is guessed
	hlen  int     // Guesser.HeaderLen
	list  []Guessed
	size  int  // bytes that the list covers; as far into the read-ahead lies what comes behind
	most  int  // guesses to make, by how many came true of late
	score int  // not negative: guesses are right
	apart bool // each read is followed by an answer of its own
}

// Guessed is a PDU with data that is expected, with what follows it.
type Guessed struct {
	Owner  any    // whose data it is, as Receiver.Aim is told
	Offset uint32 // of the data, in all that the owner reads, bytes
	Data   []byte // where it goes

	head   [maxHeader]byte
	answer [maxHeader]byte
	apart  bool // answer is expected
}

// Guesser is what a protocol knows of the PDUs that are to come. The receive goroutine
// calls it.
type Guesser interface {
	// HeaderLen is the length of the headers of PDUs with data, and of answers, bytes.
	HeaderLen() int
	// Choose calls g.Expect for the data that is to come, in its order, until g is full, and
	// keeps the memory where it is until Settle. more: what is behind that may be read ahead
	// as far as there is room; else no more than a header is.
	Choose(g *Guess) (more bool)
	// Right reports whether a header announces the data of e, all of it and nothing else.
	Right(e *Guessed, header []byte) bool
	// Apart reports whether an answer follows a header that is right.
	Apart(header []byte) bool
	// Answer reports whether a header is the whole of an answer.
	Answer(header []byte) bool
	// Settle lets go of the memory of what was chosen.
	Settle(g *Guess)
}

// MaxGuess is how long the data of a read is at most that is guessed, bytes; longer data
// has system calls of its own.
const MaxGuess = 32 << 10

const (
	maxHeader  = 48 // of Guesser.HeaderLen
	maxGuesses = 64
	maxPieces  = sockio.MaxVec - 3*maxGuesses - 1 // of the PDU under way, in the same call
	guessAhead = 144 << 10                        // bytes that a list covers at most
	goodGuess  = 1
	badGuess   = 8
	bestScore  = 32
	worstScore = -64
)

func (g *Guess) init(p Guesser) { g.g, g.hlen, g.score, g.most = p, p.HeaderLen(), bestScore, 1 }

// Apart reports whether reads have been answered lately by a PDU behind the one with
// their data.
func (g *Guess) Apart() bool { return g.apart }

// Full reports whether as much is expected as is worth it.
func (g *Guess) Full() bool { return len(g.list) >= g.most }

// Expect adds data to what is expected; false: it cannot be guessed at behind what is there.
// owner and off are its Guessed's.
func (g *Guess) Expect(owner any, off uint32, data []byte) bool {
	r := g.r
	n := g.hlen + len(data)
	if g.apart {
		n += g.hlen
	}
	if len(data) > MaxGuess || g.size+n > guessAhead || g.overlaps(data) {
		return false
	}
	if len(r.buf) < guessAhead+ReadAhead {
		r.buf = make([]byte, guessAhead+ReadAhead)
		r.r, r.w = 0, 0
	}
	if len(g.list) == cap(g.list) {
		g.list = append(g.list, Guessed{})
	} else {
		g.list = g.list[:len(g.list)+1]
	}
	e := &g.list[len(g.list)-1]
	e.Owner, e.Offset, e.Data, e.apart = owner, off, data, g.apart
	g.size += n
	return true
}

// overlaps reports whether somebody reads to the same memory twice: then what is there
// by mistake could not be moved.
func (g *Guess) overlaps(b []byte) bool {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for i := range g.list {
		p := uintptr(unsafe.Pointer(unsafe.SliceData(g.list[i].Data)))
		if lo < p+uintptr(len(g.list[i].Data)) && p < lo+uintptr(len(b)) {
			return true
		}
	}
	return false
}

// Owners calls f for the owner of each piece of data that is expected.
func (g *Guess) Owners(f func(owner any)) {
	for i := range g.list {
		f(g.list[i].Owner)
	}
}

// foresee appends where the PDUs go that are expected behind the one under way, whose data
// v covers. false: there is nothing to expect, and v is as it was.
func (g *Guess) foresee(v []sockio.Vec) ([]sockio.Vec, bool) {
	r := g.r
	switch {
	case g.g == nil || r.r != r.w:
		return v, false
	case r.phase != atStart && (r.phase != inData || r.tail > 0 || len(v) > maxPieces):
		return v, false
	case g.score < 0:
		g.score++
		return v, false
	}
	g.list, g.size = g.list[:0], 0
	behind := g.hlen
	if g.g.Choose(g) {
		behind = ReadAhead
	}
	if len(g.list) == 0 {
		return v, false
	}
	for i := range g.list {
		e := &g.list[i]
		v = sockio.Append(v, e.head[:g.hlen])
		v = sockio.Append(v, e.Data)
		if e.apart {
			v = sockio.Append(v, e.answer[:g.hlen])
		}
	}
	return sockio.Append(v, r.buf[g.size:g.size+behind]), true
}

// settle lets go of the memory that a call was aimed at.
func (g *Guess) settle() { g.g.Settle(g) }

// suspend stops guessing for a while.
func (g *Guess) suspend() { g.score = worstScore }

// foreseen handles n bytes that have come behind the PDU that was under way, which is
// complete if there are any.
func (g *Guess) foreseen(n int) error {
	r := g.r
	right, answers, lo, hi := g.sort(n)
	g.settle()
	early := r.early
	r.early = sockio.Early{}          // of the list, not of the pieces that are parsed
	if err := r.parse(); err != nil { // the end of the PDU that was under way
		return err
	}
	for i := range right {
		e := &g.list[i]
		if err := g.parse(e.head[:g.hlen]); err != nil {
			return err
		}
		n -= g.hlen
		if r.dst.Len() > 0 && (r.owner != e.Owner || unsafe.SliceData(r.dst.Next()) != unsafe.SliceData(e.Data)) {
			return errAnew
		}
		k := min(n, len(e.Data))
		n -= k
		r.took(k)
		if r.left > 0 {
			break
		}
		if err := r.parse(); err != nil {
			return err
		}
		if i < answers {
			if err := g.parse(e.answer[:g.hlen]); err != nil {
				return err
			}
			n -= g.hlen
		}
		if early.Over(i+1, i+1, right) {
			r.p.Batch()
		}
	}
	r.r, r.w = lo, hi
	return nil
}

// parse handles a header of the list as if it had been read ahead.
func (g *Guess) parse(b []byte) error {
	r := g.r
	r.r, r.w = 0, copy(r.buf, b)
	return r.parse()
}

// sort finds out how much of n bytes is as it was expected: how many of the PDUs with data,
// and how many of them with their answer, as far as they have come. What is not lies at
// r.buf[lo:hi] afterwards.
func (g *Guess) sort(n int) (right, answers, lo, hi int) {
	all := n
	for i := range g.list {
		e := &g.list[i]
		if n == 0 {
			g.most = max(2*i, 1)
			return right, answers, 0, 0
		}
		if n < g.hlen || !g.g.Right(e, e.head[:g.hlen]) {
			lo, hi = g.move(i, 0, n)
			g.wrong(n)
			return right, answers, lo, hi
		}
		n -= g.hlen
		right++
		if n < len(e.Data) {
			return right, answers, 0, 0
		}
		n -= len(e.Data)
		g.score = min(g.score+goodGuess, bestScore)
		g.apart = g.g.Apart(e.head[:g.hlen])
		if !e.apart || n == 0 {
			continue
		}
		if n < g.hlen || !g.g.Answer(e.answer[:g.hlen]) {
			lo, hi = g.move(i, g.hlen+len(e.Data), n)
			g.wrong(n)
			return right, answers, lo, hi
		}
		n -= g.hlen
		answers++
	}
	g.most = min(2*g.most, maxGuesses)
	if all > g.size {
		lo, hi = g.size, all
	}
	return right, answers, lo, hi
}

// wrong notes that what came was something else, if n bytes are enough to say so.
func (g *Guess) wrong(n int) {
	if n >= g.hlen {
		g.score = max(g.score-badGuess, worstScore)
	}
}

// move moves n bytes to the read-ahead, which begin skip bytes into what was expected at
// i, and returns where they are. What lies there already, behind the list, stays.
func (g *Guess) move(i, skip, n int) (lo, hi int) {
	at := skip
	for j := range i {
		at += g.list[j].size(g.hlen)
	}
	lo, hi = at, at+n
	end := min(hi, g.size)
	put := func(b []byte) {
		if skip >= len(b) {
			skip -= len(b)
			return
		}
		b = b[skip:]
		skip = 0
		if at < end {
			b = b[:min(len(b), end-at)]
			segs.Copy(g.r.buf[at:], b) // of memory that has gone nothing is left to be believed
			at += len(b)
		}
	}
	for ; i < len(g.list) && at < end; i++ {
		e := &g.list[i]
		put(e.head[:g.hlen])
		put(e.Data)
		if e.apart {
			put(e.answer[:g.hlen])
		}
	}
	return lo, hi
}

func (e *Guessed) size(hlen int) int {
	n := hlen + len(e.Data)
	if e.apart {
		n += hlen
	}
	return n
}
