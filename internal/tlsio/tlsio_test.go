package tlsio

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"softiser/internal/alloctest"
	"softiser/internal/certs"
	"softiser/internal/certs/certtest"
	"softiser/internal/leaktest"
	"softiser/internal/loopback"
	"softiser/internal/sockio"
	"softiser/internal/sockio/layertest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// side is the configuration of one end, for both roles.
func side(t testing.TB, ca, peers *certtest.CA, name string, l certtest.Leaf) *tls.Config {
	t.Helper()
	pair, err := certs.Pair(ca.Issue(t, name, l))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := certs.Authorities(peers.File)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{*pair}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, ServerName: "localhost",
	}
}

// pair does both handshakes.
func pair(t testing.TB, client, server *tls.Config) (c, s *Conn, cerr, serr error) {
	t.Helper()
	a, b := loopback.Pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		if s, serr = Server(ctx, b, server); serr != nil {
			b.Close()
		}
	})
	c, cerr = Client(ctx, a, client)
	if cerr != nil {
		a.Close()
	}
	wg.Wait()
	return c, s, cerr, serr
}

// ends are both ends of a secure connection as sockio.Conns.
func ends(t testing.TB, o sockio.Options) (a, b *sockio.Conn, client, server *Conn) {
	t.Helper()
	ca := certtest.New(t, "ours")
	client, server, cerr, serr := pair(t, side(t, ca, ca, "client", certtest.Leaf{}), side(t, ca, ca, "server", certtest.Leaf{}))
	if cerr != nil || serr != nil {
		t.Fatal(cerr, serr)
	}
	var err error
	if a, err = sockio.New(client, o); err != nil {
		t.Fatal(err)
	}
	if b, err = sockio.New(server, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b, client, server
}

func noise(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// A receive buffer below the loopback's segment would have TCP wait 200 ms for each window.
func TestStream(t *testing.T) {
	a, b, _, _ := ends(t, sockio.Options{SendBuffer: 20_000})
	layertest.BothWays(t, a, b)
}

// The end of a stream is said though the last data has filled the socket.
func TestStreamEndsFull(t *testing.T) {
	a, b, _, _ := ends(t, sockio.Options{SendBuffer: 20_000})
	layertest.Full(t, a, b)
}

// What has been read from the socket and not been opened is not forgotten when a turn ends.
func TestStreamInTurns(t *testing.T) {
	a, b, _, _ := ends(t, sockio.Options{Crowd: &layertest.Crowd})
	layertest.Turns(t, a, b)
}

// Both ways at once with the calls of net.Conn.
func TestNetConn(t *testing.T) {
	ca := certtest.New(t, "ours")
	c, s, cerr, serr := pair(t, side(t, ca, ca, "client", certtest.Leaf{}), side(t, ca, ca, "server", certtest.Leaf{}))
	if cerr != nil || serr != nil {
		t.Fatal(cerr, serr)
	}
	data := noise(rand.New(rand.NewPCG(1, 2)), 1<<20)
	var wg sync.WaitGroup
	for _, x := range []*Conn{c, s} {
		wg.Go(func() {
			if _, err := x.Write(data); err != nil {
				t.Error(err)
			}
			if err := x.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if got, err := io.ReadAll(x); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
			}
		})
	}
	wg.Wait()
	c.Close()
	s.Close()
}

// What has come behind the handshake in one piece is found, though the socket is silent.
func TestEarlyData(t *testing.T) {
	ca := certtest.New(t, "ours")
	c, s, cerr, serr := pair(t, side(t, ca, ca, "client", certtest.Leaf{}), side(t, ca, ca, "server", certtest.Leaf{}))
	if cerr != nil || serr != nil {
		t.Fatal(cerr, serr)
	}
	defer c.Close()
	if _, err := s.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("second")); err != nil {
		t.Fatal(err)
	}
	var b [3]byte
	if n, err := io.ReadFull(c, b[:]); n != 3 || err != nil { // crypto/tls has read the rest by now
		t.Fatal(n, err)
	}
	sk, err := sockio.New(c, sockio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !sk.Readable() {
		t.Error("nothing is readable")
	}
	s.Close()
	got, err := layertest.ReadAll(sk, rand.New(rand.NewPCG(1, 1)))
	if string(got) != "stsecond" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// A stream that is cut, or changed, is an error, and the peer learns of the change.
func TestStreamBreaks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	_, b, client, _ := ends(t, sockio.Options{})
	client.Conn.Close()
	if _, err := layertest.ReadAll(b, r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %v", err)
	}
	a, b, client, _ := ends(t, sockio.Options{})
	if _, err := client.tls.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	client.mu.Lock()
	client.wbuf[7] ^= 1
	err := client.flushLocked()
	client.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err = layertest.ReadAll(b, r); err == nil || !strings.Contains(err.Error(), "bad record MAC") {
		t.Errorf("changed: %v", err)
	}
	if _, err = layertest.ReadAll(b, r); err == nil || !strings.Contains(err.Error(), "bad record MAC") {
		t.Errorf("changed, again: %v", err)
	}
	if _, err = layertest.ReadAll(a, r); err == nil || !strings.Contains(err.Error(), "remote error") {
		t.Errorf("the other end of what was changed: %v", err)
	}
}

// Certificates that do not do, and what both ends say of it. The client of TLS 1.3 has done
// its part before the server has looked at its certificate, and learns of it when it reads.
func TestRefusals(t *testing.T) {
	ours, theirs := certtest.New(t, "ours"), certtest.New(t, "theirs")
	past := certtest.Leaf{From: time.Now().Add(-2 * time.Hour), To: time.Now().Add(-time.Hour)}
	good := func(name string) *tls.Config { return side(t, ours, ours, name, certtest.Leaf{}) }
	bare := good("bare")
	bare.Certificates = nil
	old := good("old")
	old.MaxVersion = tls.VersionTLS12 // handshake asks for 1.3 at least, so this is nothing at all
	for _, c := range []struct {
		name               string
		client, server     *tls.Config
		cerr, serr, reason string
	}{
		{"none", bare, good("server"), "", "client didn't provide a certificate", "asks for a certificate, and we have none"},
		{"client of another authority", side(t, theirs, ours, "c2", certtest.Leaf{}), good("server"), "", "unknown authority", "does not trust the authority"},
		{"client's has expired", side(t, ours, ours, "c3", past), good("server"), "", "expired", "has expired"},
		{"server of another authority", good("client"), side(t, theirs, ours, "s2", certtest.Leaf{}), "unknown authority", "does not take our certificate", ""},
		{"server's has expired", good("client"), side(t, ours, ours, "s3", past), "expired", "does not take our certificate", ""},
		{"server of another name", good("client"), side(t, ours, ours, "s4", certtest.Leaf{Hosts: []string{"elsewhere"}}), "elsewhere", "does not take our certificate", ""},
	} {
		cc, s, cerr, serr := pair(t, c.client, c.server)
		says := func(who, want string, err error) {
			t.Helper()
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: the %s says %v, want %q", c.name, who, err, want)
			}
		}
		says("client", c.cerr, cerr)
		says("server", c.serr, serr)
		if c.reason != "" && cc != nil {
			_, err := cc.Read(make([]byte, 1))
			says("reading client", c.reason, err)
		}
		for _, x := range []*Conn{cc, s} {
			if x != nil {
				x.Close()
			}
		}
	}
	// TLS 1.2, by crypto/tls itself.
	a, b := loopback.Pair(t)
	done := make(chan error, 1)
	go func() {
		_, err := Server(t.Context(), b, good("server"))
		done <- err
		b.Close()
	}()
	if err := tls.Client(a, old).Handshake(); err == nil {
		t.Error("TLS 1.2 was taken")
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "versions") {
		t.Errorf("TLS 1.2: %v", err)
	}
}

// A handshake that the other end does not go on with ends with its context.
func TestHandshakeEnds(t *testing.T) {
	a, b := loopback.Pair(t)
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := Client(ctx, a, &tls.Config{ServerName: "x"})
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// Who asks for new keys without end and does not read gets no more memory than maxOwed.
func TestKeysAskedForAgain(t *testing.T) {
	_, b, _, server := ends(t, sockio.Options{SendBuffer: 5000, RecvBuffer: 5000})
	server.mu.Lock()
	server.wbuf = make([]byte, 1<<20) // what answers would be, more than the sockets take
	server.mu.Unlock()
	_, err := b.Read(make([]byte, 10))
	if !errors.Is(err, errOwed) {
		t.Errorf("%v", err)
	}
	if _, err := b.Read(make([]byte, 10)); !errors.Is(err, errOwed) {
		t.Errorf("again: %v", err)
	}
}

// Little is allocated for what goes through, all of it by crypto/tls.
func TestStreamAllocates(t *testing.T) {
	a, b, _, _ := ends(t, sockio.Options{})
	p, q := make([]byte, 4096), make([]byte, 8192)
	v, w := sockio.Append(nil, p), make([]sockio.Vec, 1)
	n := alloctest.PerRun(200, func() {
		if n, err := a.Writev(v, false); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
		for got := 0; got < len(p); {
			sockio.Set(&w[0], q)
			n, err := b.Readv(w, false)
			if err != nil && err != sockio.ErrAgain {
				t.Fatal(err)
			}
			got += n
		}
	})
	t.Logf("%g allocations for each write and read", n)
	if n > 4 {
		t.Errorf("%g allocations for each write and read", n)
	}
}
