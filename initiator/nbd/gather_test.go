package nbd

import (
	"bytes"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"softiser/initiator/blockio"
)

// heldLUN notes how many requests it gets at a time, and completes none.
type heldLUN struct {
	LUN
	mu      sync.Mutex // the timer has a goroutine of its own
	batches []int
	reqs    []*blockio.Request
}

func (l *heldLUN) SubmitBatch(rs []*blockio.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batches = append(l.batches, len(rs))
	l.reqs = append(l.reqs, rs...)
}

// TestGather goes through what ends the gathering of requests.
func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &heldLUN{}
		c := &conn{exp: &Export{LUN: l}, out: replies{mute: true}}
		c.out.c = c
		c.gathered.timer = time.AfterFunc(time.Hour, c.overdue)
		defer c.gathered.timer.Stop()
		sent := 0
		comes := func(op blockio.Op, sizes ...int64) {
			for _, n := range sizes {
				s := &slot{c: c}
				s.req = blockio.Request{Op: op, Len: n, User: s, Done: requestDone}
				c.batch = append(c.batch, &s.req)
				sent++
			}
			c.gather()
		}
		read := func(sizes ...int64) { comes(blockio.OpRead, sizes...) }
		batches := func() []int {
			l.mu.Lock()
			defer l.mu.Unlock()
			return slices.Clone(l.batches)
		}
		answers := 0
		answer := func() {
			l.mu.Lock()
			r := l.reqs[answers]
			l.mu.Unlock()
			answers++
			r.Done(r)
		}
		want := func(when string, more ...int) {
			t.Helper()
			if got := batches(); !slices.Equal(got, more) {
				t.Fatalf("%s: batches of %v, want %v", when, got, more)
			}
			l.mu.Lock()
			l.batches = nil
			l.mu.Unlock()
		}
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }

		for range gatherFrom {
			read(4096)
		}
		want("few under way", slices.Repeat([]int{1}, gatherFrom)...)
		read(4096)
		read(4096, 512)
		want("fewer than under way")
		read(slices.Repeat([]int64{512}, gatherFrom-3)...)
		want("as many as under way", gatherFrom)
		read(512)
		read(512)
		want("fewer than that")
		answer()
		want("an answer", 2)
		answer()
		want("an answer, and nothing gathered")
		read(512)
		read(directRead)
		want("a long one", 2)
		for _, op := range []blockio.Op{blockio.OpFlush, blockio.OpDiscard} {
			read(512)
			comes(op, 512)
			want("neither read nor write", 2)
		}
		comes(blockio.OpWrite, 512)
		read(512)
		want("a short write")
		comes(blockio.OpWrite, directRead)
		want("a long one", 3)

		read(512)
		pass(gatherTime * 3 / 5)
		answer()
		read(512)
		want("an answer", 1)
		pass(gatherTime * 4 / 5) // after the first one's time, within the second one's
		want("the timer of what has left")
		pass(gatherTime * 3 / 5)
		want("the timer", 1)
		for range gatherRest {
			read(512)
		}
		want("after waiting in vain", slices.Repeat([]int{1}, gatherRest)...)
		read(512)
		want("afterwards")
		c.submit()
		want("all of them", 1)
		if len(l.reqs) != sent || c.inFlight != sent-answers {
			t.Fatalf("%d of %d requests submitted, %d under way", len(l.reqs), sent, c.inFlight)
		}
		once := map[*blockio.Request]bool{}
		for _, r := range l.reqs {
			if once[r] {
				t.Fatal("a request was submitted twice")
			}
			once[r] = true
		}
	})
}

// TestNothingWaitsForAPayload: what came before a write is carried out while its payload is
// still on the way, that of a write which is refused, too.
func TestNothingWaitsForAPayload(t *testing.T) {
	const size = 1 << 20
	l := newMemLUN(t, size)
	_, path := serveLUN(t, l)
	c := connect(t, path, "vol")
	for _, w := range []struct {
		off   uint64
		n     uint32
		errno uint32
	}{{0, 256 << 10, 0}, {size, 256 << 10, errNoSpace}, {0, 4 << 10, 0}, {size, 4 << 10, errNoSpace}} {
		payload := make([]byte, w.n)
		c.write(slices.Concat(requestBytes(0, CmdRead, 1, 0, 512), requestBytes(0, CmdWrite, 2, w.off, w.n), payload[:1000]))
		if r := c.recv(512); r.cookie != 1 || r.errno != 0 {
			t.Fatalf("the read: %+v", r)
		}
		c.write(payload[1000:])
		if r := c.recv(0); r.cookie != 2 || r.errno != w.errno {
			t.Fatalf("the write to %d: %+v", w.off, r)
		}
	}
}

// TestGets: a short payload behind its header is taken if it is there, and not waited for.
func TestGets(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		defer ends[i].Close()
	}
	raw, err := ends[0].(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var r reader
	r.init(raw)
	const n = 4096
	payload := bytes.Repeat([]byte{7}, n)
	send := func(p []byte) {
		if _, err := ends[1].Write(p); err != nil {
			t.Fatal(err)
		}
	}
	send(requestBytes(0, CmdWrite, 1, 0, n))
	if _, err := r.peek(requestSize); err != nil {
		t.Fatal(err)
	}
	r.discard(requestSize)
	if r.gets(n) {
		t.Fatal("a payload that has not been sent")
	}
	send(payload[:1000])
	if r.gets(n) {
		t.Fatal("a payload of which a part has been sent")
	}
	send(payload[1000:])
	if !r.gets(n) {
		t.Fatal("the payload has been sent")
	}
	p := make([]byte, n)
	if err := r.readInto(p); err != nil || !bytes.Equal(p, payload) {
		t.Fatalf("%v, and the payload is not what was sent", err)
	}
	send(make([]byte, directRead))
	if r.gets(directRead) {
		t.Fatal("a long payload is to be read into place")
	}
}

// TestMidstOfAPayload: others have the processor between two parts of a long payload, and not
// where a short rest, or nothing, is missing.
func TestMidstOfAPayload(t *testing.T) {
	for missing, want := range map[int]int{0: 0, directRead - 1: 0, directRead: 1} {
		const begun = 1000
		payload := make([]byte, begun+missing)
		calls := 0
		r := reader{buf: make([]byte, readAhead)}
		r.midst = func() { calls++; r.ahead = payload[begun:] }
		r.ahead = payload[:begun:begun]
		if want == 0 {
			r.ahead = payload
		}
		p := make([]byte, begun+missing)
		if err := r.readInto(p); err != nil || calls != want {
			t.Errorf("%d bytes missing: %d offers, want %d; %v", missing, calls, want, err)
		}
	}
}

// TestNothingGatheredWaitsForALongTurn: where Go has one processor the timer of what is gathered does
// not run while another program has it, so nothing is left gathered for one that may keep it.
func TestNothingGatheredWaitsForALongTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which a turn takes no time, and the timer does not run by itself
		l := &heldLUN{}
		c := &conn{exp: &Export{LUN: l}, out: replies{mute: true}}
		c.out.c = c
		c.gathered.timer = time.AfterFunc(time.Hour, c.overdue)
		defer c.gathered.timer.Stop()
		come := func() {
			s := &slot{c: c}
			s.req = blockio.Request{Op: blockio.OpRead, Len: 512, User: s, Done: requestDone}
			c.batch = append(c.batch, &s.req)
			c.gather()
		}
		left := func(when string, want int) {
			t.Helper()
			if got := len(l.reqs); got != want {
				t.Fatalf("%s: %d requests have left, want %d", when, got, want)
			}
		}
		for range gatherFrom {
			come()
		}
		left("few under way", gatherFrom)
		n := gatherFrom
		for name, give := range map[string]func(){"between requests": c.offer, "within a payload": c.midst} {
			c.yield = yielding{}
			come()
			give()
			n++
			left(name+", nobody has had it yet", n)
			come()
			give()
			left(name+", the last turn was short", n)
			c.back(yieldLong + 1)
			n++
			left(name+", after a long one", n)
			come()
			for range yieldRest {
				give()
			}
			left(name+", not offered for a while", n)
			give()
			n++
			left(name+", offered again", n)
		}
	})
}

// TestYieldRests: the processor is not offered for a while when somebody has kept it.
func TestYieldRests(t *testing.T) {
	var y yielding
	if y.took(yieldLong); y.rest != 0 {
		t.Fatal("rests after a short turn of another")
	}
	y.took(yieldLong + 1)
	for left := yieldRest; left > 0; left-- {
		if y.rest != left {
			t.Fatalf("rests for %d calls, want %d", y.rest, left)
		}
		if y.due() {
			t.Fatal("the processor is offered meanwhile")
		}
	}
	if !y.due() {
		t.Fatal("still rests")
	}
}
