package rdmamsg

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"softiser/internal/alloctest"
	"softiser/internal/faultmap"
	"softiser/internal/race"
	"softiser/rdma"
)

// Messages of all sizes arrive whole and in order; what they cost is told when they
// have gone.
func TestMessages(t *testing.T) {
	client, server := pair(t, 1, Config{})
	sizes := []int{1, InlineLen - 1, InlineLen, InlineLen + 1, 4096}
	var costs []int
	for i, n := range sizes {
		cost := i * 100 // the first costs nothing, and is not told of
		if cost > 0 {
			costs = append(costs, cost)
		}
		server.say(strings.Repeat(string(rune('a'+i)), n), cost)
	}
	for i, n := range sizes {
		if got := recv(t, "message", client.msgs); got != strings.Repeat(string(rune('a'+i)), n) {
			t.Errorf("message %d has %d bytes, want %d", i, len(got), n)
		}
	}
	server.stopSending(t)
	server.mu.Lock()
	defer server.mu.Unlock()
	if !slices.Equal(server.costs, costs) {
		t.Errorf("told of %v, want %v", server.costs, costs)
	}
}

// stopSending waits until everything that was queued has gone.
func (e *end) stopSending(t *testing.T) {
	t.Helper()
	mem := make([]byte, 1)
	e.do(func(p *Pump) { p.Get(e, [][]byte{mem}, 1, rdma.RemoteAddr{STag: 0xbad00, TO: 1}) })
	recv(t, "the refusal of a Read", e.over)
}

// While a pump is held, only messages marked First go, and nothing overtakes what is
// held.
func TestHold(t *testing.T) {
	client, server := pair(t, 1, Config{})
	send := func(s string, first bool) {
		server.do(func(p *Pump) {
			m := p.Message(len(s))
			m.Buf, m.First = append(m.Buf, s...), first
			p.Send(m)
		})
	}
	server.mu.Lock()
	server.p.Hold = true
	server.mu.Unlock()
	send("first", true)
	send("second", false)
	send("third", true)
	if got := recv(t, "message", client.msgs); got != "first" {
		t.Fatalf("got %q", got)
	}
	server.mu.Lock()
	idle, sending := server.p.Idle(), server.p.Sending()
	server.mu.Unlock()
	if idle || !sending {
		t.Error("nothing is held")
	}
	server.do(func(p *Pump) { p.Hold = false })
	for _, want := range []string{"second", "third"} {
		if got := recv(t, "message", client.msgs); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// Scattered memory of any size moves both ways, in as many requests as it takes, and
// never more Reads at once than the peer serves.
func TestPutAndGet(t *testing.T) {
	for _, ird := range []int{1, 4} {
		client, server := pair(t, ird, Config{})
		if server.p.ORD != ird {
			t.Fatalf("ORD %d, want %d", server.p.ORD, ird)
		}
		for _, n := range []int{1, 4096, 3*maxRead + 1} {
			remote := make([]byte, n+7)
			for i := range remote {
				remote[i] = byte(i ^ i>>8)
			}
			w, at := client.open(remote, 7, rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
			mem := make([]byte, n)
			var segs [][]byte
			for at, step := 0, max(n/200, 1); at < n; at += step { // more pieces than a request takes
				segs = append(segs, nil, mem[at:min(at+step, n)])
			}
			before := server.p.Fetched.Load()
			server.do(func(p *Pump) {
				p.Get(&mem, segs, uint32(n), at)
				if p.Pump(true); p.nread > ird {
					t.Errorf("%d Reads at once, the peer serves %d", p.nread, ird)
				}
			})
			if r := recv(t, "data", server.over); r.err != nil || r.user != any(&mem) || !bytes.Equal(mem, remote[7:]) {
				t.Fatalf("Get of %d bytes: %v", n, r.err)
			}
			if got := server.p.Fetched.Load() - before; got != uint64(n) {
				t.Errorf("counted %d bytes of %d", got, n)
			}
			for i := range mem {
				mem[i] ^= 0x55
			}
			server.do(func(p *Pump) {
				p.Put(&mem, segs, uint32(n), at)
				m := p.Message(4)
				m.Buf, m.Inv, m.HasInv = append(m.Buf, "done"...), at.STag, true
				p.Send(m)
			})
			if r := recv(t, "end of Put", server.over); r.err != nil || r.user != any(&mem) {
				t.Fatalf("Put of %d bytes: %v", n, r.err)
			}
			recv(t, "message behind the data", client.msgs)
			if !bytes.Equal(mem, remote[7:]) || remote[6] != 6 {
				t.Fatalf("Put of %d bytes: wrong data", n)
			}
			if w.Valid() {
				t.Error("the message has not closed the window")
			}
			client.mu.Lock()
			if !client.w.Close(w) {
				t.Error("the data did not reach the memory")
			}
			client.mu.Unlock()
		}
	}
}

// A Put that is aborted after some of its Writes have been queued is over when the last
// of these is: they use its memory.
func TestAbortQueuedPut(t *testing.T) {
	client, server := pair(t, 1, Config{})
	const pieces = 2 * SendDepth * MaxSGE // more than the send queue takes
	dst := make([]byte, pieces)
	_, at := client.open(dst, 0, rdma.AccessRemoteWrite)
	src := make([]byte, pieces)
	var segs [][]byte
	for i := range src {
		segs = append(segs, src[i:i+1])
	}
	server.do(func(p *Pump) {
		m := p.Put(&src, segs, pieces, at)
		if p.Pump(true); p.out != SendDepth {
			t.Errorf("%d requests are queued", p.out)
		}
		p.Abort(m, &dst) // somebody else's by now
		p.Abort(m, &src)
	})
	if r := recv(t, "end of Put", server.over); r.err != ErrAborted || r.out != 0 {
		t.Errorf("over with %d requests outstanding: %v", r.out, r.err)
	}
}

// A Get lets go of its memory at once, and is over when the peer has answered what was
// asked; what was not asked yet is not asked any more.
func TestAbortGet(t *testing.T) {
	client, server := pair(t, 1, Config{})
	remote := bytes.Repeat([]byte{1}, 2*maxRead)
	_, at := client.open(remote, 0, rdma.AccessRemoteRead)
	run, wait := make([]byte, 2*maxRead), make([]byte, 16)
	server.do(func(p *Pump) {
		a := p.Get(&run, [][]byte{run}, uint32(len(run)), at)
		b := p.Get(&wait, [][]byte{wait}, uint32(len(wait)), at)
		if p.Pump(true); p.nread != 1 {
			t.Fatalf("%d Reads are queued", p.nread)
		}
		p.Abort(b, &wait) // it has not begun: over at once
		if r := <-server.over; r.user != any(&wait) || r.err != ErrAborted {
			t.Errorf("%+v", r)
		}
		p.Abort(b, &wait) // again
		p.Abort(0, &run)
		p.Abort(99, &run)
		p.Abort(-99, &run)
		p.Abort(a, &run)
		clear(run)
	})
	if r := recv(t, "end of Get", server.over); r.user != any(&run) || r.err != ErrAborted {
		t.Errorf("%+v", r)
	}
	if !bytes.Equal(run, make([]byte, len(run))) {
		t.Error("the memory was written after Abort")
	}
	server.do(func(p *Pump) { p.Get(&wait, [][]byte{wait}, 16, at) })
	if r := recv(t, "data", server.over); r.err != nil || wait[15] != 1 {
		t.Errorf("after the aborts: %+v", r)
	}
}

// Of what leaves together only some requests ask for a completion, and everything ends all the
// same, in order; a large Put has its own.
func TestFewCompletions(t *testing.T) {
	for _, c := range []struct {
		puts, n int
		most    int // completions
	}{
		{puts: 1, n: 64, most: 1},
		{puts: 8, n: 64, most: 1},
		{puts: 3 * SendDepth, n: 64, most: SendDepth},
		{puts: 8, n: maxQuietBytes + 1, most: 9},
	} {
		client, server := pair(t, 1, Config{})
		mem := make([]byte, c.n)
		_, at := client.open(mem, 0, rdma.AccessRemoteWrite)
		server.over = make(chan result, c.puts)
		src := bytes.Repeat([]byte{7}, c.n)
		server.do(func(p *Pump) {
			for i := range c.puts {
				p.Put(i, [][]byte{src}, uint32(c.n), at)
				m := p.Message(1)
				m.Buf, m.Tag = append(m.Buf, byte(i)), i+1
				p.Send(m)
			}
		})
		for i := range c.puts {
			if r := recv(t, "end of a Put", server.over); r.err != nil || r.user != any(i) {
				t.Fatalf("%d Puts of %d bytes: number %d ended as %v: %v", c.puts, c.n, i, r.user, r.err)
			}
			if got := recv(t, "message", client.msgs); got != string([]byte{byte(i)}) {
				t.Fatalf("message %d is %q", i, got)
			}
		}
		server.stopSending(t)
		server.mu.Lock()
		if n := len(server.costs); n != c.puts || !slices.IsSorted(server.costs) || server.p.out != 0 {
			t.Errorf("%d Puts of %d bytes: told of %d messages, %d requests outstanding", c.puts, c.n, n, server.p.out)
		}
		if got := server.reaped - 1; got > c.most { // one is that of stopSending
			t.Errorf("%d Puts of %d bytes took %d completions, want %d at most", c.puts, c.n, got, c.most)
		}
		server.mu.Unlock()
	}
}

// A request without a completion of its own that fails says so, and ends when what covers it has.
func TestQuietFailure(t *testing.T) {
	client, server := pair(t, 1, Config{})
	const n = 4096
	_, at := client.open(make([]byte, n), 0, rdma.AccessRemoteWrite)
	good, bad := make([]byte, n), faultmap.New(t, n, 0)
	server.do(func(p *Pump) {
		for i, mem := range [][]byte{good, bad, good} {
			p.Put(i, [][]byte{mem}, n, at)
			m := p.Message(1)
			m.Buf, m.Tag = append(m.Buf, 'x'), i+1
			p.Send(m)
		}
	})
	recv(t, "the end", server.done)
	<-server.l.QP.Done()
	server.sent(server.l.SendCQ)
	for i, want := range []error{nil, ErrFault, errAny} {
		r := recv(t, "end of a Put", server.over)
		if r.user != any(i) || (want == errAny) != (r.err != nil && r.err != ErrFault) || want == ErrFault && r.err != want {
			t.Errorf("Put %v ended with %v, want %v", r.user, r.err, want)
		}
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if server.p.out != 0 || !slices.Equal(server.costs, []int{1, 2, 3}) {
		t.Errorf("%d requests are outstanding, told of %v", server.p.out, server.costs)
	}
}

var errAny = errors.New("any")

// Memory that faults fails the transfer alone.
func TestFault(t *testing.T) {
	client, server := pair(t, 1, Config{})
	const n = 256 << 10
	bad := faultmap.New(t, n, 0)
	_, at := client.open(make([]byte, n), 0, rdma.AccessRemoteRead)
	server.do(func(p *Pump) { p.Get(&bad, [][]byte{bad}, n, at) })
	if r := recv(t, "end of Get", server.over); r.err != ErrFault {
		t.Errorf("%v", r.err)
	}
	good := make([]byte, n)
	server.do(func(p *Pump) { p.Get(&good, [][]byte{good}, n, at) })
	if r := recv(t, "end of Get", server.over); r.err != nil {
		t.Errorf("after the fault: %v", r.err)
	}
}

// What has not got into the send queue ends with the connection.
func TestPurge(t *testing.T) {
	client, server := pair(t, 1, Config{})
	_, at := client.open(make([]byte, 64), 0, rdma.AccessRemoteRead)
	mem := make([]byte, 32)
	server.l.QP.Abort(errors.New("the cause"))
	<-server.l.QP.Done()
	server.mu.Lock()
	m := server.p.Message(1)
	m.Buf, m.Tag = append(m.Buf, 'x'), 5
	server.p.Send(m)
	server.p.Put(1, [][]byte{mem}, 32, at)
	server.p.Get(2, [][]byte{mem}, 32, at)
	server.p.Purge(rdma.ErrClosed)
	costs := server.costs
	server.mu.Unlock()
	ends := map[any]error{}
	for range 2 {
		r := recv(t, "end", server.over)
		ends[r.user] = r.err
	}
	if ends[1] != rdma.ErrClosed || ends[2] != rdma.ErrClosed || len(costs) != 1 || costs[0] != 5 {
		t.Errorf("ended with %v, costs %v", ends, costs)
	}
}

// Nothing is allocated once everything has been used once.
func TestNothingAllocated(t *testing.T) {
	client, server := pair(t, 4, Config{})
	remote, mem := make([]byte, 8192), make([]byte, 8192)
	segs := [][]byte{mem[:100], mem[100:]}
	src := [][]byte{remote}
	run := func() {
		client.mu.Lock()
		w, stag, base, err := client.w.Open(src, 0, rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
		client.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		server.mu.Lock()
		server.p.Get(server, segs, 8192, rdma.RemoteAddr{STag: stag, TO: base})
		server.p.Put(server, segs, 8192, rdma.RemoteAddr{STag: stag, TO: base})
		server.mu.Unlock()
		server.push()
		<-server.over
		<-server.over
		client.mu.Lock()
		client.w.Close(w)
		client.mu.Unlock()
	}
	for range 20 {
		run()
	}
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	if n := alloctest.PerRun(200, run); n >= 1 {
		t.Errorf("%v allocations per command", n)
	}
}
