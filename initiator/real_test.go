package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/mem"
	"softiser/initiator"
	"softiser/target"
	"softiser/target/scsi"
)

// Tests against the target of this project, over both transports.

const testIQN = "iqn.2026-11.softiser:test"

type server struct {
	*target.Server
	vol  blockdev.Device
	addr string
}

// serve runs a target with one volume in memory.
func serve(t testing.TB, size int64, change func(*target.Config, *target.Target)) *server {
	t.Helper()
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	cfg := target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0", StreamLogin: true, CRC: target.CRCOffered}}}
	tgt := target.Target{Name: testIQN, LUNs: []target.LUN{{Name: "disk0", LUConfig: scsi.LUConfig{LUN: 0, Volume: vol}}}}
	if change != nil {
		change(&cfg, &tgt)
	}
	srv, err := target.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.AddTarget(tgt); err != nil {
		t.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		done, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer stop()
		srv.Shutdown(done)
		<-served
		if err := vol.Close(); err != nil {
			t.Errorf("closing the volume: %v", err)
		}
	})
	return &server{srv, vol, srv.Addrs()[0]}
}

func (s *server) config(tr initiator.Transport) initiator.Config {
	return initiator.Config{Transport: tr, Address: s.addr, TargetName: testIQN, InitiatorName: "iqn.2026-11.softiser:me", LoginTimeout: time.Minute}
}

func openLUN(t testing.TB, cfg initiator.Config) *initiator.LUN {
	t.Helper()
	l, err := initiator.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// both runs f for iSER and for TCP.
func both(t *testing.T, f func(t *testing.T, tr initiator.Transport)) {
	for _, tr := range []initiator.Transport{initiator.TransportISER, initiator.TransportTCP} {
		t.Run(tr.String(), func(t *testing.T) { f(t, tr) })
	}
}

// A LUN is a block device like any other.
func TestBlockDevice(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		blockdevtest.Run(t, blockdevtest.Backend{Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
			s := serve(t, size, nil)
			cfg := s.config(tr)
			cfg.Pool = pool
			l, err := initiator.Open(context.Background(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}})
	})
}

func TestDiscover(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		s := serve(t, 1<<20, nil)
		cfg := s.config(tr)
		cfg.TargetName = ""
		ts, err := initiator.Discover(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if len(ts) != 1 || ts[0].Name != testIQN || len(ts[0].Portals) != 1 || ts[0].Portals[0] != (initiator.Portal{Address: s.addr, Group: 1}) {
			t.Fatalf("%+v", ts)
		}
	})
}

// IPv6 addresses stand in brackets everywhere.
func TestIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 here: ", err)
	} else {
		l.Close()
	}
	s := serve(t, 1<<20, func(c *target.Config, _ *target.Target) { c.Portals[0].Listen = "[::1]:0" })
	for _, scheme := range []string{"iser", "iscsi"} {
		cfg, err := initiator.ParseURL(scheme + "://" + s.addr + "/" + testIQN + "/0")
		if err != nil {
			t.Fatal(err)
		}
		l := openLUN(t, cfg)
		if _, err := l.WriteAt(make([]byte, 16384), 0); err != nil {
			t.Error(err)
		}
		ts, err := initiator.Discover(context.Background(), cfg)
		if err != nil || len(ts) != 1 || ts[0].Portals[0].Address != s.addr {
			t.Errorf("%+v, %v", ts, err)
		}
	}
}

func TestCHAP(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		s := serve(t, 1<<20, func(_ *target.Config, tgt *target.Target) {
			tgt.Auth = target.Auth{Users: []target.Credential{{Name: "joe", Secret: "initiator-secret"}}, Mutual: target.Credential{Name: "disk", Secret: "targets-secret-2"}}
		})
		good := initiator.Auth{User: "joe", Secret: "initiator-secret"}
		for _, alg := range []string{"md5", "sha1", "sha-256", "sha3-256", ""} {
			cfg := s.config(tr)
			cfg.Auth = good
			if alg != "" {
				cfg.Auth.Algorithms = []string{alg}
			}
			cfg.Auth.TargetUser, cfg.Auth.TargetSecret = "disk", "targets-secret-2"
			l := openLUN(t, cfg)
			if i := l.Sessions()[0].Info(); i.AuthUser != "joe" {
				t.Errorf("%s: authenticated as %q", alg, i.AuthUser)
			}
		}
		for name, a := range map[string]initiator.Auth{
			"wrong secret": {User: "joe", Secret: "wrong-secret-000"}, "wrong user": {User: "jim", Secret: "initiator-secret"}, "none": {},
			"wrong target": {User: "joe", Secret: "initiator-secret", TargetSecret: "not-the-targets-1"},
		} {
			cfg := s.config(tr)
			cfg.Auth = a
			_, err := initiator.Open(context.Background(), cfg)
			if err == nil {
				t.Errorf("%s: logged in", name)
			} else if !bytes.Contains([]byte(err.Error()), []byte("0201")) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Every way to negotiate data transfer moves the same bytes.
func TestNegotiations(t *testing.T) {
	s := serve(t, 4<<20, func(c *target.Config, _ *target.Target) { c.Session.AllowUnsolicited = true })
	for name, f := range map[string]func(c *initiator.Config){
		"iser":             func(c *initiator.Config) {},
		"iser no CRC":      func(c *initiator.Config) { c.CRC = initiator.CRCOff },
		"iser stream":      func(c *initiator.Config) { c.StreamLogin = true },
		"iser zerocopy":    func(c *initiator.Config) { c.Zerocopy = initiator.ZerocopyOn },
		"iser no imm":      func(c *initiator.Config) { c.NoImmediateData = true },
		"iser R2T":         func(c *initiator.Config) { c.InitialR2T = true },
		"iser small FPDUs": func(c *initiator.Config) { c.MaxFPDU = 1500 },
		"iser large FPDUs": func(c *initiator.Config) { c.LargeFPDU = true },
		"iser busy poll":   func(c *initiator.Config) { c.BusyPoll = 20 * time.Microsecond },
		"tcp":              func(c *initiator.Config) { c.Transport = initiator.TransportTCP },
		"tcp R2T":          func(c *initiator.Config) { c.Transport, c.InitialR2T = initiator.TransportTCP, true },
		"tcp R2T no imm": func(c *initiator.Config) {
			c.Transport, c.InitialR2T, c.NoImmediateData = initiator.TransportTCP, true, true
		},
		"tcp no imm": func(c *initiator.Config) { c.Transport, c.NoImmediateData = initiator.TransportTCP, true },
		"tcp small bursts": func(c *initiator.Config) {
			c.Transport, c.FirstBurstLength, c.MaxBurstLength, c.MaxRecvDataLength = initiator.TransportTCP, 512, 1024, 512
		},
		"tcp digests": func(c *initiator.Config) {
			c.Transport, c.HeaderDigest, c.DataDigest = initiator.TransportTCP, []string{"CRC32C"}, []string{"CRC32C"}
		},
		"tcp two sessions":  func(c *initiator.Config) { c.Transport, c.Sessions = initiator.TransportTCP, 2 },
		"iser two sessions": func(c *initiator.Config) { c.Sessions = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := s.config(initiator.TransportISER)
			f(&cfg)
			l := openLUN(t, cfg)
			rnd := rand.New(rand.NewPCG(1, uint64(len(name))))
			for _, n := range []int{512, 4096, 8192, 8704, 65536, 65536 + 512, 300 << 10, 2 << 20} {
				p := make([]byte, n)
				for i := range p {
					p[i] = byte(rnd.Uint32())
				}
				off := rnd.Int64N((4<<20-int64(n))/512+1) * 512
				if _, err := l.WriteAt(p, off); err != nil {
					t.Fatalf("write %d: %v", n, err)
				}
				got := make([]byte, n)
				if _, err := s.vol.ReadAt(got, off); err != nil || !bytes.Equal(got, p) {
					t.Fatalf("the volume does not hold the %d bytes that were written (%v)", n, err)
				}
				clear(got)
				if _, err := l.ReadAt(got, off); err != nil || !bytes.Equal(got, p) {
					t.Fatalf("read %d: different, %v", n, err)
				}
			}
			if wantRDMA := cfg.Transport == initiator.TransportISER; l.Sessions()[0].Info().RDMAExtensions != wantRDMA {
				t.Errorf("RDMAExtensions %v", !wantRDMA)
			}
		})
	}
}

// A portal that does not speak iSER: an error that says so, or TCP if that is
// allowed; and the session stays with what it found.
func TestFallback(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			s := serve(t, 1<<20, func(c *target.Config, _ *target.Target) { c.Portals[0].NoISER = true })
			cfg := s.config(initiator.TransportISER)
			cfg.StreamLogin = stream
			if _, err := initiator.Open(context.Background(), cfg); err == nil {
				t.Fatal("connected over TCP without being allowed to")
			} else {
				t.Log(err)
			}
			fell := make(chan initiator.Event, 4)
			cfg.FallbackTCP = true
			cfg.OnEvent = func(e initiator.Event) {
				if e.Kind == initiator.EventFallback {
					fell <- e
				}
			}
			l := openLUN(t, cfg)
			if i := l.Sessions()[0].Info(); i.RDMAExtensions || !bytes.Contains([]byte(i.Transport), []byte("TCP")) {
				t.Errorf("%+v", i)
			}
			if _, err := l.ReadAt(make([]byte, 4096), 0); err != nil {
				t.Error(err)
			}
			if !stream && len(fell) != 1 {
				t.Errorf("%d events about it", len(fell))
			}
		})
	}
}

// READs of 4 KiB and more and solicited WRITEs are not copied in user space, at
// neither end.
func TestPayloadIsNotCopied(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		s := serve(t, 8<<20, nil)
		cfg := s.config(tr)
		// Over TCP, only what is asked for by R2T is solicited.
		cfg.NoImmediateData = tr == initiator.TransportTCP
		l := openLUN(t, cfg)
		copied := func() [2]uint64 {
			c := [2]uint64{l.Stats().PayloadCopied}
			for _, x := range s.Status().Sessions {
				c[1] += x.BytesCopied
			}
			return c
		}
		// Touch the volume first: the page states of a fresh one are not at issue.
		big := make([]byte, 1<<20)
		for off := int64(0); off < 8<<20; off += 1 << 20 {
			if _, err := l.WriteAt(big, off); err != nil {
				t.Fatal(err)
			}
		}
		for _, write := range []bool{false, true} {
			for _, n := range []int{4096, 8192, 16384, 65536, 1 << 20} {
				if write && n < 16384 {
					continue // travels with its command
				}
				run := func(times int) {
					for range times {
						var err error
						if write {
							_, err = l.WriteAt(big[:n], 0)
						} else {
							_, err = l.ReadAt(big[:n], 0)
						}
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				// A receiver reads ahead by the pattern of the stream: the first
				// few of a new kind may find their first bytes read already.
				run(8)
				before := settled(copied)
				run(16)
				if after := settled(copied); after != before {
					t.Errorf("write %v: of 16 times %d bytes %d were copied by the initiator and %d by the target", write, n, after[0]-before[0], after[1]-before[1])
				}
			}
		}
	})
}

// The same with 32 commands in flight over iSER, from the first one on: payloads
// of many commands arrive together then.
func TestPayloadIsNotCopiedAtDepth(t *testing.T) {
	const depth = 32
	s := serve(t, depth<<20, nil)
	cfg := s.config(initiator.TransportISER)
	cfg.NoImmediateData = true
	l := openLUN(t, cfg)
	for off := int64(0); off < depth<<20; off += 1 << 20 {
		if _, err := l.WriteAt(make([]byte, 1<<20), off); err != nil {
			t.Fatal(err)
		}
	}
	copied := func() [2]uint64 {
		c := [2]uint64{l.Stats().PayloadCopied}
		for _, x := range s.Status().Sessions {
			c[1] += x.BytesCopied
		}
		return c
	}
	before := settled(copied)
	for _, n := range []int{4096, 65536, 1 << 20} {
		for _, write := range []bool{false, true} {
			var wg sync.WaitGroup
			for i := range depth {
				wg.Go(func() {
					buf := make([]byte, n)
					for range max(2, 64*4096/n) {
						var err error
						if write {
							_, err = l.WriteAt(buf, int64(i)<<20)
						} else {
							_, err = l.ReadAt(buf, int64(i)<<20)
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			after := settled(copied)
			if after != before {
				t.Errorf("write %v, %d bytes: %d bytes were copied by the initiator and %d by the target", write, n, after[0]-before[0], after[1]-before[1])
			}
			before = after
		}
	}
}

// settled reads counters until they stand still: a receiver publishes its own
// when it goes to sleep.
func settled(read func() [2]uint64) [2]uint64 {
	last := read()
	for same := 0; same < 3; {
		time.Sleep(2 * time.Millisecond)
		now := read()
		if same++; now != last {
			last, same = now, 0
		}
	}
	return last
}

// cutter forwards connections to a target and cuts each after a number of
// bytes, so that a connection ends in every phase and at every kind of place.
type cutter struct {
	l     net.Listener
	addr  string
	mu    sync.Mutex
	limit func() int64 // bytes in both directions until the next connection is cut; <0: never
	cuts  int
	wg    sync.WaitGroup
	conns map[net.Conn]bool
	dead  bool
}

func newCutter(t testing.TB, addr string, limit func() int64) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{l: l, addr: addr, limit: limit, conns: map[net.Conn]bool{}}
	c.wg.Add(1)
	go c.accept()
	t.Cleanup(c.close)
	return c
}

func (c *cutter) close() {
	c.l.Close()
	c.mu.Lock()
	c.dead = true
	for x := range c.conns {
		x.Close()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

func (c *cutter) accept() {
	defer c.wg.Done()
	for {
		in, err := c.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", c.addr)
		if err != nil {
			in.Close()
			continue
		}
		c.mu.Lock()
		if c.dead {
			c.mu.Unlock()
			in.Close()
			out.Close()
			return
		}
		left := c.limit()
		c.conns[in], c.conns[out] = true, true
		c.mu.Unlock()
		p := &pipe{c: c, a: in, b: out, left: left}
		c.wg.Add(2)
		go p.copy(in, out)
		go p.copy(out, in)
	}
}

// pipe is one connection through the cutter.
type pipe struct {
	c    *cutter
	a, b net.Conn
	mu   sync.Mutex
	left int64
	once sync.Once
}

func (p *pipe) copy(from, to net.Conn) {
	defer p.c.wg.Done()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		cut := false
		if p.left >= 0 {
			if int64(n) >= p.left {
				n, cut = int(p.left), true
			}
			p.left -= int64(n)
		}
		p.mu.Unlock()
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if cut {
			p.c.mu.Lock()
			p.c.cuts++
			p.c.mu.Unlock()
			err = io.EOF
		}
		if err != nil {
			p.once.Do(func() {
				p.a.Close()
				p.b.Close()
				p.c.mu.Lock()
				delete(p.c.conns, p.a)
				delete(p.c.conns, p.b)
				p.c.mu.Unlock()
			})
			return
		}
	}
}

// Connections that are cut in every phase (start-up, login, look at the LUN,
// commands, data) cost no byte of what was acknowledged.
func TestConnectionsAreCut(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		const size, depth = 1 << 20, 8
		s := serve(t, size, nil)
		rnd := rand.New(rand.NewPCG(7, uint64(tr)))
		first := true
		cut := newCutter(t, s.addr, func() int64 {
			if first { // the first login has to work
				first = false
				return 200_000
			}
			switch rnd.IntN(3) {
			case 0:
				return rnd.Int64N(1000) // start-up and login
			case 1:
				return 800 + rnd.Int64N(4000)
			}
			return 4000 + rnd.Int64N(400_000)
		})
		cfg := s.config(tr)
		cfg.Address = cut.l.Addr().String()
		cfg.SetBackoff(time.Millisecond, 20*time.Millisecond)
		l := openLUN(t, cfg)

		// Each slot writes its own blocks, reads them back and goes on.
		want := make([]byte, size)
		var wg sync.WaitGroup
		deadline := time.Now().Add(3 * time.Second)
		for w := range depth {
			wg.Add(1)
			go func() {
				defer wg.Done()
				rnd := rand.New(rand.NewPCG(uint64(w), 3))
				lo, n := w*size/depth, size/depth
				buf := make([]byte, 64<<10)
				for time.Now().Before(deadline) {
					k := 512 * (1 + rnd.IntN(64<<10/512-1))
					off := lo + 512*rnd.IntN((n-k)/512)
					p := buf[:k]
					for i := range p {
						p[i] = byte(rnd.Uint32())
					}
					if _, err := l.WriteAt(p, int64(off)); err != nil {
						t.Error(err)
						return
					}
					copy(want[off:], p)
					if _, err := l.ReadAt(p, int64(off)); err != nil {
						t.Error(err)
						return
					}
					if !bytes.Equal(p, want[off:off+k]) {
						t.Errorf("what was read at %d is not what was written", off)
						return
					}
				}
			}()
		}
		wg.Wait()
		cut.mu.Lock()
		cut.limit = func() int64 { return -1 }
		n := cut.cuts
		cut.mu.Unlock()
		got := make([]byte, size)
		if _, err := s.vol.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Error("the volume does not hold what was acknowledged")
		}
		st := l.Stats()
		if n < 3 || st.Losses == 0 || st.Replayed == 0 {
			t.Errorf("only %d cuts, %d losses, %d commands replayed: the test tested nothing", n, st.Losses, st.Replayed)
		}
		t.Logf("%d cuts, %d losses, %d failed logins, %d commands replayed of %d", n, st.Losses, st.LoginFailures, st.Replayed, st.Commands)
	})
}

// A capacity change reaches the initiator without a new login.
func TestResizeReachesTheInitiator(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		s := serve(t, 1<<20, nil)
		l := openLUN(t, s.config(tr))
		sizes := make(chan int64, 8)
		defer l.OnResize(func(i blockdev.Info) { sizes <- i.Size })()
		if err := s.vol.(blockdev.Resizer).Resize(2 << 20); err != nil {
			t.Fatal(err)
		}
		timeout := time.After(20 * time.Second)
		buf := make([]byte, 512)
		for {
			if _, err := l.ReadAt(buf, 0); err != nil {
				t.Fatal(err)
			}
			select {
			case n := <-sizes:
				if n != 2<<20 {
					t.Fatalf("told %d", n)
				}
				if st := l.Stats(); st.Logins != 1 {
					t.Fatalf("%d logins", st.Logins)
				}
				return
			case <-timeout:
				t.Fatal("never told")
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

func TestCompareAndWriteReal(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		s := serve(t, 1<<20, nil)
		l := openLUN(t, s.config(tr))
		p := append(make([]byte, 512), bytes.Repeat([]byte{9}, 512)...)
		r := &initiator.Request{Op: initiator.OpCompareAndWrite, Off: 1024, Buf: p}
		if err := l.Do(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 512)
		if _, err := s.vol.ReadAt(got, 1024); err != nil || got[0] != 9 {
			t.Fatalf("%v, byte %d", err, got[0])
		}
		if err := l.Do(context.Background(), r); err == nil {
			t.Fatal("a miscompare succeeded")
		} else if want := "MISCOMPARE"; !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Fatal(err)
		}
	})
}

// Many sessions at once, each with commands in flight.
func TestManySessions(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		s := serve(t, 4<<20, nil)
		const n = 64
		errs := make(chan error, n)
		for i := range n {
			go func() {
				cfg := s.config(tr)
				l, err := initiator.Open(context.Background(), cfg)
				if err != nil {
					errs <- err
					return
				}
				p := bytes.Repeat([]byte{byte(i + 1)}, 32<<10)
				got := make([]byte, len(p))
				off := int64(i) * int64(len(p))
				for range 4 {
					if _, err = l.WriteAt(p, off); err == nil {
						_, err = l.ReadAt(got, off)
					}
					if err == nil && !bytes.Equal(got, p) {
						err = fmt.Errorf("session %d read something else", i)
					}
					if err != nil {
						break
					}
				}
				errs <- errors.Join(err, l.Close())
			}()
		}
		for range n {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}
