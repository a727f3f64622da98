package pdustream

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/internal/faultmap"
	"softiser/internal/loopback"
	"softiser/internal/resident"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// What one call is to send is read, as far as its pieces are long, and no further.
func TestLoad(t *testing.T) {
	const page = 4 << 10
	for _, c := range []struct {
		name    string
		pieces  []int // lengths
		part    []int // those of the call; nil: nothing is loaded
		touched int   // bytes, from the front of all
	}{
		{"nothing", nil, nil, 0},
		{"short pieces", []int{page, page, loadMin - page}, nil, 0},
		{"short pieces, more than a call", slicesOf(page, 200), nil, 0},
		{"one piece", []int{loadMin}, []int{loadMin}, loadMin},
		{"a call", []int{loadBytes}, []int{loadBytes}, loadBytes},
		{"one that is too long", []int{3 * loadBytes}, []int{loadBytes}, loadBytes},
		{"in the second", []int{loadBytes / 2, loadBytes, loadBytes}, []int{loadBytes / 2, loadBytes / 2}, loadBytes},
		{"to the edge", []int{loadBytes / 2, loadBytes / 2, loadBytes}, []int{loadBytes / 2, loadBytes / 2}, loadBytes},
		{"a long one behind the edge", append(slicesOf(page, loadBytes/page), loadBytes), nil, 0},
		{"a short part of a long one", append(slicesOf(page, loadBytes/page-1), loadBytes), nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := 0
			for _, n := range c.pieces {
				all += n
			}
			mem := faultmap.Untouched(t, all+page)
			var v []sockio.Vec
			at := 0
			for _, n := range c.pieces {
				v = sockio.Append(v, mem[at:at+n])
				at += n
			}
			part, loaded := load(v)
			if loaded != (c.part != nil) {
				t.Fatalf("loaded: %v", loaded)
			}
			want := c.part
			if !loaded {
				want = c.pieces
			}
			if len(part) != len(want) {
				t.Fatalf("a call of %d pieces, want %d", len(part), len(want))
			}
			for i, n := range want {
				if int(part[i].Len) != n {
					t.Errorf("piece %d has %d bytes, want %d", i, part[i].Len, n)
				}
			}
			for at := 0; at < len(mem); at += page {
				if got := resident.InMemory(mem[at : at+page]); got != (at < c.touched) {
					t.Fatalf("the page at %d has been read: %v", at, got)
				}
			}
		})
	}
}

// Memory that has gone is for the call to find.
func TestLoadOfWhatHasGone(t *testing.T) {
	mem := faultmap.Untouched(t, 2*loadMin)
	if err := unix.Mprotect(mem[loadMin:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if part, loaded := load(sockio.Append(nil, mem)); !loaded || len(part) != 1 || int(part[0].Len) != len(mem) {
		t.Errorf("loaded %v, %d pieces", loaded, len(part))
	}
}

func slicesOf(size, n int) (all []int) {
	for range n {
		all = append(all, size)
	}
	return all
}

// plainPDU is a PDU of the tests below, plain who sends it.
type plainPDU struct {
	PDU[plainPDU]
	tail []byte
}

type plain struct {
	Transmitter[plainPDU]
	mu     sync.Mutex
	cond   sync.Cond
	failed error
}

func newPlain(sk *sockio.Conn) *plain {
	o := &plain{}
	o.cond.L = &o.mu
	o.Init(sk, o, &o.mu, &o.cond)
	return o
}

func (o *plain) Due() bool                { return !o.Empty() }
func (o *plain) Open() bool               { return o.failed == nil }
func (o *plain) Pick(*plainPDU) bool      { return true }
func (o *plain) Seal(p *plainPDU) bool    { p.Tail = p.tail; return true }
func (o *plain) Gone(p *plainPDU, _ bool) { *p = plainPDU{} }
func (o *plain) Settle() bool             { return false }
func (o *plain) Drained() bool            { return true }
func (o *plain) Fail(err error)           { o.failed = err }

func (o *plain) add(head string, data []byte, tail string) {
	p := &plainPDU{tail: []byte(tail)}
	p.Head, p.Data = []byte(head), segs.Of([][]byte{data}, 0, len(data))
	o.Push(&p.PDU, p)
}

// Only what is resident and long is loaded, and not what a digest has read.
func TestWhatIsCold(t *testing.T) {
	long, short := make([]byte, loadMin), make([]byte, loadMin-1)
	for _, c := range []struct {
		name  string
		known bool
		data  [][]byte
		tail  string
		want  bool
	}{
		{name: "memory that may wait", data: [][]byte{long}},
		{name: "a volume in memory", known: true, data: [][]byte{long}, want: true},
		{name: "with a digest", known: true, data: [][]byte{long}, tail: "sum"},
		{name: "short", known: true, data: [][]byte{short, short}},
		{name: "long behind short", known: true, data: [][]byte{short, long}, want: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newPlain(nil)
			o.mu.Lock()
			defer o.mu.Unlock()
			for _, d := range c.data {
				if c.known {
					d = faultmap.Untouched(t, len(d))
					defer resident.Add(d)()
				}
				o.add("h", d, c.tail)
			}
			if !o.Collect() || len(o.Gather()) == 0 || o.cold != c.want {
				t.Errorf("cold: %v, want %v", o.cold, c.want)
			}
		})
	}
}

// What is sent again soon is not read ahead; what was sent long ago is.
func TestWhatWasSentLately(t *testing.T) {
	o := newPlain(nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	mem := faultmap.Untouched(t, 2*len(o.lately)*loadMin)
	defer resident.Add(mem)()
	cold := func(at int) bool {
		o.add("", mem[at:at+loadMin], "")
		if !o.Collect() || len(o.Gather()) == 0 {
			t.Fatal("nothing is to be sent")
		}
		o.Advance(loadMin)
		return o.cold
	}
	for _, half := range []int{0, len(mem) / 2, 0} {
		for at := half; at < half+len(mem)/2; at += loadMin {
			if !cold(at) {
				t.Fatalf("%d is not cold", at)
			}
		}
	}
	for range 2 {
		for at := 0; at < len(mem)/2; at += loadMin {
			if cold(at) {
				t.Fatalf("%d is cold again", at)
			}
		}
	}
}

// What is cut into calls arrives as it was.
func TestLoadedDataArrives(t *testing.T) {
	a, b := loopback.Pair(t)
	sk, err := sockio.New(b, sockio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := newPlain(sk)
	var want []byte
	for _, n := range []int{3*loadBytes + 5, 100, loadBytes, loadMin, 2 * loadBytes} {
		data := faultmap.Untouched(t, n)
		rand.NewChaCha8([32]byte{byte(n)}).Read(data)
		remove := resident.Add(data)
		t.Cleanup(remove)
		o.add("head", data, "")
		want = append(append(want, "head"...), data...)
	}
	got := make(chan []byte, 1)
	go func() {
		b := make([]byte, len(want))
		n, _ := io.ReadFull(a, b)
		got <- b[:n]
	}()
	o.Turn(PushBytes) // what the socket does not take, the transmit goroutine sends
	if !bytes.Equal(<-got, want) {
		t.Error("something else has come")
	}
	o.mu.Lock()
	o.Seize()
	if o.failed != nil || !o.Empty() {
		t.Errorf("failed: %v, all has gone: %v", o.failed, o.Empty())
	}
	o.Stop()
	o.mu.Unlock()
	sk.Close()
	a.Close()
}
