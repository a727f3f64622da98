package pdustream_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"testing"

	"softiser/internal/await"
	"softiser/internal/leaktest"
	"softiser/internal/loopback"
	. "softiser/internal/pdustream"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// A protocol for the tests. A header is 8 bytes, of which Begin looks at 4:
//
//	kind 1 │ flags 1 │ id 2 │ length of the data 4
//
// and the digest is behind the data and padding to a multiple of 4.
const (
	headerLen = 8
	kindData  = 'D' // data of read id
	kindEnd   = 'E' // read id has ended
	endsRead  = 1   // flag of data: no kindEnd follows
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func frame(kind, flags byte, id uint16, data []byte, digest bool) []byte {
	b := []byte{kind, flags, 0, 0}
	binary.BigEndian.PutUint16(b[2:], id)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(data))), data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	if digest && len(data) > 0 {
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[headerLen:], castagnoli))
	}
	return b
}

// read is a read of one piece of data, in order of id.
type read struct {
	mem  [][]byte
	came bool
	over bool
}

// party is who receives.
type party struct {
	Receiver
	t      *testing.T
	sk     *sockio.Conn
	reads  []*read // by id
	digest bool
	ahead  int // what Ahead returns; 0: everything

	id      uint16
	header  []byte
	claimed bool
	aimed   bool // between Choose and Settle
	guessed int  // PDUs of kindData that Right has agreed to
	corrupt int
	wrong   error // what Wrong returns instead of its error
	batches []int // PDUs of each
	batched int   // the sum of them
}

func newParty(t *testing.T, nc net.Conn) *party {
	t.Helper()
	sk, err := sockio.New(nc, sockio.Options{BusyPoll: sockio.BusyPollOff})
	if err != nil {
		t.Fatal(err)
	}
	p := &party{t: t, sk: sk}
	p.Init(sk, p, 4, 4, ReadAhead)
	t.Cleanup(func() { sk.Close() })
	return p
}

func (p *party) Begin(b []byte) (int, error) {
	if k := b[0]; k != kindData && k != kindEnd {
		return 0, errors.New("no such kind")
	}
	return headerLen, nil
}

func (p *party) Header(b []byte) error {
	if p.aimed {
		p.t.Error("a header is parsed while memory is aimed at")
	}
	p.header = bytes.Clone(b)
	p.id = binary.BigEndian.Uint16(b[2:])
	n := int(binary.BigEndian.Uint32(b[4:]))
	tail := -n & 3
	if p.digest && n > 0 {
		tail += 4
	}
	p.Body(n, tail)
	if int(p.id) >= len(p.reads) {
		return nil // its data is dropped
	}
	if r := p.reads[p.id]; n > 0 {
		if n != segs.Total(r.mem) {
			return errors.New("data of another length")
		}
		p.Aim(segs.Of(r.mem, 0, n), r)
	}
	return nil
}

func (p *party) End(tail []byte) error {
	if p.digest && len(tail) > 0 && !p.Intact(tail) {
		p.corrupt++
	}
	if int(p.id) >= len(p.reads) {
		return nil
	}
	r := p.reads[p.id]
	r.came = r.came || p.header[0] == kindData
	r.over = p.header[0] == kindEnd || p.header[1]&endsRead != 0
	return nil
}

func (p *party) Claim() bool {
	if p.claimed {
		p.t.Error("memory is claimed twice")
	}
	p.claimed = true
	return true
}

func (p *party) Release() { p.claimed = false }
func (p *party) Fault()   { p.t.Error("a fault") }

func (p *party) Batch() {
	n := int(p.PDUs.Load())
	p.batches = append(p.batches, n-p.batched)
	p.batched = n
}

func (p *party) Ahead() (int, error) {
	if p.ahead != 0 {
		return p.NextHeader(p.ahead), nil
	}
	return Everything, nil
}

func (p *party) Wrong(err error) error {
	if p.wrong != nil {
		return p.wrong
	}
	return err
}

// HeaderLen and what follows make a party a Guesser.
func (p *party) HeaderLen() int { return headerLen }

func (p *party) Choose(g *Guess) bool {
	for id, r := range p.reads {
		underWay := p.Left() > 0 && id == int(p.id) && p.header[0] == kindData
		switch {
		case g.Full():
			return true
		case r.over || underWay:
		case r.came && g.Apart():
			return false
		case r.came:
		case !g.Expect(r, 0, r.mem[0]):
			return false
		default:
			p.aimed = true
		}
	}
	return true
}

func (p *party) Settle(*Guess) { p.aimed = false }

func (p *party) Right(e *Guessed, header []byte) bool {
	id := binary.BigEndian.Uint16(header[2:])
	if header[0] != kindData || int(id) >= len(p.reads) || p.reads[id] != e.Owner || int(binary.BigEndian.Uint32(header[4:])) != len(e.Data) {
		return false
	}
	p.guessed++
	return true
}

func (p *party) Apart(header []byte) bool  { return header[1]&endsRead == 0 }
func (p *party) Answer(header []byte) bool { return header[0] == kindEnd && header[7] == 0 }

// receive runs p against who sends chunks, each as a segment, and ends the stream.
func (p *party) receive(nc *net.TCPConn, chunks ...[]byte) error {
	p.t.Helper()
	sent := make(chan error, 1)
	go func() {
		for _, b := range chunks {
			if _, err := nc.Write(b); err != nil {
				sent <- err
				return
			}
		}
		sent <- nc.CloseWrite()
	}()
	err := p.Run()
	if e := <-sent; e != nil {
		p.t.Fatal(e)
	}
	return err
}

// inTurn is receive for chunks of whole PDUs, each of which is sent when those before it have
// been parsed: what one call brings is what one chunk has.
func (p *party) inTurn(nc *net.TCPConn, chunks [][][]byte) error {
	p.t.Helper()
	over, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		pdus := uint64(0)
		for _, c := range chunks {
			if !await.Until(func() bool {
				select {
				case <-over:
					return true
				default:
					return p.PDUs.Load() == pdus
				}
			}) {
				p.t.Errorf("%d PDUs of %d were parsed", p.PDUs.Load(), pdus)
			}
			_, _ = nc.Write(bytes.Join(c, nil)) // fails when the stream has ended
			pdus += uint64(len(c))
		}
		_ = nc.CloseWrite()
	}()
	err := p.Run()
	close(over)
	<-sent
	return err
}

func pattern(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seed*31 + i*7 + 1)
	}
	return b
}

// The stream is cut at every byte; what is read is always the same, with digests and
// without, read ahead and header by header.
func TestEverySplit(t *testing.T) {
	for _, digest := range []bool{false, true} {
		for _, ahead := range []int{0, headerLen} {
			data := [][]byte{pattern(1, 40), pattern(2, 7), nil, pattern(4, 64)}
			var all []byte
			for i, d := range data {
				all = append(all, frame(kindData, endsRead, uint16(i), d, digest)...)
			}
			for cut := range all {
				a, b := loopback.Pair(t)
				p := newParty(t, b)
				p.digest, p.ahead = digest, ahead
				for _, d := range data {
					p.reads = append(p.reads, &read{mem: [][]byte{make([]byte, len(d)/3), make([]byte, len(d)-len(d)/3)}})
				}
				if err := p.receive(a, all[:cut], all[cut:]); err != io.EOF {
					t.Fatalf("cut at %d: %v", cut, err)
				}
				for i, r := range p.reads {
					if !r.over || !bytes.Equal(bytes.Join(r.mem, nil), data[i]) {
						t.Fatalf("cut at %d: PDU %d is not what was sent", cut, i)
					}
				}
				if n := p.PDUs.Load(); n != uint64(len(data)) || p.corrupt != 0 || p.claimed {
					t.Fatalf("cut at %d: %d PDUs, %d corrupt", cut, n, p.corrupt)
				}
				a.Close()
			}
		}
	}
}

// Data in more pieces than one call takes, and more data to be dropped than one call does,
// with PDUs behind them.
func TestMoreThanOneCall(t *testing.T) {
	a, b := loopback.Pair(t)
	p := newParty(t, b)
	p.ahead = headerLen
	many := &read{}
	for range 3 * sockio.MaxVec / 2 {
		many.mem = append(many.mem, make([]byte, 8))
	}
	one := &read{mem: [][]byte{make([]byte, 100)}}
	p.reads = []*read{many, one}
	want, last := pattern(1, segs.Total(many.mem)), pattern(2, 100)
	all := frame(kindData, 0, 9, make([]byte, 3<<20), false)
	all = append(all, frame(kindData, 0, 0, want, false)...)
	all = append(all, frame(kindData, 0, 1, last, false)...)
	if err := p.receive(a, all); err != io.EOF {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.Join(many.mem, nil), want) || !bytes.Equal(one.mem[0], last) {
		t.Error("the data is not what was sent")
	}
	a.Close()
}

// Where many PDUs come together a call takes more of them than at first, with headers and
// data that lie across the end of what it took.
func TestReadAheadGrows(t *testing.T) {
	a, b := loopback.Pair(t)
	p := newParty(t, b)
	var all []byte
	for i := range 40 {
		p.reads = append(p.reads, &read{mem: [][]byte{make([]byte, 4096+i)}})
		all = append(all, frame(kindData, endsRead, uint16(i), pattern(i, 4096+i), false)...)
	}
	// The whole of it is there before anything is read.
	for sent := 0; sent < len(all); {
		n, err := a.Write(all[sent:])
		if err != nil {
			t.Fatal(err)
		}
		sent += n
	}
	if err := p.receive(a); err != io.EOF {
		t.Fatal(err)
	}
	for i, r := range p.reads {
		if !r.over || !bytes.Equal(r.mem[0], pattern(i, 4096+i)) {
			t.Fatalf("PDU %d is not what was sent", i)
		}
	}
	if n, most := int(p.Recvs.Load()), len(all)/ReadAhead; n >= most {
		t.Errorf("%d calls for %d bytes", n, len(all))
	}
	a.Close()
}

// A flipped bit of data, padding or digest is noticed.
func TestDigest(t *testing.T) {
	whole := frame(kindData, 0, 0, pattern(1, 13), true)
	for i := headerLen; i < len(whole); i++ {
		a, b := loopback.Pair(t)
		p := newParty(t, b)
		p.digest, p.reads = true, []*read{{mem: [][]byte{make([]byte, 13)}}}
		bad := bytes.Clone(whole)
		bad[i] ^= 1 << (i % 8)
		if err := p.receive(a, bad); err != io.EOF {
			t.Fatal(err)
		}
		if p.corrupt != 1 {
			t.Errorf("a flipped bit of byte %d is not noticed", i)
		}
		a.Close()
	}
}

// How a stream ends that ends within a PDU, and one of which a PDU is wrong.
func TestEnds(t *testing.T) {
	whole := frame(kindData, 0, 0, pattern(1, 13), false)
	errRefused := errors.New("refused")
	for _, tc := range []struct {
		name string
		sent []byte
		want error
	}{
		{"between", whole, io.EOF},
		{"within the header", whole[:5], io.ErrUnexpectedEOF},
		{"within the data", whole[:12], io.ErrUnexpectedEOF},
		{"within the padding", whole[:len(whole)-1], io.ErrUnexpectedEOF},
		{"wrong", append(bytes.Clone(whole), "nonsense"...), errRefused},
	} {
		a, b := loopback.Pair(t)
		p := newParty(t, b)
		p.wrong, p.reads = errRefused, []*read{{mem: [][]byte{make([]byte, 13)}}}
		if err := p.receive(a, tc.sent); !errors.Is(err, tc.want) {
			t.Errorf("%s: the stream ended with %v, want %v", tc.name, err, tc.want)
		}
		a.Close()
	}
}

// Memory that was taken away is not written to, whichever way its data comes, and is not
// looked at for the digest; nor is that of the PDU before, when data belongs to nobody.
func TestTakenAway(t *testing.T) {
	for _, ahead := range []int{0, headerLen} {
		a, b := loopback.Pair(t)
		p := &poor{newParty(t, b)}
		p.Init(p.sk, p, 4, 4, ReadAhead)
		p.digest, p.ahead = true, ahead
		mine, other := make([]byte, 100), make([]byte, 100)
		p.reads = []*read{{mem: [][]byte{mine}}, {mem: [][]byte{other}}}
		var all []byte
		for _, id := range []uint16{0, 99, 1, 0} {
			all = append(all, frame(kindData, endsRead, id, pattern(int(id), 100), true)...)
		}
		if err := p.receive(a, all); err != io.EOF {
			t.Errorf("ended with %v", err)
		}
		if !bytes.Equal(mine, pattern(0, 100)) || !bytes.Equal(other, make([]byte, 100)) || p.corrupt != 0 {
			t.Errorf("ahead %d: %d PDUs are called corrupt, % x", ahead, p.corrupt, other[:4])
		}
		a.Close()
	}
}

// poor is a party whose read 1 has no memory any more.
type poor struct{ *party }

func (p *poor) Claim() bool { return p.id != 1 && p.party.Claim() }

// Reads that are answered in order, with and without an answer apart, in pieces of any
// size, and sometimes in another order: each gets its own data, and no other memory is
// written to.
func TestGuesses(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	guessed := 0
	for round := range 60 {
		a, b := loopback.Pair(t)
		p := newParty(t, b)
		p.Foresee(p)
		const n = 40
		order := make([]int, n)
		slab := make([]byte, 0, n*(600+16)) // with guards between what is read to
		var all [][]byte
		add := func(kind, flags byte, id int, data []byte) {
			all = append(all, frame(kind, flags, uint16(id), data, false))
		}
		for i := range n {
			order[i] = i
			size := 4 * (1 + rnd.IntN(150))
			at := len(slab) + 16
			slab = slab[:at+size]
			p.reads = append(p.reads, &read{mem: [][]byte{slab[at : at+size : at+size]}})
		}
		for range round % 4 {
			i, j := rnd.IntN(n), rnd.IntN(n)
			order[i], order[j] = order[j], order[i]
		}
		for _, i := range order {
			d := pattern(i, len(p.reads[i].mem[0]))
			if rnd.IntN(8) == 0 {
				add(kindEnd, 0, 99, pattern(i, 20)) // of something else
			}
			if round%3 == 0 || rnd.IntN(20) == 0 {
				add(kindData, 0, i, d)
				if rnd.IntN(8) == 0 { // where the answer is expected
					add(kindEnd, 0, 99, pattern(i, 4*rnd.IntN(100)))
				}
				add(kindEnd, 0, i, nil)
			} else {
				add(kindData, endsRead, i, d)
			}
		}
		var err error
		if round%2 == 0 {
			var chunks [][]byte
			for b := bytes.Join(all, nil); len(b) > 0; {
				k := min(len(b), 1+rnd.IntN(6000))
				chunks = append(chunks, b[:k])
				b = b[k:]
			}
			err = p.receive(a, chunks...)
		} else {
			var chunks [][][]byte
			for len(all) > 0 {
				k := min(len(all), 1+rnd.IntN(10))
				chunks = append(chunks, all[:k])
				all = all[k:]
			}
			err = p.inTurn(a, chunks)
		}
		if err != io.EOF {
			t.Fatalf("round %d (seed %d): %v", round, seed, err)
		}
		for i, r := range p.reads {
			if !r.over || !bytes.Equal(r.mem[0], pattern(i, len(r.mem[0]))) {
				t.Fatalf("round %d (seed %d): read %d has not its data", round, seed, i)
			}
			clear(r.mem[0])
		}
		if !bytes.Equal(slab, make([]byte, len(slab))) {
			t.Fatalf("round %d (seed %d): memory was written to that nobody reads to", round, seed)
		}
		guessed += p.guessed
		a.Close()
	}
	if guessed == 0 {
		t.Error("nothing was guessed")
	}
}

// What was guessed is checked like anything else: what is wrong in it ends the stream, and
// nothing behind it is handled.
func TestGuessesAreChecked(t *testing.T) {
	const n = 6
	for _, apart := range []bool{false, true} {
		for _, kind := range []byte{kindData, kindEnd, 0} { // 0: the end of the data
			for bad := range n {
				a, b := loopback.Pair(t)
				p := &strict{party: newParty(t, b), kind: kind, id: uint16(7 + bad)}
				if kind == 0 {
					p.last = p.id
				}
				p.Init(p.sk, p, 4, 4, ReadAhead)
				p.Foresee(p)
				flag := byte(endsRead)
				if apart {
					flag = 0
				}
				var chunks [][][]byte
				for id, size := 0, 1; id < n+7; size *= 2 { // of 1, 2 and 4 reads, which teach, and of all others
					var c [][]byte
					for end := min(id+size, n+7); id < end; id++ {
						p.reads = append(p.reads, &read{mem: [][]byte{make([]byte, 16)}})
						if c = append(c, frame(kindData, flag, uint16(id), pattern(id, 16), false)); apart {
							c = append(c, frame(kindEnd, 0, uint16(id), nil, false))
						}
					}
					chunks = append(chunks, c)
				}
				err := p.inTurn(a, chunks)
				if hit := apart || kind != kindEnd; hit != errors.Is(err, errStrict) {
					t.Errorf("apart %v, %c %d: ended with %v", apart, kind, bad, err)
				} else if hit {
					for id := 7 + bad; id < n+7; id++ {
						if p.reads[id].over {
							t.Errorf("apart %v, %c %d: read %d is over", apart, kind, bad, id)
						}
					}
				}
				a.Close()
			}
		}
	}
}

// TestGuessedAnswers: what comes where an answer is expected is no part of it, whatever it is, and
// what is behind it gets to its place.
func TestGuessedAnswers(t *testing.T) {
	const n = 4
	for at := range n {
		for _, size := range []int{0, 4, headerLen, 100} {
			a, b := loopback.Pair(t)
			p := newParty(t, b)
			p.Foresee(p)
			var chunks [][][]byte
			for id, many := 0, 1; id < 3+n; many *= 2 { // 1 and 2 reads teach
				var c [][]byte
				for end := id + many; id < end; id++ {
					p.reads = append(p.reads, &read{mem: [][]byte{make([]byte, 16)}})
					c = append(c, frame(kindData, 0, uint16(id), pattern(id, 16), false))
					if id == 3+at {
						c = append(c, frame(kindEnd, 0, 99, pattern(99, size), false))
					}
					c = append(c, frame(kindEnd, 0, uint16(id), nil, false))
				}
				chunks = append(chunks, c)
			}
			if err := p.inTurn(a, chunks); err != io.EOF {
				t.Errorf("%d bytes behind %d: %v", size, at, err)
			}
			for id, r := range p.reads {
				if !r.over || !bytes.Equal(r.mem[0], pattern(id, 16)) {
					t.Errorf("%d bytes behind %d: read %d has % x", size, at, id, r.mem[0])
				}
			}
			if p.guessed <= at {
				t.Errorf("%d bytes behind %d: %d PDUs were guessed", size, at, p.guessed)
			}
			a.Close()
		}
	}
}

var errStrict = errors.New("not this one")

// strict is a party that refuses one PDU.
type strict struct {
	*party
	kind byte
	id   uint16
	last uint16 // of which the end is refused; 0: of none
}

func (p *strict) End(tail []byte) error {
	if p.last != 0 && p.party.id == p.last {
		return errStrict
	}
	return p.party.End(tail)
}

func (p *strict) Header(b []byte) error {
	if b[0] == p.kind && binary.BigEndian.Uint16(b[2:]) == p.id {
		return errStrict
	}
	return p.party.Header(b)
}

// Memory that is read to twice cannot be guessed at twice, nor more than is worth it.
func TestExpected(t *testing.T) {
	slab := make([]byte, 1<<20)
	cut := func(lo, hi int) []byte { return slab[lo:hi] }
	const most = MaxGuess
	for _, c := range []struct {
		data [][]byte
		want []bool
	}{
		{[][]byte{cut(0, 100), cut(100, 200), cut(200, 300)}, []bool{true, true, true}},
		{[][]byte{cut(100, 200), cut(0, 100)}, []bool{true, true}},
		{[][]byte{cut(0, 100), cut(99, 200)}, []bool{true, false}},
		{[][]byte{cut(100, 200), cut(0, 101)}, []bool{true, false}},
		{[][]byte{cut(0, 100), cut(200, 300), cut(50, 60)}, []bool{true, true, false}},
		{[][]byte{cut(0, 100), cut(200, 300), cut(150, 400)}, []bool{true, true, false}},
		{[][]byte{cut(50, 60), cut(0, 100)}, []bool{true, false}},
		{[][]byte{cut(0, most)}, []bool{true}},
		{[][]byte{cut(0, most+1)}, []bool{false}},
		{[][]byte{cut(0, most), cut(most, 2*most), cut(2*most, 3*most), cut(3*most, 4*most), cut(4*most, 5*most), cut(5*most, 5*most+8)},
			[]bool{true, true, true, true, false, true}},
	} {
		a, b := loopback.Pair(t)
		p := &expecting{party: newParty(t, b), data: c.data}
		p.Init(p.sk, p, 4, 4, ReadAhead)
		p.Foresee(p)
		if err := p.receive(a); err != io.EOF {
			t.Error(err)
		}
		if !slices.Equal(p.got, c.want) {
			t.Errorf("%d pieces: %v, want %v", len(c.data), p.got, c.want)
		}
		a.Close()
	}
}

// expecting expects data, whatever is said of it.
type expecting struct {
	*party
	data [][]byte
	got  []bool
}

func (p *expecting) Choose(g *Guess) bool {
	p.got = nil
	for _, d := range p.data {
		p.got = append(p.got, g.Expect(p, 0, d))
	}
	return true
}

// What is expected behind data in many pieces fits one call with them, and what is wrong at
// their end is told.
func TestGuessBehindManyPieces(t *testing.T) {
	for _, bad := range []bool{false, true} {
		a, b := loopback.Pair(t)
		p := &strict{party: newParty(t, b)}
		p.Init(p.sk, p, 4, 4, ReadAhead)
		p.Foresee(p)
		const long = 127
		size := 8 * 1000 // in more pieces than a call has room for beside what is expected
		if bad {
			size = 8 * 100
		}
		var chunks [][][]byte
		add := func(data []byte, mem ...[]byte) []byte {
			p.reads = append(p.reads, &read{mem: mem})
			return frame(kindData, endsRead, uint16(len(p.reads)-1), data, false)
		}
		for n := 1; n <= 64; n *= 2 { // which teach
			var c [][]byte
			for range n {
				c = append(c, add(pattern(1, 16), make([]byte, 16)))
			}
			chunks = append(chunks, c)
		}
		mem := make([]byte, size)
		var pieces [][]byte
		for i := 0; i < size; i += 8 {
			pieces = append(pieces, mem[i:i+8:i+8])
		}
		f := add(pattern(2, size), pieces...)
		chunks = append(chunks, [][]byte{f[:headerLen+8]})
		rest := [][]byte{append(f[headerLen+8:], add(pattern(3, 16), make([]byte, 16))...)}
		for range 70 {
			rest = append(rest, add(pattern(3, 16), make([]byte, 16)))
		}
		chunks = append(chunks, rest)
		if bad {
			p.last = long
		}
		if err := p.inTurn(a, chunks); bad != errors.Is(err, errStrict) || !bad && err != io.EOF {
			t.Errorf("bad %v: ended with %v", bad, err)
		}
		for id, r := range p.reads[long:] {
			if r.over == bad || !bad && !bytes.Equal(bytes.Join(r.mem, nil), pattern(2+min(id, 1), segs.Total(r.mem))) {
				t.Fatalf("bad %v: read %d is over: %v", bad, long+id, r.over)
			}
		}
		a.Close()
	}
}

// What owns no data is told from what was expected of its name before.
func TestGuessForAnotherOwner(t *testing.T) {
	for _, owner := range []bool{true, false} {
		a, b := loopback.Pair(t)
		p := &anew{newParty(t, b), owner}
		p.Init(p.sk, p, 4, 4, ReadAhead)
		p.Foresee(p)
		p.reads = []*read{{mem: [][]byte{make([]byte, 16)}}}
		if err := p.receive(a, frame(kindData, endsRead, 0, pattern(1, 16), false)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("another owner %v: the stream ended with %v", owner, err)
		}
		a.Close()
	}
}

// anew is a party in which another read takes the place of one that was guessed, or has other
// memory.
type anew struct {
	*party
	owner bool
}

func (p *anew) Settle(g *Guess) {
	p.party.Settle(g)
	if p.owner {
		p.reads[0] = &read{mem: p.reads[0].mem}
	} else {
		p.reads[0].mem = [][]byte{make([]byte, 16)}
	}
}
