package pdustream_test

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"softiser/internal/faultmap"
	"softiser/internal/loopback"
	. "softiser/internal/pdustream"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// item is a PDU of the tests.
type item struct {
	PDU[item]
	number int
	pieces [][]byte
}

// outbox is who sends.
type outbox struct {
	Transmitter[item]
	mu   sync.Mutex
	cond sync.Cond

	sealing func(*item) // called by Seal; may be nil
	blind   bool        // Seal does not look at the data
	settle  func() bool // called by Settle; may be nil
	aborted []int       // numbers that Pick refuses
	gone    []int       // numbers that have left, negative: not whole
	drained bool
	failed  error
}

func newOutbox(sk *sockio.Conn) *outbox {
	o := &outbox{}
	o.cond.L = &o.mu
	o.Init(sk, o, &o.mu, &o.cond)
	return o
}

func (o *outbox) Due() bool         { return !o.Empty() }
func (o *outbox) Open() bool        { return o.failed == nil }
func (o *outbox) Pick(p *item) bool { return !slices.Contains(o.aborted, p.number) }
func (o *outbox) Drained() bool     { o.drained = true; o.cond.Broadcast(); return true }
func (o *outbox) Fail(err error)    { o.failed = err }
func (o *outbox) Settle() bool      { return o.settle != nil && o.settle() }

func (o *outbox) Seal(p *item) bool {
	if o.sealing != nil {
		o.sealing(p)
	}
	p.Tail = append(p.Tail, "tail"...)
	if o.blind {
		return true
	}
	_, ok := p.Data.Checksum(0)
	return ok
}

func (o *outbox) Gone(p *item, whole bool) {
	n := p.number
	if !whole {
		n = -n
	}
	o.gone = append(o.gone, n)
	*p = item{}
}

// add queues PDU number n with data in pieces.
func (o *outbox) add(n int, pieces ...[]byte) *item {
	p := o.Spare()
	if p == nil {
		p = &item{}
	}
	p.number, p.pieces = n, pieces
	p.Head = []byte{'h', byte(n)}
	p.Data = segs.Of(p.pieces, 0, segs.Total(p.pieces))
	o.Push(&p.PDU, p)
	return p
}

// wire is what the next call would send.
func (o *outbox) wire() (b []byte) {
	for _, v := range o.Gather() {
		b = append(b, unsafe.Slice(v.Base, v.Len)...)
	}
	return b
}

// From wherever the socket has stopped the rest follows, whatever is queued meanwhile.
func TestHalfSent(t *testing.T) {
	mem := pattern(1, 20)
	for sent := 0; ; sent++ {
		o := newOutbox(nil)
		o.add(1, mem[:7], mem[7:7], mem[7:])
		o.add(2)
		if !o.Collect() {
			t.Fatal("nothing is collected")
		}
		all := o.wire()
		if sent > len(all) {
			return
		}
		o.Advance(sent)
		o.add(3, mem[:1])
		want := append(bytes.Clone(all[sent:]), "h\x03"+string(mem[:1])+"tail"...)
		if o.Collect(); !bytes.Equal(o.wire(), want) {
			t.Fatalf("behind %d bytes % x follows, want % x", sent, o.wire(), want)
		}
		if n := len(o.gone); (n > 0) != (sent >= 26) || o.SentBytes() != uint64(sent) || o.PDUs.Load() != uint64(n) {
			t.Errorf("behind %d bytes %d PDUs have gone", sent, n)
		}
	}
}

// PDUs of more pieces than a call takes go out in several, in order and whole.
func TestManyPieces(t *testing.T) {
	o := newOutbox(nil)
	var want []byte
	for n := range 5 {
		mem := pattern(n, 1000)
		var pieces [][]byte
		for i := range mem {
			pieces = append(pieces, mem[i:i+1])
		}
		o.add(n, pieces...)
		want = append(append(append(want, 'h', byte(n)), mem...), "tail"...)
	}
	var got []byte
	calls := 0
	for ; o.Collect(); calls++ {
		if n := len(o.Gather()); n > sockio.MaxVec {
			t.Fatalf("a call with %d pieces", n)
		}
		b := o.wire()
		got = append(got, b...)
		o.Advance(len(b))
	}
	if !bytes.Equal(got, want) || calls > 6 {
		t.Errorf("%d bytes in %d calls, want %d", len(got), calls, len(want))
	}
	mem := pattern(9, sockio.MaxVec-1)
	o.add(9, slices.Collect(slices.Chunk(mem, 1))...) // with its head that fills a call
	o.Collect()
	if n := len(o.Gather()); n > sockio.MaxVec {
		t.Errorf("a call with %d pieces", n)
	}
	o.Advance(len(o.wire()))
	if o.Collect(); string(o.wire()) != "tail" {
		t.Errorf("%q follows", o.wire())
	}
}

// What is not to be sent any more leaves the queue, wherever it is; what has been picked stays.
func TestTakenOut(t *testing.T) {
	o := newOutbox(nil)
	o.add(1)
	o.Collect()
	for n := 2; n <= 7; n++ {
		o.add(n)
	}
	o.aborted = []int{1, 2, 4, 7}
	o.Collect()
	o.Remove(func(p *item) bool { return p.number == 5 })
	var left []int
	for p := o.First(); p != nil; p = p.Next() {
		left = append(left, p.number)
	}
	if !slices.Equal(left, []int{1, 3, 6}) || !slices.Equal(o.gone, []int{-2, -4, -7, -5}) || o.Last().number != 6 {
		t.Errorf("left are %v, gone %v", left, o.gone)
	}
	o.add(8)
	if o.Last().number != 8 || o.First().Next().Next().Next().number != 8 {
		t.Error("what is queued behind it is lost")
	}
	o.Purge()
	if !o.Empty() || o.Last() != nil || o.Spare() != nil {
		t.Error("something is left")
	}
}

// One call is offered 2 MiB, and no more pieces than it takes: what is behind has not been picked
// and may still be taken out.
func TestBoundsOfACall(t *testing.T) {
	picked := func(o *outbox) (n int) {
		for o.Collect(); n < len(o.all()) && o.all()[n].Taken(); n++ {
		}
		return n
	}
	o := newOutbox(nil)
	for n := range 5 {
		o.add(n, make([]byte, 1<<20-2))
	}
	if n := picked(o); n != 2 {
		t.Errorf("%d MiB are picked", n)
	}
	o = newOutbox(nil)
	for n := range 1000 {
		o.add(n, make([]byte, 1))
	}
	if n := picked(o); n > sockio.MaxVec/3 || n < 300 {
		t.Errorf("%d PDUs of three pieces are picked", n)
	}
}

// all are the PDUs of the queue.
func (o *outbox) all() (l []*item) {
	for p := o.First(); p != nil; p = p.Next() {
		l = append(l, p)
	}
	return l
}

// Whoever calls Turn goes on with its own work when it has sent what it was told to, though the
// socket would take more: the transmit goroutine does the rest.
func TestBudget(t *testing.T) {
	a, b := loopback.Pair(t)
	defer a.Close()
	sk, err := sockio.New(b, sockio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := newOutbox(sk)
	const n = 1000
	o.mu.Lock()
	for i := range n {
		o.add(i, make([]byte, 1))
	}
	o.mu.Unlock()
	back := make(chan struct{})
	held := false
	o.sealing = func(p *item) {
		if p.number == n-1 {
			select {
			case <-back:
			case <-time.After(time.Minute):
				held = true
			}
		}
	}
	o.Turn(1)
	close(back)
	o.mu.Lock()
	o.Seize()
	if held || len(o.gone) != n || o.failed != nil {
		t.Errorf("Turn has sent all of it: %v; %d PDUs have gone: %v", held, len(o.gone), o.failed)
	}
	o.Stop()
	o.mu.Unlock()
	sk.Close()
}

// No more PDUs are kept than a connection needs.
func TestSpares(t *testing.T) {
	o := newOutbox(nil)
	for n := range MaxSpare + 5 {
		o.add(n)
	}
	o.Remove(func(*item) bool { return true })
	n := 0
	for ; o.Spare() != nil; n++ {
	}
	if n != MaxSpare {
		t.Errorf("%d are kept", n)
	}
	p := o.add(1)
	for range MaxSpare + 1 {
		o.Remove(func(*item) bool { return true })
		if o.add(1) != p {
			t.Fatal("one that is free is not used again")
		}
	}
}

// Many PDUs, from several goroutines: each goes out once, in the order of the queue, and a
// socket that is full holds nobody up but the transmit goroutine.
func TestTransmit(t *testing.T) {
	a, b := loopback.Pair(t)
	defer a.Close()
	sk, err := sockio.New(b, sockio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := newOutbox(sk)
	const each, size = 200, 64 << 10
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range each {
				o.mu.Lock()
				o.add(7, make([]byte, size))
				o.mu.Unlock()
				o.Turn(RxBytes)
			}
		})
	}
	wg.Wait() // nobody has read anything
	const want = 3 * each * (2 + size + 4)
	buf, got := make([]byte, 1<<20), 0
	for got < want {
		n, err := a.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	o.mu.Lock()
	o.Seize()
	if len(o.gone) != 3*each || !o.Empty() || o.SentBytes() != want || !o.drained || o.failed != nil {
		t.Errorf("%d PDUs and %d bytes have gone: %v", len(o.gone), o.SentBytes(), o.failed)
	}
	o.Stop()
	o.mu.Unlock()
	sk.Close()
}

// Of a connection that has ended nothing is sent.
func TestNotOpen(t *testing.T) {
	o := newOutbox(nil)
	o.failed = errors.New("ended")
	o.add(1)
	o.Turn(PushBytes)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Seize(); len(o.gone) != 0 || o.Empty() {
		t.Errorf("gone are %v", o.gone)
	}
}

// Data that cannot be read ends the connection when it is its turn, not before.
func TestUnreadable(t *testing.T) {
	a, b := loopback.Pair(t)
	defer a.Close()
	sk, err := sockio.New(b, sockio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := newOutbox(sk)
	o.add(1, []byte("good"))
	o.add(2, faultmap.New(t, 4096, 0))
	o.Turn(PushBytes)
	if !errors.Is(o.failed, ErrSendFault) || !slices.Equal(o.gone, []int{1}) || o.Sends.Load() != 1 {
		t.Errorf("gone are %v, in %d calls: %v", o.gone, o.Sends.Load(), o.failed)
	}
	o.Purge()
	o.failed, o.blind = nil, true // it becomes so behind Seal
	o.add(3, faultmap.New(t, 4096, 0))
	if o.Turn(PushBytes); !errors.Is(o.failed, ErrSendFault) || o.Sends.Load() != 1 {
		t.Errorf("%v, %d calls", o.failed, o.Sends.Load())
	}
	sk.Close()
}
