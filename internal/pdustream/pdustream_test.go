package pdustream_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"testing"

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
func (p *party) Batch()   {}

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
		var all []byte
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
				all = append(all, frame(kindEnd, 0, 99, pattern(i, 20), false)...) // of something else
			}
			if round%3 == 0 || rnd.IntN(20) == 0 {
				all = append(all, frame(kindData, 0, uint16(i), d, false)...)
				all = append(all, frame(kindEnd, 0, uint16(i), nil, false)...)
			} else {
				all = append(all, frame(kindData, endsRead, uint16(i), d, false)...)
			}
		}
		var chunks [][]byte
		for len(all) > 0 {
			k := min(len(all), 1+rnd.IntN(6000))
			chunks = append(chunks, all[:k])
			all = all[k:]
		}
		if err := p.receive(a, chunks...); err != io.EOF {
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

// What owns no data is told from what was expected of its name before.
func TestGuessForAnotherOwner(t *testing.T) {
	a, b := loopback.Pair(t)
	p := &anew{party: newParty(t, b)}
	p.Init(p.sk, p, 4, 4, ReadAhead)
	p.Foresee(p)
	p.reads = []*read{{mem: [][]byte{make([]byte, 16)}}}
	if err := p.receive(a, frame(kindData, endsRead, 0, pattern(1, 16), false)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	a.Close()
}

// anew is a party in which another read takes the place of one that was guessed.
type anew struct{ *party }

func (p *anew) Settle(g *Guess) {
	p.party.Settle(g)
	p.reads[0] = &read{mem: p.reads[0].mem}
}
