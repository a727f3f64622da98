package iscsitcp

import (
	"io"
	"math/rand"
	"net"
	"runtime"
	"sync"
	"testing"

	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/loopback"
	"softiser/internal/sockio"
)

// relayPair connects two sockets through a relay that forwards pieces of the
// sizes that next returns.
func relayPair(t testing.TB, next func() int) (client, server net.Conn) {
	client, a := loopback.Pair(t)
	b, server := loopback.Pair(t)
	forward := func(from, to *net.TCPConn) {
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf[:min(next(), len(buf))])
			if n > 0 && err == nil {
				_, err = to.Write(buf[:n])
			}
			switch {
			case err == io.EOF:
				to.CloseWrite()
				return
			case err != nil: // a reset on one side reaches the other
				a.Close()
				b.Close()
				return
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { forward(a, b) })
	both.Go(func() { forward(b, a) })
	go func() {
		both.Wait()
		a.Close()
		b.Close()
	}()
	return client, server
}

func ends(t testing.TB, a, b net.Conn, cfg Config) (i, g *Conn) {
	t.Helper()
	i, err := New(a, iscsi.RoleInitiator, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if g, err = New(b, iscsi.RoleTarget, cfg); err != nil {
		t.Fatal(err)
	}
	return i, g
}

func pairWith(cfg Config) datamovertest.Pair {
	return func(t testing.TB) (iscsi.Datamover, iscsi.Datamover) {
		a, b := loopback.Pair(t)
		i, g := ends(t, a, b, cfg)
		return i, g
	}
}

// noLeaks fails if receive buffers are out or goroutines are left.
func noLeaks(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		if !await.Until(func() bool { return BuffersOut() == 0 && runtime.NumGoroutine() <= before }) {
			buf := make([]byte, 1<<20)
			t.Errorf("%d receive buffers are out, %d goroutines were %d:\n%s", BuffersOut(), runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	})
}

func TestConformance(t *testing.T) {
	digests := datamovertest.DefaultOptions()
	digests.Initiator.HeaderDigest = []iscsi.Digest{iscsi.DigestCRC32C}
	digests.Initiator.DataDigest = []iscsi.Digest{iscsi.DigestCRC32C}

	small := datamovertest.DefaultOptions()
	small.Initiator.MaxRecvDataSegmentLength, small.Target.MaxRecvDataSegmentLength = 1000, 4100
	small.Initiator.MaxBurstLength, small.Initiator.FirstBurstLength = 5000, 3000

	header := digests
	header.Initiator.DataDigest = []iscsi.Digest{iscsi.DigestNone}
	header.Initiator.DataPDUInOrder, header.Target.DataPDUInOrder = false, false

	for _, c := range []struct {
		name string
		cfg  Config
		o    datamovertest.Options
	}{
		{"Default", Config{}, datamovertest.DefaultOptions()},
		{"Digests", Config{}, digests},
		{"SmallSegments", Config{}, small},
		{"HeaderDigestUnordered", Config{}, header},
	} {
		t.Run(c.name, func(t *testing.T) {
			noLeaks(t)
			datamovertest.RunWith(t, pairWith(c.cfg), c.o)
		})
	}
}

// The stream cut at every kind of place.
func TestConformanceInPieces(t *testing.T) {
	for name, next := range map[string]func() int{
		"Headers": func() int { return 48 },
		"Random":  func() int { return 1 + rand.Intn(5000) },
		"Odd":     func() int { return 1 + rand.Intn(100) },
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			o := datamovertest.DefaultOptions()
			if name == "Random" {
				o.Initiator.HeaderDigest = []iscsi.Digest{iscsi.DigestCRC32C}
				o.Initiator.DataDigest = []iscsi.Digest{iscsi.DigestCRC32C}
			}
			s := datamovertest.Open(t, func(t testing.TB) (iscsi.Datamover, iscsi.Datamover) {
				a, b := relayPair(t, next)
				i, g := ends(t, a, b, Config{})
				return i, g
			}, o)
			buf := make([]byte, 70000)
			for i := range 20 {
				n := 1 + (i*7919)%len(buf)
				if err := s.Initiator.Do(0x28, uint32(i), [][]byte{buf[:n]}, byte(i%3), byte(1+i%3)); err != nil {
					t.Fatal(err)
				}
				if err := s.Initiator.Do(0x2a, uint32(i), [][]byte{buf[:n]}, byte(i%3), byte(1+i%3)); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()
		})
	}
}

// One byte at a time, so that every PDU is cut everywhere.
func TestByteByByte(t *testing.T) {
	noLeaks(t)
	o := datamovertest.DefaultOptions()
	o.Initiator.HeaderDigest = []iscsi.Digest{iscsi.DigestCRC32C}
	o.Initiator.DataDigest = []iscsi.Digest{iscsi.DigestCRC32C}
	o.Initiator.ImmediateData = false
	o.Initiator.InitialR2T = true
	s := datamovertest.Open(t, func(t testing.TB) (iscsi.Datamover, iscsi.Datamover) {
		a, b := relayPair(t, func() int { return 1 })
		i, g := ends(t, a, b, Config{})
		return i, g
	}, o)
	defer s.Close()
	buf := make([]byte, 5001)
	if err := s.Initiator.Do(0x28, 3, [][]byte{buf[:2000], buf[2000:]}, 2, 2); err != nil {
		t.Fatal(err)
	}
	if err := s.Initiator.Do(0x2a, 3, [][]byte{buf[:1], buf[1:]}, 1, 2); err != nil {
		t.Fatal(err)
	}
}

// A socket that takes little at a time: the transmit goroutine goes on.
func TestFullSocket(t *testing.T) {
	noLeaks(t)
	s := datamovertest.Open(t, pairWith(Config{Socket: sockio.Options{SendBuffer: 32768}}), datamovertest.DefaultOptions())
	defer s.Close()
	buf := make([]byte, 1<<20)
	for i := range 3 {
		for _, op := range []byte{0x28, 0x2a} {
			if err := s.Initiator.Do(op, 0, [][]byte{buf}, byte(i), 2); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := s.Target.Datamover().Stats().SendCalls; n < 10 {
		t.Errorf("%d system calls sent 3 MiB: the socket was never full", n)
	}
}

func BenchmarkDatamover(b *testing.B) { datamovertest.Benchmark(b, pairWith(Config{})) }

// BenchmarkDigests is BenchmarkDatamover with both digests.
func BenchmarkDigests(b *testing.B) {
	o := datamovertest.DefaultOptions()
	o.Initiator.HeaderDigest = []iscsi.Digest{iscsi.DigestCRC32C}
	o.Initiator.DataDigest = []iscsi.Digest{iscsi.DigestCRC32C}
	datamovertest.BenchmarkWith(b, pairWith(Config{}), o)
}
