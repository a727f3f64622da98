package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/mem"
	"softiser/initiator"
	"softiser/internal/loopback"
	"softiser/rdma/rdmatest"
	"softiser/target"
	"softiser/target/scsi"
	"softiser/target/targettest"
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
	t.Cleanup(func() {
		if err := vol.Close(); err != nil {
			t.Errorf("closing the volume: %v", err)
		}
	})
	targettest.Serve(t, srv)
	return &server{srv, vol, srv.Addrs()[0]}
}

// serveOver is serve with a portal for the transport, at s.addr.
func serveOver(t testing.TB, tr initiator.Transport, size int64, change func(*target.Config, *target.Target)) *server {
	t.Helper()
	if tr != initiator.TransportRoCE {
		return serve(t, size, change)
	}
	s := serve(t, size, func(c *target.Config, tgt *target.Target) {
		if change != nil {
			change(c, tgt)
		}
		c.Portals = append(c.Portals, rocePortal())
	})
	s.addr = s.Addrs()[len(s.Addrs())-1]
	return s
}

// rocePortal is a portal for RoCE at an address that nobody else has.
func rocePortal() target.Portal {
	return target.Portal{Listen: "roce://" + net.JoinHostPort(rdmatest.RoCEAddr().String(), "0"), Group: 2}
}

func (s *server) config(tr initiator.Transport) initiator.Config {
	c := initiator.Config{Transport: tr, Address: s.addr, TargetName: testIQN, InitiatorName: "iqn.2026-11.softiser:me", LoginTimeout: time.Minute}
	if tr == initiator.TransportRoCE {
		c.LocalAddress = rdmatest.RoCEAddr()
	}
	return c
}

// openLUN opens a LUN, and closes it at the end of the test unless that has done so.
func openLUN(t testing.TB, cfg initiator.Config) *initiator.LUN {
	t.Helper()
	l, err := initiator.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, blockdev.ErrClosed) {
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

// everywhere runs f for iSER, for TCP and for iSER over RoCE.
func everywhere(t *testing.T, f func(t *testing.T, tr initiator.Transport)) {
	both(t, f)
	t.Run(initiator.TransportRoCE.String(), func(t *testing.T) { f(t, initiator.TransportRoCE) })
}

// A LUN is a block device like any other.
func TestBlockDevice(t *testing.T) {
	everywhere(t, func(t *testing.T, tr initiator.Transport) {
		blockdevtest.Run(t, blockdevtest.Backend{Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
			s := serveOver(t, tr, size, nil)
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
	everywhere(t, func(t *testing.T, tr initiator.Transport) {
		s := serveOver(t, tr, 1<<20, nil)
		cfg := s.config(tr)
		cfg.TargetName = ""
		ts, err := initiator.Discover(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if len(ts) != 1 || ts[0].Name != testIQN || len(ts[0].Portals) != 1 || ts[0].Portals[0].Address != s.addr {
			t.Fatalf("%+v", ts)
		}
	})
}

// IPv6 addresses stand in brackets everywhere.
func TestIPv6(t *testing.T) {
	loopback.NeedIPv6(t)
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
	everywhere(t, func(t *testing.T, tr initiator.Transport) {
		s := serveOver(t, tr, 1<<20, func(_ *target.Config, tgt *target.Target) {
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
		"tcp busy poll": func(c *initiator.Config) {
			c.Transport, c.BusyPoll = initiator.TransportTCP, 20*time.Microsecond
		},
		"tcp":     func(c *initiator.Config) { c.Transport = initiator.TransportTCP },
		"tcp R2T": func(c *initiator.Config) { c.Transport, c.InitialR2T = initiator.TransportTCP, true },
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

// The segment of a long CDB takes no room that the command's data needs: what does not fit
// beside it is fetched.
func TestLongCDBWithData(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		l := openLUN(t, serve(t, 1<<20, nil).config(tr))
		cdb := make([]byte, 32) // of an operation that no target has
		cdb[0], cdb[7] = 0x7f, 24
		most := int(l.Sessions()[0].Info().MaxXmitDataLength)
		for _, n := range []int{512, most - 24, most - 16, most - 1, most, most + 1} {
			err := l.Do(t.Context(), &initiator.Request{Op: initiator.OpCDB, CDB: cdb, Buf: make([]byte, n)})
			var sense *initiator.SenseError
			if !errors.As(err, &sense) {
				t.Fatalf("%d bytes: %v", n, err)
			}
		}
	})
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

// A capacity change reaches the initiator without a new login.
func TestResizeReachesTheInitiator(t *testing.T) {
	everywhere(t, func(t *testing.T, tr initiator.Transport) {
		s := serveOver(t, tr, 1<<20, nil)
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
	everywhere(t, func(t *testing.T, tr initiator.Transport) {
		s := serveOver(t, tr, 1<<20, nil)
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
	everywhere(t, func(t *testing.T, tr initiator.Transport) {
		s := serveOver(t, tr, 4<<20, nil)
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

// Another volume behind the number of a LUN that is in use: nothing is written to
// it, not even by a command that was on its way, and no flush says that what was
// written before is safe. A memory volume that begins anew is another one.
func TestAnotherVolumeBehindTheLUN(t *testing.T) {
	t.Run("another", func(t *testing.T) { both(t, anotherVolume("another")) })
	t.Run("the same name", func(t *testing.T) { both(t, anotherVolume("disk")) })
}

func anotherVolume(name string) func(*testing.T, initiator.Transport) {
	return func(t *testing.T, tr initiator.Transport) {
		s := serve(t, 1<<20, func(_ *target.Config, tgt *target.Target) {
			first, err := mem.Open(mem.Config{Name: "disk", Size: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { first.Close() })
			tgt.LUNs[0].Volume = first
		})
		l, err := initiator.Open(context.Background(), s.config(tr))
		if err != nil {
			t.Fatal(err)
		}
		p := bytes.Repeat([]byte{7}, 4096)
		if _, err := l.WriteAt(p, 0); err != nil {
			t.Fatal(err)
		}
		if err := s.RemoveLUN(t.Context(), testIQN, 0); err != nil {
			t.Fatal(err)
		}
		other, err := mem.Open(mem.Config{Name: name, Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.AddLUN(testIQN, target.LUN{Name: "another", LUConfig: scsi.LUConfig{Volume: other}}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.WriteAt(p, 8192); !errors.Is(err, initiator.ErrLUNChanged) {
			t.Errorf("a write to another volume than was opened: %v", err)
		}
		if err := l.Flush(); !errors.Is(err, initiator.ErrLUNChanged) {
			t.Errorf("a flush of another volume than was opened: %v", err)
		}
		got := make([]byte, 1<<20)
		if _, err := other.ReadAt(got, 0); err != nil || bytes.IndexByte(got, 7) >= 0 {
			t.Errorf("the other volume was written to (%v)", err)
		}
		_ = l.Close()
		if err := s.RemoveLUN(t.Context(), testIQN, 0); err != nil {
			t.Error(err)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
}
