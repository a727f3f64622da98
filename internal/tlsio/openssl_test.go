package tlsio

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"softiser/internal/certs/certtest"
	"softiser/internal/openssltest"
)

// exchange says hello both ways, before and after new keys that openssl asks for. openssl runs
// with -msg.
func exchange(t *testing.T, c *Conn, in io.Writer, out *bufio.Reader) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	say := func(line string) {
		t.Helper()
		if _, err := io.WriteString(in, line); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 64)
	for i := range 3 {
		hello := fmt.Sprintf("hello %d\n", i)
		say(hello)
		if n, err := io.ReadFull(c, b[:len(hello)]); string(b[:n]) != hello || err != nil {
			t.Fatalf("%q, %v", b[:n], err)
		}
		// New keys, and ours as well.
		say("K\n")
		openssltest.Until(t, out, "KeyUpdate")
		if _, err := fmt.Fprintf(c, "answer %d\n", i); err != nil {
			t.Fatal(err)
		}
		openssltest.Until(t, out, fmt.Sprintf("answer %d", i))
	}
}

// Our client and openssl's server, which wants a certificate and sends tickets.
func TestOpenSSLServer(t *testing.T) {
	ca := certtest.New(t, "ours")
	cert, key := ca.Issue(t, "openssl", certtest.Leaf{})
	in, out := openssltest.Start(t, "s_server", "-msg", "-accept", "127.0.0.1:0", "-tls1_3", "-cert", cert, "-key", key, "-CAfile", ca.File, "-Verify", "1", "-verify_return_error", "-naccept", "1")
	line := ""
	for !strings.Contains(line, "ACCEPT 127.0.0.1:") {
		var err error
		if line, err = out.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	nc, err := net.Dial("tcp", strings.TrimSpace(strings.TrimPrefix(line, "ACCEPT ")))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Client(t.Context(), nc, side(t, ca, ca, "client", certtest.Leaf{Name: "our client"}))
	if err != nil {
		nc.Close()
		t.Fatal(err)
	}
	defer c.Close()
	openssltest.Until(t, out, "our client")
	exchange(t, c, in, out)
}

// openssl's client and our server.
func TestOpenSSLClient(t *testing.T) {
	ca := certtest.New(t, "ours")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cert, key := ca.Issue(t, "openssl", certtest.Leaf{Name: "their client"})
	in, out := openssltest.Start(t, "s_client", "-msg", "-connect", ln.Addr().String(), "-tls1_3", "-cert", cert, "-key", key, "-CAfile", ca.File, "-verify_return_error", "-verify_hostname", "localhost")
	if err := ln.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Server(t.Context(), nc, side(t, ca, ca, "server", certtest.Leaf{}))
	if err != nil {
		nc.Close()
		t.Fatal(err)
	}
	defer c.Close()
	if n := c.State().PeerCertificates[0].Subject.CommonName; n != "their client" {
		t.Errorf("the client is %q", n)
	}
	openssltest.Until(t, out, "Verify return code: 0")
	exchange(t, c, in, out)
}
