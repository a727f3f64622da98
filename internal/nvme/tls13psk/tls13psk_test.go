package tls13psk

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The key schedule, by the simple handshake of RFC 8448 §3.
func TestSchedule(t *testing.T) {
	s := AES128GCMSHA256
	check := func(name string, got []byte, want string) {
		t.Helper()
		if !bytes.Equal(got, unhex(t, want)) {
			t.Errorf("%s: %x, want %s", name, got, want)
		}
	}
	early := s.extract(nil, nil)
	check("early secret", early, "33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a")
	derived := s.derive(early, "derived", nil)
	check("derived", derived, "6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba")
	hs := s.extract(derived, unhex(t, "8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d"))
	check("handshake secret", hs, "1dc826e93606aa6fdc0aadc12f741b01046aa6b99f691ed221a9f0ca043fbeac")
	check("master secret", s.extract(s.derive(hs, "derived", nil), nil), "18df06843d13a08bf2a449844c5f8a478001bc4d4c627984d5a41da8d0402919")
	traffic := unhex(t, "b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38")
	check("key", s.expand(traffic, "key", nil, 16), "3fce516009c21727d0f2e4e86ee403bc")
	check("iv", s.expand(traffic, "iv", nil, 12), "5d313eb2671276ee13000b30")
}

func key(id string, s Suite) Key {
	return Key{Identity: id, PSK: bytes.Repeat([]byte{byte(len(id))}, s.size()), Suite: s}
}

func lookup(keys ...Key) ServerConfig {
	return ServerConfig{Lookup: func(id string) (Key, bool) {
		for _, k := range keys {
			if k.Identity == id {
				return k, true
			}
		}
		return Key{}, false
	}}
}

// tcp returns both ends of a TCP connection with a deadline.
func tcp(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{a, b} {
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	return a, b
}

type result struct {
	c   *Conn
	err error
}

// pair makes both ends of a secure connection.
func pair(t testing.TB, cc ClientConfig, sc ServerConfig) (client, server result) {
	t.Helper()
	a, b := tcp(t)
	done := make(chan result)
	go func() {
		c, err := Server(b, sc)
		done <- result{c, err}
	}()
	client.c, client.err = Client(a, cc)
	if client.err != nil {
		a.Close()
	}
	return client, <-done
}

func TestPair(t *testing.T) {
	for _, suite := range []Suite{AES128GCMSHA256, AES256GCMSHA384} {
		first, second := key("NVMe1R01 host sub digest", suite), key("NVMe0R01 host sub", suite)
		client, server := pair(t, ClientConfig{Keys: []Key{first, second}}, lookup(second))
		if client.err != nil || server.err != nil {
			t.Fatal(client.err, server.err)
		}
		if client.c.Identity() != second.Identity || server.c.Identity() != second.Identity || server.c.Suite() != suite {
			t.Errorf("identities %q, %q, %s", client.c.Identity(), server.c.Identity(), server.c.Suite())
		}
		msg := make([]byte, 100_000)
		for i := range msg {
			msg[i] = byte(i * 7)
		}
		go func() {
			client.c.Write(msg)
			client.c.Close()
		}()
		got, err := io.ReadAll(server.c)
		if err != nil || !bytes.Equal(got, msg) {
			t.Errorf("%s: %d bytes, %v", suite, len(got), err)
		}
	}
}

func wants(t *testing.T, name string, err error, a Alert, peer bool) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Alert != a || e.Peer != peer {
		t.Errorf("%s: %v, want %s, by the peer %t", name, err, a, peer)
	}
}

func TestKeysThatDoNotFit(t *testing.T) {
	good := key("a", AES128GCMSHA256)
	other := good
	other.PSK = bytes.Repeat([]byte{9}, 32)
	client, server := pair(t, ClientConfig{Keys: []Key{good}}, lookup(other))
	wants(t, "another key", server.err, DecryptError, false)
	wants(t, "another key", client.err, DecryptError, true)
	client, server = pair(t, ClientConfig{Keys: []Key{good}}, lookup(key("b", AES128GCMSHA256)))
	wants(t, "unknown", server.err, UnknownPSKIdentity, false)
	wants(t, "unknown", client.err, UnknownPSKIdentity, true)
	client, server = pair(t, ClientConfig{Keys: []Key{good}}, lookup(key("a", AES256GCMSHA384)))
	wants(t, "suite", server.err, HandshakeFailure, false)
	wants(t, "suite", client.err, HandshakeFailure, true)
	for _, keys := range [][]Key{nil, {key("a", 0x1303)}, {good, key("c", AES256GCMSHA384)}} {
		if _, err := Client(nil, ClientConfig{Keys: keys}); err == nil {
			t.Errorf("keys %v are taken", keys)
		}
	}
}

// hello is a ClientHello of a client that a test changes.
func hello(change func(*clientHello), keys ...Key) []byte {
	h := &clientHello{suites: []uint16{uint16(keys[0].Suite)}, groups: []uint16{uint16(x25519), uint16(p256)}}
	for _, g := range groups {
		_, s, _ := g.generate()
		h.shares = append(h.shares, s)
	}
	for _, k := range keys {
		h.identities = append(h.identities, []byte(k.Identity))
	}
	if change != nil {
		change(h)
	}
	msg, truncated := h.encode(keys[0].Suite.size())
	setBinders(msg, truncated, keys[0].Suite, keys)
	return msg
}

// records cuts a handshake message into records of n bytes.
func records(msg []byte, n int) (b []byte) {
	for len(msg) > 0 {
		k := min(n, len(msg))
		b = append(append(b, typeHandshake, 3, 1, byte(k>>8), byte(k)), msg[:k]...)
		msg = msg[k:]
	}
	return b
}

// answer is what the server does with bytes of a client, and says to it.
func answer(t *testing.T, b []byte, keys ...Key) (error, []byte) {
	t.Helper()
	client, server := tcp(t)
	if _, err := client.Write(b); err != nil {
		t.Fatal(err)
	}
	client.(*net.TCPConn).CloseWrite()
	_, err := Server(server, lookup(keys...))
	server.Close()
	said, _ := io.ReadAll(client)
	return err, said
}

func TestClientHelloRefused(t *testing.T) {
	k := key("a", AES128GCMSHA256)
	good := hello(nil, k)
	if h, truncated, e := parseClientHello(good); e != nil || truncated != len(good)-2-1-32 || len(h.binders) != 1 || h.check() != nil {
		t.Fatalf("%+v, %d of %d, %v", h, truncated, len(good), e)
	}
	replace := func(old, new string) []byte {
		b := bytes.Replace(good, unhex(t, old), unhex(t, new), 1)
		if bytes.Equal(b, good) {
			t.Fatalf("%s is not in %x", old, good)
		}
		return b
	}
	for _, tt := range []struct {
		name string
		b    []byte
		want Alert
	}{
		{"no TLS 1.3", records(replace("002b0003020304", "002b0003020303"), 1<<14), ProtocolVersion},
		{"version under another name", records(replace("002b0003020304", "00fe0003020304"), 1<<14), ProtocolVersion},
		{"no modes", records(replace("002d00020101", "00fe00020101"), 1<<14), MissingExtension},
		{"psk_ke alone", records(replace("002d00020101", "002d00020100"), 1<<14), HandshakeFailure},
		{"early data", records(replace("002d00020101", "002a00020101"), 1<<14), MissingExtension},
		{"extension twice", records(replace("002d00020101", "000a00020101"), 1<<14), IllegalParameter},
		{"no pre-shared key", records(replace("0029002c", "00fe002c"), 1<<14), HandshakeFailure},
		{"suite", records(hello(func(h *clientHello) { h.suites = []uint16{0x1302} }, k), 1<<14), HandshakeFailure},
		{"groups without shares", records(hello(func(h *clientHello) { h.shares, h.groups = nil, []uint16{24} }, k), 1<<14), HandshakeFailure},
		{"share without group", records(hello(func(h *clientHello) { h.groups = []uint16{24} }, k), 1<<14), IllegalParameter},
		{"share twice", records(hello(func(h *clientHello) { h.shares[1] = h.shares[0] }, k), 1<<14), IllegalParameter},
		{"bad point", records(hello(func(h *clientHello) { h.shares = h.shares[1:]; h.shares[0].public[5]++ }, k), 1<<14), IllegalParameter},
		{"zero point", records(hello(func(h *clientHello) { clear(h.shares[0].public) }, k), 1<<14), IllegalParameter},
		{"binder", records(append(good[:len(good)-1:len(good)-1], good[len(good)-1]^1), 1<<14), DecryptError},
		{"another message", records([]byte{msgFinished, 0, 0, 0}, 4), UnexpectedMessage},
		{"a long message", records([]byte{msgClientHello, 1, 0, 0}, 4), IllegalParameter},
		{"short", records([]byte{msgClientHello, 0, 0, 2, 3, 3}, 100), DecodeError},
		{"empty record", []byte{typeHandshake, 3, 1, 0, 0}, UnexpectedMessage},
		{"long record", []byte{typeHandshake, 3, 1, 0x40, 1}, RecordOverflow},
		{"data first", []byte{typeData, 3, 3, 0, 1, 0}, UnexpectedMessage},
		{"alert within a message", append(records(good[:50], 50), typeAlert, 3, 3, 0, 2, 1, 0), UnexpectedMessage},
		{"change_cipher_spec of another form", []byte{typeCCS, 3, 3, 0, 1, 2}, UnexpectedMessage},
		{"endless change_cipher_spec", bytes.Repeat([]byte{typeCCS, 3, 3, 0, 1, 1}, 100), UnexpectedMessage},
		{"more behind it", records(append(bytes.Clone(good), 20, 0, 0, 0), 1<<14), UnexpectedMessage},
	} {
		err, said := answer(t, tt.b, k)
		wants(t, tt.name, err, tt.want, false)
		if want := []byte{typeAlert, 3, 3, 0, 2, 2, byte(tt.want)}; !bytes.HasSuffix(said, want) {
			t.Errorf("%s: the client is told % x, want % x", tt.name, said, want)
		}
	}
	// Cut into records of one byte it is as good as whole; the client goes away then.
	for _, n := range []int{50, 1 << 14} {
		if err, said := answer(t, records(good, n), k); !errors.Is(err, io.ErrUnexpectedEOF) || len(said) < 100 || said[0] != typeHandshake {
			t.Errorf("records of %d bytes: %v, % x", n, err, said)
		}
	}
	if err, _ := answer(t, []byte{typeAlert, 3, 3, 0, 2, 2, 40}, k); err == nil || !strings.Contains(err.Error(), "the peer says") {
		t.Errorf("an alert: %v", err)
	}
}

// A client that sends no share that the server knows is asked for one.
func TestHelloRetry(t *testing.T) {
	for _, suite := range []Suite{AES128GCMSHA256, AES256GCMSHA384} {
		k := key("a", suite)
		a, b := tcp(t)
		done := make(chan result)
		go func() {
			c, err := Server(b, lookup(k))
			done <- result{c, err}
		}()
		c := &Conn{Conn: a, client: true}
		h := &clientHello{suites: []uint16{uint16(suite)}, groups: []uint16{24, uint16(p256)}, identities: [][]byte{[]byte("a")}}
		msg, truncated := h.encode(suite.size())
		setBinders(msg, truncated, suite, []Key{k})
		c.say(msg)
		c.flush()
		sum := suite.hash()()
		sum.Write(msg)
		ks := &secrets{suite: suite, transcript: suite.hash()()}
		ks.transcript.Write(append([]byte{msgMessageHash, 0, 0, byte(suite.size())}, sum.Sum(nil)...))
		msg, err := c.read(msgServerHello)
		if err != nil {
			t.Fatal(err)
		}
		sh, e := parseServerHello(msg)
		if e != nil || !sh.retry() || sh.share.group != p256 {
			t.Fatalf("%+v, %v", sh, e)
		}
		ks.transcript.Write(msg)
		private, share, _ := p256.generate()
		h.shares = append(h.shares, share)
		msg, truncated = h.encode(suite.size())
		half, _ := ks.transcript.(interface{ MarshalBinary() ([]byte, error) }).MarshalBinary()
		ks.transcript.Write(msg[:truncated])
		copy(msg[truncated+3:], suite.binder(k.PSK, ks.transcript.Sum(nil)))
		ks.transcript.(interface{ UnmarshalBinary([]byte) error }).UnmarshalBinary(half)
		ks.transcript.Write(msg)
		c.say(msg)
		c.flush()
		if msg, err = c.read(msgServerHello); err != nil {
			t.Fatal(err)
		}
		if sh, e = parseServerHello(msg); e != nil || sh.retry() {
			t.Fatalf("%+v, %v", sh, e)
		}
		ks.transcript.Write(msg)
		shared, e := sh.share.shared(private)
		if e != nil {
			t.Fatal(e)
		}
		ks.agree(k.PSK, shared)
		c.in.use(suite, ks.serverTraffic)
		c.out.use(suite, ks.clientTraffic)
		msg, err = c.read(msgEncryptedExtensions)
		if err != nil {
			t.Fatal(err)
		}
		ks.transcript.Write(msg)
		if err := c.readFinished(ks, ks.serverTraffic); err != nil {
			t.Fatal(err)
		}
		c.say(finished(ks, ks.clientTraffic))
		c.flush()
		if r := <-done; r.err != nil || r.c.Identity() != "a" {
			t.Errorf("%s: %v", suite, r.err)
		}
	}
}

// Keys change when one end wants it, and data goes on.
func TestKeyUpdate(t *testing.T) {
	k := key("a", AES256GCMSHA384)
	client, server := pair(t, ClientConfig{Keys: []Key{k}}, lookup(k))
	if client.err != nil || server.err != nil {
		t.Fatal(client.err, server.err)
	}
	say := func(from, to *Conn, what string) {
		t.Helper()
		if _, err := from.Write([]byte(what)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(what))
		if _, err := io.ReadFull(to, b); err != nil || string(b) != what {
			t.Fatalf("%q, %v", b, err)
		}
	}
	say(client.c, server.c, "before")
	client.c.mu.Lock()
	client.c.appendLocked(typeHandshake, []byte{msgKeyUpdate, 0, 0, 1, 1})
	client.c.out.update()
	client.c.mu.Unlock()
	say(client.c, server.c, "with a new key")
	old := bytes.Clone(client.c.in.secret)
	say(server.c, client.c, "and back")
	if bytes.Equal(old, client.c.in.secret) {
		t.Error("the server has not changed its key though it was asked to")
	}
	client.c.out.seq = rekeyAfter
	server.c.in.seq = rekeyAfter
	say(client.c, server.c, "by itself")
	if client.c.out.seq != 1 || server.c.in.seq != 1 {
		t.Errorf("%d and %d records with the new key", client.c.out.seq, server.c.in.seq)
	}
}

// What is wrong behind the handshake ends the connection, and the peer is told.
func TestBreaches(t *testing.T) {
	k := key("a", AES128GCMSHA256)
	for _, tt := range []struct {
		name string
		send func(c *Conn)
		want Alert
	}{
		{"a changed byte", func(c *Conn) { c.appendLocked(typeData, []byte("x")); c.wbuf[6] ^= 1 }, BadRecordMAC},
		{"a short record", func(c *Conn) { c.wbuf = []byte{typeData, 3, 3, 0, 3, 1, 2, 3} }, BadRecordMAC},
		{"not encrypted", func(c *Conn) { c.wbuf = []byte{typeAlert, 3, 3, 0, 2, 1, 0} }, UnexpectedMessage},
		{"change_cipher_spec", func(c *Conn) { c.wbuf = []byte{typeCCS, 3, 3, 0, 1, 1} }, UnexpectedMessage},
		{"long record", func(c *Conn) { c.wbuf = []byte{typeData, 3, 3, 0x41, 1} }, RecordOverflow},
		{"long plaintext", func(c *Conn) { c.appendLocked(typeData, make([]byte, maxPlain+1)) }, RecordOverflow},
		{"nothing but padding", func(c *Conn) { c.appendLocked(0, nil) }, UnexpectedMessage},
		{"another type", func(c *Conn) { c.appendLocked(99, []byte("x")) }, UnexpectedMessage},
		{"empty handshake record", func(c *Conn) { c.appendLocked(typeHandshake, nil) }, UnexpectedMessage},
		{"empty records", func(c *Conn) {
			for range 2 * maxUseless {
				c.appendLocked(typeData, nil)
			}
		}, UnexpectedMessage},
		{"KeyUpdates", func(c *Conn) {
			for range 2 * maxUseless {
				c.appendLocked(typeHandshake, []byte{msgKeyUpdate, 0, 0, 1, 1})
				c.out.update()
			}
		}, UnexpectedMessage},
		{"KeyUpdate 2", func(c *Conn) { c.appendLocked(typeHandshake, []byte{msgKeyUpdate, 0, 0, 1, 2}) }, IllegalParameter},
		{"more behind KeyUpdate", func(c *Conn) { c.appendLocked(typeHandshake, []byte{msgKeyUpdate, 0, 0, 1, 0, 0}) }, UnexpectedMessage},
		{"data within a message", func(c *Conn) {
			c.appendLocked(typeHandshake, []byte{msgKeyUpdate})
			c.appendLocked(typeData, []byte("x"))
		}, UnexpectedMessage},
		{"a ticket of a client", func(c *Conn) { c.appendLocked(typeHandshake, []byte{msgNewSessionTicket, 0, 0, 0}) }, UnexpectedMessage},
		{"a long message", func(c *Conn) { c.appendLocked(typeHandshake, []byte{msgKeyUpdate, 1, 0, 0}) }, IllegalParameter},
		{"an alert of one byte", func(c *Conn) { c.appendLocked(typeAlert, []byte{1}) }, DecodeError},
	} {
		client, server := pair(t, ClientConfig{Keys: []Key{k}}, lookup(k))
		if client.err != nil || server.err != nil {
			t.Fatal(client.err, server.err)
		}
		client.c.mu.Lock()
		tt.send(client.c)
		client.c.flushLocked()
		client.c.mu.Unlock()
		_, err := server.c.Read(make([]byte, 100))
		wants(t, tt.name, err, tt.want, false)
		if _, err := server.c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: and the next read goes on", tt.name)
		}
		if _, err := server.c.Write([]byte("x")); err == nil {
			t.Errorf("%s: and a write", tt.name)
		}
		_, err = client.c.Read(make([]byte, 100))
		wants(t, tt.name, err, tt.want, true)
		server.c.Close()
	}
	// A stream that is cut is no stream that ends.
	client, server := pair(t, ClientConfig{Keys: []Key{k}}, lookup(k))
	client.c.Conn.Close()
	if _, err := server.c.Read(make([]byte, 1)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %v", err)
	}
	// A ticket of a server is nothing.
	client, server = pair(t, ClientConfig{Keys: []Key{k}}, lookup(k))
	server.c.appendLocked(typeHandshake, []byte{msgNewSessionTicket, 0, 0, 1, 0})
	server.c.Write([]byte("x"))
	if n, err := client.c.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Errorf("behind a ticket: %d, %v", n, err)
	}
}

// What a server may not say.
func TestServerHelloRefused(t *testing.T) {
	k := key("a", AES128GCMSHA256)
	_, s, _ := x25519.generate()
	good := &serverHello{suite: k.Suite, share: s}
	change := func(f func(*serverHello)) []byte {
		h := *good
		f(&h)
		return h.encode()
	}
	other := group(24)
	for _, tt := range []struct {
		name string
		msg  []byte
		want Alert
	}{
		{"suite", change(func(h *serverHello) { h.suite = AES256GCMSHA384 }), IllegalParameter},
		{"session", change(func(h *serverHello) { h.session = []byte{1} }), IllegalParameter},
		{"identity", change(func(h *serverHello) { h.identity = 1 }), IllegalParameter},
		{"group", change(func(h *serverHello) { h.share.group = other }), IllegalParameter},
		{"public value", change(func(h *serverHello) { h.share.public = make([]byte, 32) }), IllegalParameter},
		{"retry", change(func(h *serverHello) { h.random = retryRandom }), IllegalParameter},
		{"version", bytes.Replace(good.encode(), []byte{0, 43, 0, 2, 3, 4}, []byte{0, 43, 0, 2, 3, 3}, 1), ProtocolVersion},
		{"extension", bytes.Replace(good.encode(), []byte{0, 43, 0, 2, 3, 4}, []byte{0, 16, 0, 2, 3, 4}, 1), UnsupportedExt},
		{"no key", bytes.Replace(good.encode(), []byte{0, 41, 0, 2, 0, 0}, []byte{0, 43, 0, 2, 3, 4}, 1), IllegalParameter},
		{"short", []byte{msgServerHello, 0, 0, 2, 3, 3}, DecodeError},
		{"another message", []byte{msgClientHello, 0, 0, 0}, UnexpectedMessage},
		{"more behind it", append(good.encode(), 8, 0, 0), UnexpectedMessage},
	} {
		a, b := tcp(t)
		if _, err := b.Write(records(tt.msg, 1<<14)); err != nil {
			t.Fatal(err)
		}
		_, err := Client(a, ClientConfig{Keys: []Key{k}})
		wants(t, tt.name, err, tt.want, false)
	}
	a, b := tcp(t)
	b.(*net.TCPConn).CloseWrite()
	if _, err := Client(a, ClientConfig{Keys: []Key{k}}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	if e := checkExtensions([]byte{8, 0, 0, 6, 0, 4, 0, 10, 0, 0}); e != nil {
		t.Error(e)
	}
	wantsExt := checkExtensions([]byte{8, 0, 0, 6, 0, 4, 0, 16, 0, 0})
	wants(t, "an extension that was not asked for", wantsExt, UnsupportedExt, false)
}
