package nbd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/await"
)

// rested brings s to rest, whose requests end.
func rested(t testing.TB, s *Server) (under int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	under, err := s.Rest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return under
}

// connected negotiates with s at path, and returns when s has listed the connection, the only one:
// that comes after the answer to GO.
func connected(t testing.TB, s *Server, path string) *client {
	t.Helper()
	c := connect(t, path, "vol")
	await.True(t, "the server has it", func() bool { return len(s.connList()) == 1 })
	return c
}

// over gives the connections of one server at rest to another one, as from process to
// process: the state as text, the descriptors beside it. The first one's connections end as
// those of a process do that has ended, without a word.
func over(t testing.TB, from, to *Server) Carried {
	t.Helper()
	k, left, err := from.Carry()
	if err != nil || len(left) != 0 {
		t.Fatal(err, left)
	}
	var fds []int
	k.Files(func(fd, index *int) {
		*index = len(fds)
		fds = append(fds, *fd)
	})
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	var got Carried
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if err := to.Check(&got, len(fds)); err != nil {
		t.Fatal(err)
	}
	for i := range got.Conns {
		c := &got.Conns[i]
		c.FD, c.Bulk = fds[c.File], -1
		if c.Bytes > 0 {
			c.Bulk = fds[c.Bytes-1]
		}
	}
	p, err := to.Prepare(&got)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range from.connList() {
		c.nc.Close()
	}
	from.Resume()
	await.True(t, "the connections have ended", func() bool { return len(from.connList()) == 0 || under(from) > 0 })
	p.Begin()
	return k
}

// A client may be anywhere in what it says when its server is replaced: between requests, in
// the header of one, in its payload, in the payload of one that is refused. It sees nothing
// of it, whatever it had been answered and whatever not.
func TestCarriedAtEveryByte(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	a, path := serveLUN(t, l)
	b, _ := serveLUN(t, l)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1024/16)
	said := bytes.Join([][]byte{
		requestBytes(0, CmdWrite, 1, 4096, 1024), data,
		requestBytes(0, CmdWrite, 2, 1<<20, 512), data[:512], // behind the end
		requestBytes(0, CmdRead, 3, 4096, 1024),
		requestBytes(0, CmdFlush, 4, 0, 0),
	}, nil)
	for cut := 0; cut <= len(said); cut++ {
		if in := cut % (requestSize + 1024); cut < 1600 && in > requestSize && in%131 != 0 {
			continue // one byte of payload is as another
		}
		func() {
			c := connected(t, a, path)
			defer c.nc.Close()
			c.write(said[:cut])
			rested(t, a)
			if k := over(t, a, b); len(k.Conns) != 1 || k.Conns[0].Replay != 0 {
				t.Fatalf("cut at %d: %+v", cut, k)
			}
			c.write(said[cut:])
			for range 4 {
				r := c.recv(0)
				want := map[uint64]uint32{1: 0, 2: errNoSpace, 3: 0, 4: 0}[r.cookie]
				if r.errno != want {
					t.Fatalf("cut at %d: reply %+v", cut, r)
				}
				if r.cookie == 3 && !bytes.Equal(r.data, data) && !bytes.Equal(r.data, make([]byte, 1024)) {
					t.Fatalf("cut at %d: other data", cut)
				}
			}
			if r := c.do(0, CmdRead, 4096, 1024, nil); !bytes.Equal(r.data, data) {
				t.Fatalf("cut at %d: what was written is not there", cut)
			}
			if r := c.do(0, CmdBlockStatus, 0, 1<<20, nil); r.typ != chunkBlockStatus {
				t.Fatalf("cut at %d: what was negotiated is forgotten: %+v", cut, r)
			}
		}()
	}
}

// A write behind the end that has come in part is refused, also where the next process finds that the
// volume has grown: what had come of its data is gone.
func TestCarriedRefusedAndGrown(t *testing.T) {
	la, lb := newMemLUN(t, 1<<20), newMemLUN(t, 2<<20)
	a, path := serveLUN(t, la)
	b, _ := serveLUN(t, lb)
	c := connected(t, a, path)
	data := bytes.Repeat([]byte{0x5a}, 1024)
	c.write(bytes.Join([][]byte{
		requestBytes(0, CmdRead, 1, 0, 512),
		requestBytes(0, CmdWrite, 2, 1<<20, 1024), data[:512],
	}, nil))
	c.recv(0) // the read ahead has brought the rest as well, and it is looked at, as a rule
	rested(t, a)
	over(t, a, b)
	c.write(data[512:])
	want := make([]byte, 1024)
	switch r := c.recv(0); r.errno {
	case errNoSpace:
	case 0: // nobody had looked at it
		want = data
	default:
		t.Fatalf("%+v", r)
	}
	if !bytes.Equal(lb.content()[1<<20:][:1024], want) {
		t.Fatal("the volume has neither what was written nor what was there")
	}
}

// A write of 1 MiB goes straight into its place; its client may stop in the middle of that.
func TestCarriedInALongWrite(t *testing.T) {
	l := newMemLUN(t, 4<<20)
	a, path := serveLUN(t, l)
	b, _ := serveLUN(t, l)
	data := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{7}).Read(data)
	said := append(requestBytes(0, CmdWrite, 9, 1<<20, 1<<20), data...)
	for _, cut := range []int{requestSize, requestSize + 1, 64 << 10, 600_001, len(said) - 1} {
		c := connected(t, a, path)
		c.write(said[:cut])
		rested(t, a)
		over(t, a, b)
		c.write(said[cut:])
		if r := c.recv(0); r.errno != 0 || !bytes.Equal(l.content()[1<<20:2<<20], data) {
			t.Fatalf("cut at %d: %+v", cut, r)
		}
		c.nc.Close()
		clear(l.data)
	}
}

// What a client does not take goes with it, and leaves in order.
func TestCarriedUnsent(t *testing.T) {
	l := newMemLUN(t, 4<<20)
	rand.NewChaCha8([32]byte{1}).Read(l.data)
	a, path := serveLUN(t, l)
	b, _ := serveLUN(t, l)
	c := connected(t, a, path)
	const n = 24 // MiB: more than the socket takes
	for i := range n {
		c.send(0, CmdRead, uint64(i), uint64(i%4)<<20, 1<<20, nil)
	}
	await.True(t, "every read has been carried out", func() bool {
		x := a.connList()[0]
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.inFlight == 0 && x.pool.out > 8
	})
	rested(t, a)
	k := over(t, a, b)
	if k.Conns[0].Unsent < 1<<20 {
		t.Fatalf("%d bytes have not left; the test shows nothing", k.Conns[0].Unsent)
	}
	seen := map[uint64]bool{}
	for range n {
		r := c.recv(1 << 20)
		if off := int(r.cookie%4) << 20; r.errno != 0 || seen[r.cookie] || !bytes.Equal(r.data, l.data[off:off+1<<20]) {
			t.Fatalf("reply to %d, seen %v: errno %d", r.cookie, seen[r.cookie], r.errno)
		}
		seen[r.cookie] = true
	}
}

// Requests that do not end are told, and are given to the volume once more by the next
// process; those that end meanwhile are not answered twice.
func TestCarriedUnderWay(t *testing.T) {
	la, lb := newMemLUN(t, 1<<20), newMemLUN(t, 1<<20)
	held := make(chan struct{})
	la.hook = func(*blockio.Request) error { <-held; return nil }
	a, path := serveLUN(t, la)
	b, _ := serveLUN(t, lb)
	c := connect(t, path, "vol")
	data := bytes.Repeat([]byte{0x5a}, 512)
	c.send(0, CmdWrite, 1, 512, 512, data)
	c.send(0, CmdRead, 2, 0, 512, nil)
	c.send(0, CmdFlush, 3, 0, 0, nil)
	c.send(0, CmdTrim, 4, 8192, 512, nil)
	await.True(t, "four requests are under way", func() bool { return under(a) == 4 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // patience ends when nothing is left to come but these
		await.Until(func() bool { return a.all(func(x stillness) bool { return !x.reads }) })
		cancel()
	}()
	if n, err := a.Rest(ctx); err != nil || n != 4 {
		t.Fatalf("%d requests are under way, %v", n, err)
	}
	k := over(t, a, b)
	close(held)
	if k.Conns[0].Replay != 4 {
		t.Errorf("%+v", k)
	}
	seen := map[uint64]bool{}
	for range 4 {
		r := c.recv(0)
		if r.errno != 0 || seen[r.cookie] {
			t.Errorf("%+v", r)
		}
		seen[r.cookie] = true
	}
	if len(seen) != 4 || !bytes.Equal(lb.content()[512:1024], data) || lb.flush.Load() != 1 {
		t.Errorf("seen %v, %d flushes", seen, lb.flush.Load())
	}
	if r := c.do(0, CmdFlush, 0, 0, nil); r.errno != 0 {
		t.Errorf("afterwards: %+v", r)
	}
}

// A write that is refused may wait for a slot with all of its payload read and dropped. It goes to the
// next process whole: what follows it is no payload.
func TestCarriedRefusedWithoutASlot(t *testing.T) {
	la, lb := newMemLUN(t, 1<<20), newMemLUN(t, 1<<20)
	held := make(chan struct{})
	la.hook = func(*blockio.Request) error { <-held; return nil }
	a, path := serveUnix(t, Config{Exports: []*Export{{Name: "vol", LUN: la}}, Depth: 1})
	b, _ := serveLUN(t, lb)
	c := connected(t, a, path)
	data := bytes.Repeat([]byte{0x5a}, 512)
	c.write(bytes.Join([][]byte{
		requestBytes(0, CmdWrite, 1, 0, 512), data, // has the only slot
		requestBytes(0, CmdWrite, 2, 1<<20, 512), data, // behind the end
		requestBytes(0, CmdWrite, 3, 512, 512), data,
	}, nil))
	await.True(t, "the refused write waits for the slot", func() bool {
		x := a.connList()[0]
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.waiting && x.inFlight == 1
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		await.Until(func() bool { return a.all(func(x stillness) bool { return !x.reads }) })
		cancel()
	}()
	if n, err := a.Rest(ctx); err != nil || n != 1 {
		t.Fatalf("%d requests are under way, %v", n, err)
	}
	over(t, a, b)
	close(held)
	for range 3 {
		r := c.recv(0)
		if want := map[uint64]uint32{1: 0, 2: errNoSpace, 3: 0}[r.cookie]; r.errno != want {
			t.Errorf("reply %+v, want %d", r, want)
		}
	}
	if !bytes.Equal(lb.content()[:1024], bytes.Repeat(data, 2)) {
		t.Error("what was written is not there")
	}
}

func under(s *Server) (n int) {
	for _, c := range s.connList() {
		n += c.stillness().under
	}
	return n
}

// A handover that comes to nothing, at any moment of a load, is a pause.
func TestRestAndResume(t *testing.T) {
	l := newMemLUN(t, 4<<20)
	s, path := serveLUN(t, l)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	counts := make([]atomic.Int64, 3)
	for i := range counts {
		c := connect(t, path, "vol")
		c.nc.SetDeadline(time.Time{}) // fifty rests on a loaded machine take as long as they take
		wg.Go(func() {
			at, size := uint64(i)<<20, uint32(4096<<(3*i)) // 4, 32, 256 KiB
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				p := bytes.Repeat([]byte{byte(n), byte(i)}, int(size/2))
				if r := c.do(0, CmdWrite, at, size, p); r.errno != 0 {
					t.Errorf("write %d: %+v", n, r)
					return
				}
				if r := c.do(0, CmdRead, at, size, nil); !bytes.Equal(r.data, p) {
					t.Errorf("read %d: other data", n)
					return
				}
				counts[i].Add(1)
			}
		})
	}
	await.True(t, "the server has them", func() bool { return len(s.connList()) == len(counts) })
	for range 50 {
		if n := rested(t, s); n != 0 {
			t.Fatalf("%d requests under way", n)
		}
		k, left, err := s.Carry()
		if err != nil || len(left) != 0 || len(k.Conns) != 3 {
			t.Fatalf("%+v, %v, %v", k, left, err)
		}
		k.Discard()
		s.Resume()
	}
	await.True(t, "every client has done something", func() bool {
		return t.Failed() || min(counts[0].Load(), counts[1].Load(), counts[2].Load()) > 0
	})
	close(stop)
	wg.Wait()
}

// One who is in its handshake is listed and not carried, and goes on when nothing comes of it.
func TestRestInHandshake(t *testing.T) {
	s, path := serveLUN(t, newMemLUN(t, 1<<20))
	c := dial(t, path)
	rested(t, s)
	k, left, err := s.Carry()
	if err != nil || len(k.Conns) != 0 || len(left) != 1 || !strings.Contains(left[0], "handshake") {
		t.Errorf("%+v, %q, %v", k, left, err)
	}
	// It may end its handshake meanwhile: then it rests.
	if typ, _ := c.option(optStructuredReply, nil); typ != repAck {
		t.Fatal(typ)
	}
	c.structured = true
	c.goExport("vol")
	c.send(0, CmdRead, 1, 0, 512, nil)
	s.Resume()
	if r := c.recv(0); r.errno != 0 || len(r.data) != 512 {
		t.Errorf("%+v", r)
	}
}

// A handshake that ends when Rest has seen who there is, whatever moment that is, keeps nobody
// from going: its connection is named and stays.
func TestHandshakeEndsAfterRest(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	a, path := serveLUN(t, l)
	first := connected(t, a, path)
	late := dial(t, path)
	await.True(t, "its handshake has begun", func() bool { return a.negotiating() == 1 })
	rested(t, a)
	if typ, _ := late.option(optStructuredReply, nil); typ != repAck {
		t.Fatal(typ)
	}
	late.structured = true
	late.goExport("vol")
	await.True(t, "the server has listed both", func() bool { return len(a.connList()) == 2 })
	k, left, err := a.Carry()
	k.Discard()
	if err != nil || len(k.Conns) != 1 || len(left) != 1 || !strings.Contains(left[0], "1 NBD connection") {
		t.Fatalf("%+v, %q, %v", k, left, err)
	}
	a.Resume() // nothing came of it: both go on
	for _, c := range []*client{first, late} {
		if r := c.do(0, CmdRead, 0, 512, nil); r.errno != 0 || len(r.data) != 512 {
			t.Errorf("%+v", r)
		}
	}
}

// Clients who are told of a lost cache one by one are that in the next process, too.
func TestCarriedClients(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	a, path := serveLUN(t, l)
	b, _ := serveLUN(t, l)
	c := connect(t, path, "vol")
	c.do(0, CmdFlush, 0, 0, nil)
	rested(t, a)
	for _, x := range a.connList() {
		x.client = new(blockio.Flusher).Resume(41)
	}
	over(t, a, b)
	c.do(0, CmdFlush, 0, 0, nil)
	if all := b.connList(); len(all) != 1 || all[0].client.Told() != 41 {
		t.Errorf("%d connections", len(all))
	}
}

// Whatever comes as the state of connections is refused for a reason, or served.
func FuzzCarried(f *testing.F) {
	add := func(k Carried, bulk string) {
		b, err := json.Marshal(k)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte(bulk))
	}
	one := CarriedConnection{Export: "vol", Structured: true}
	add(Carried{Clients: []uint32{1}, Conns: []CarriedConnection{one}}, "")
	one.Unread, one.Unsent, one.Bytes = 28, 3, 2
	add(Carried{Clients: []uint32{1}, Conns: []CarriedConnection{one}}, string(requestBytes(0, CmdRead, 1, 0, 512))+"abc")
	one.Unread = 1 << 40
	add(Carried{Clients: []uint32{1}, Conns: []CarriedConnection{one, one}}, "short")
	one.Client, one.File = -1, 7
	add(Carried{Conns: []CarriedConnection{one}}, "")
	f.Add([]byte(`{"connections":[{"export":"nope","unread":-1,"bulk":-5}]}`), []byte(nil))
	lun := &memLUN{info: blockdev.Info{Size: 1 << 20, BlockSize: 512}}
	s, err := NewServer(Config{Exports: []*Export{{Name: "vol", LUN: lun}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, bulk []byte) {
		var k Carried
		if json.Unmarshal(text, &k) != nil || s.Check(&k, 2) != nil {
			return
		}
		for i := range k.Conns {
			c := &k.Conns[i]
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(pair[1])
			c.FD, c.Bulk = pair[0], -1
			if c.Bytes > 0 {
				if c.Bulk, err = bulkFile([][]byte{bulk}); err != nil {
					t.Fatal(err)
				}
			}
		}
		p, err := s.Prepare(&k)
		if err != nil {
			return
		}
		p.Discard()
		for _, c := range k.Conns {
			if c.FD >= 0 || c.Bulk >= 0 || c.Unread+c.Unsent > len(bulk) {
				t.Errorf("%+v with %d bytes", c, len(bulk))
			}
		}
	})
}

// A descriptor that is no socket is refused, and nothing is left of the others.
func TestPrepareRefuses(t *testing.T) {
	s, err := NewServer(Config{Exports: []*Export{{Name: "vol", LUN: newMemLUN(t, 1<<20)}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 2} {
		k := Carried{Clients: []uint32{0}}
		for i := range 3 {
			fd, err := bulkFile([][]byte{[]byte("no socket")})
			if err != nil {
				t.Fatal(err)
			}
			if i != n {
				unix.Close(fd)
				pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				unix.Close(pair[1])
				fd = pair[0]
			}
			k.Conns = append(k.Conns, CarriedConnection{FD: fd, Bulk: -1, Export: "vol"})
		}
		if _, err := s.Prepare(&k); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("connection %d", n)) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// Of a disconnect the owner of a kernel device is told, also by the process that has taken the device over; of those of
// other clients it is not.
func TestDisconnectOfADevice(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	a, path := serveLUN(t, l)
	b, _ := serveLUN(t, l)
	told := make(chan *Server, 8)
	for _, s := range []*Server{a, b} {
		s.cfg.OnDisconnect = func() { told <- s }
	}
	device := func() *client {
		ours, theirs := socketPair(t)
		go a.ServeKernel(theirs, a.exports[0], l.NewFlusher())
		c := &client{t: t, nc: ours}
		if r := c.do(0, CmdRead, 0, 512, nil); r.errno != 0 {
			t.Fatalf("read: %d", r.errno)
		}
		return c
	}
	disc := requestBytes(0, CmdDisc, 9, 0, 0)
	connect(t, path, "vol").write(disc)
	await.True(t, "the client is gone", func() bool { return len(a.connList()) == 0 })
	device().write(disc)
	if s := <-told; s != a {
		t.Error("not by the server of the device")
	}
	await.True(t, "the device is gone", func() bool { return len(a.connList()) == 0 })
	c := device()
	rested(t, a)
	over(t, a, b)
	c.write(disc)
	if s := <-told; s != b {
		t.Error("not by the server that took the device over")
	}
	if len(told) > 0 {
		t.Errorf("told %d times more", len(told))
	}
}
