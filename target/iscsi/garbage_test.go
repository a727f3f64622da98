package iscsi

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/pcaptest"

	"softiser/target/portal"
)

// mpaKey opens every MPA Request frame (RFC 5044 §7.1).
const mpaKey = "MPA ID Req Frame"

// bystander is a session that works on while others misbehave.
type bystander struct {
	stop chan struct{}
	done chan error
}

func (s *server) bystander() *bystander {
	s.t.Helper()
	r := s.second(200)
	b := &bystander{stop: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		data := pattern(8192, 9)
		for n := 0; ; n++ {
			select {
			case <-b.stop:
				b.done <- nil
				return
			default:
			}
			tag := r.command(command{cdb: cdbRW10(0x2a, 4096, 16), write: true, edtl: 8192, imm: data})
			if res := r.finish(tag, nil); res.status != 0 {
				b.done <- fmt.Errorf("write %d: status %#x, sense % x", n, res.status, res.sense)
				return
			}
		}
	}()
	return b
}

func (b *bystander) check(t *testing.T) {
	t.Helper()
	close(b.stop)
	if err := <-b.done; err != nil {
		t.Error("the bystander was disturbed: ", err)
	}
}

// send gives the server some bytes on a fresh connection, closes its side, and
// reads until the server closes too.
func (s *server) send(parts ...[]byte) {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer nc.Close()
	for _, p := range parts {
		if _, err := nc.Write(p); err != nil {
			return // it has closed already
		}
	}
	nc.(*net.TCPConn).CloseWrite()
	nc.SetReadDeadline(time.Now().Add(ioTime))
	buf := make([]byte, 4096)
	for {
		if _, err := nc.Read(buf); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				s.t.Errorf("the server keeps a connection that sent garbage (%d parts)", len(parts))
			}
			return
		}
	}
}

func TestGarbage(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Timeouts.FirstBytes, c.Timeouts.Login = time.Hour, time.Hour })
	by := s.bystander()
	rng := rand.New(rand.NewPCG(3, 4))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	var wg sync.WaitGroup
	run := func(parts ...[]byte) {
		wg.Add(1)
		go func() { defer wg.Done(); s.send(parts...) }()
	}
	for n := range 40 {
		run(random(n * 7))
		run([]byte(mpaKey), random(n))
		run([]byte{0x43, 0x87, 0, 0}, random(44), random(n*100))
		run([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		wg.Wait()
	}
	by.check(t)
	eventually(t, "all places for logins are free", func() bool { return s.listening.Pending() == 0 })
	if n := len(s.Status().Sessions); n != 1 {
		t.Errorf("%d sessions", n)
	}
	if got := s.Status().Portals[0].Garbage; got < 40 {
		t.Errorf("%d garbage connections counted, 40 HTTP requests were sent", got)
	}
}

// A good login and some commands, with one byte changed at a time.
func TestCorruptedSession(t *testing.T) {
	s := serve(t, func(c *serverConfig, tgt *Target) {
		unsolicitedAllowed(c, tgt)
		c.Timeouts.FirstBytes, c.Timeouts.Login = time.Hour, time.Hour
	})
	stream := recordSession(t, s)
	by := s.bystander()
	rng := rand.New(rand.NewPCG(5, 6))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	step := 1
	if testing.Short() {
		step = 7
	}
	for at := 0; at < len(stream); at += step {
		bad := append([]byte{}, stream...)
		bad[at] ^= byte(1 + rng.IntN(255))
		cut := len(bad)
		if at%3 == 0 {
			cut = at + 1 // and truncated
		}
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			s.send(bad[:cut])
			<-slots
		}()
	}
	wg.Wait()
	by.check(t)
	eventually(t, "only the bystander's session is left", func() bool { return len(s.Status().Sessions) == 1 })
	eventually(t, "its slots are free", func() bool { return s.Status().Sessions[0].Slots == 0 })
}

// recordSession returns the bytes that a well-behaved initiator sends.
func recordSession(t *testing.T, s *server) []byte {
	t.Helper()
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{Conn: nc}
	r := &rawInitiator{t: t, nc: rec, name: "iqn.2026-11.test:recorded", isid: iscsi.ISID{0x80, 9}, cmdSN: 1, itt: 0x10}
	defer nc.Close()
	r.mustLogin(testIQN, "InitialR2T=No", "FirstBurstLength=4096", "HeaderDigest=None")
	r.ready()
	r.nop([]byte("ping"))
	data := pattern(1024, 1)
	tag := r.command(command{cdb: cdbRW10(0x2a, 0, 2), write: true, edtl: 1024, imm: data[:512], more: true})
	r.dataOut(tag, iscsi.ReservedTag, 0, 512, data[512:], true)
	r.finish(tag, nil)
	r.read10(0, 2)
	r.sendTargets("")
	r.task(iscsi.AbortTaskSet, 0, iscsi.ReservedTag, 0)
	r.logout()
	return rec.sent
}

type recorder struct {
	net.Conn
	sent []byte
}

func (r *recorder) Write(p []byte) (int, error) {
	r.sent = append(r.sent, p...)
	return r.Conn.Write(p)
}

// What Linux initiators sent, byte for byte, and with one byte changed or cut
// off, against a target of the name that they wanted.
func TestCapturedStreams(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Timeouts.FirstBytes, c.Timeouts.Login = time.Hour, time.Hour
	})
	by := s.bystander()
	rng := rand.New(rand.NewPCG(7, 8))
	known := map[string]bool{}
	tried := 0
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	try := func(b []byte) {
		slots <- struct{}{}
		wg.Add(1)
		tried++
		go func() { defer wg.Done(); s.send(b); <-slots }()
	}
	variants := 24
	if testing.Short() {
		variants = 4
	}
	for _, name := range pcaptest.Names(t, "") {
		for _, c := range pcaptest.Open(t, name) {
			if !c.Complete || len(c.C2S) == 0 {
				continue
			}
			if _, rest, ok := bytes.Cut(c.C2S, []byte("TargetName=")); ok {
				iqn, _, _ := bytes.Cut(rest, []byte{0})
				if !known[string(iqn)] && s.AddTarget(Target{Name: string(iqn), LUNs: []LUN{s.memory(t, string(iqn), 1<<20)}}) == nil {
					known[string(iqn)] = true
				}
			}
			stream := c.C2S[:min(len(c.C2S), 64<<10)]
			try(stream)
			for range variants {
				bad := bytes.Clone(stream)
				at := rng.IntN(min(len(bad), 4096))
				bad[at] ^= byte(1 + rng.IntN(255))
				try(bad)
				try(stream[:at])
			}
		}
	}
	wg.Wait()
	by.check(t)
	if tried < 100 || len(known) == 0 {
		t.Errorf("only %d streams and %d targets came out of the captures", tried, len(known))
	}
	eventually(t, "all places for logins are free", func() bool { return s.listening.Pending() == 0 })
	eventually(t, "only the bystander's session is left", func() bool { return len(s.Status().Sessions) == 1 })
}

// More silent connections than there are places: the oldest go, and a login in
// the middle of it succeeds.
func TestFloodOfSilence(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Limits.PendingLogins = 16
		c.Timeouts.FirstBytes = time.Minute
	})
	by := s.bystander()
	var silent []net.Conn
	for range 80 {
		nc, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, nc)
		if len(silent)%20 == 0 {
			// All of them have come before the login, not while it is under way.
			eventually(t, "the silent ones have a place or have lost it", func() bool {
				return s.listening.Pending()+int(s.Status().Portals[0].Evicted) >= len(silent)
			})
			s.second(byte(len(silent))).logout()
		}
	}
	eventually(t, "the oldest are evicted", func() bool { return s.Status().Portals[0].Evicted >= 64 })
	if n := s.listening.Pending(); n > 16 {
		t.Errorf("%d connections wait for login, the limit is 16", n)
	}
	by.check(t)
	for _, nc := range silent {
		nc.Close()
	}
}

// FuzzConnection sends any bytes and ends its side; the server ends the connection. It
// has no time-out that could do that: an execution never waits for one.
func FuzzConnection(f *testing.F) {
	f.Add([]byte(mpaKey + "\x10\x02\x00\x08\x00\x80\x00\x01\x80\x00\x00\x00"))
	f.Add([]byte{0x43, 0x87})
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Add(make([]byte, 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := fuzzServer()
		s.t = t
		s.send(b)
	})
}

// fuzzServer is one server for all inputs of a fuzzing process; it ends with the
// tests.
var fuzzServer = sync.OnceValue(func() *server {
	cfg := serverConfig{Portals: []portal.Config{{Listen: "127.0.0.1:0"}}, Timeouts: serverTimeouts{time.Hour, Timeouts{Login: time.Hour}}}
	srv, err := newServer(cfg)
	if err == nil {
		err = srv.AddTarget(Target{Name: testIQN})
	}
	if err == nil {
		err = srv.Listen()
	}
	if err != nil {
		panic(err)
	}
	go srv.Serve(context.Background())
	atExit = append(atExit, func() { shutdown(srv) })
	return &server{testServer: srv, addr: srv.Addrs()[0]}
})

// What accept returns asks by itself whether a silent peer is still there.
func TestKeepAlive(t *testing.T) {
	s := serve(t, nil)
	s.session()
	c := s.sessionList(nil)[0].conns.list()[0]
	err := c.raw.Control(func(fd uintptr) {
		for _, o := range []struct{ level, opt, want int }{
			{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 60},
			{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 15}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 4},
		} {
			if got, err := syscall.GetsockoptInt(int(fd), o.level, o.opt); err != nil || got != o.want {
				t.Errorf("option %d/%d is %d, %v; want %d", o.level, o.opt, got, err, o.want)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
