package tls13psk

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"softiser/internal/openssltest"
)

// needOpenssl skips the test where openssl has no pre-shared keys with TLS 1.3. They go
// with SHA-256 alone there.
func needOpenssl(t *testing.T) {
	t.Helper()
	path, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	out, err := exec.Command(path, "s_client", "-help").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("-psk_identity")) || !bytes.Contains(out, []byte("-tls1_3")) {
		t.Skipf("this openssl has no pre-shared keys with TLS 1.3: %v", err)
	}
}

const opensslID = "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidnNA+X5lEU="

// The key of the reference's vectors.
func opensslKey(t *testing.T) Key {
	return Key{Identity: opensslID, PSK: unhex(t, "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca"), Suite: AES128GCMSHA256}
}

// Our client and openssl's server: data both ways, its tickets, KeyUpdate by either end.
func TestOpenSSLServer(t *testing.T) {
	needOpenssl(t)
	k := opensslKey(t)
	for _, groups := range []string{"X25519", "P-256"} {
		in, out := openssltest.Start(t, "s_server", "-accept", "127.0.0.1:0", "-nocert", "-tls1_3", "-psk", hex.EncodeToString(k.PSK), "-psk_identity", k.Identity,
			"-ciphersuites", "TLS_AES_128_GCM_SHA256", "-groups", groups)
		_, addr, ok := strings.Cut(strings.TrimSpace(openssltest.Until(t, out, "ACCEPT")), " ")
		if !ok {
			t.Skip("this openssl does not say where it listens")
		}
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if err := nc.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		c, err := Client(nc, ClientConfig{Keys: []Key{{Identity: "another", PSK: k.PSK, Suite: k.Suite}, k}})
		if err != nil {
			t.Fatal(groups, err)
		}
		fmt.Fprintln(in, "from openssl")
		b := make([]byte, len("from openssl\n"))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "from openssl\n" {
			t.Fatalf("%q, %v", b, err)
		}
		if _, err := c.Write([]byte("from us\n")); err != nil {
			t.Fatal(err)
		}
		openssltest.Until(t, out, "from us")
		fmt.Fprintln(in, "K") // KeyUpdate, and ours is asked for
		for old := bytes.Clone(c.in.secret); bytes.Equal(old, c.in.secret); {
			if err := c.fill(); err != nil {
				t.Fatal(err)
			}
			if err := c.advance(); err != errMore {
				t.Fatal(err)
			}
		}
		fmt.Fprintln(in, "once more")
		b = b[:len("once more\n")]
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "once more\n" {
			t.Fatalf("%q, %v", b, err)
		}
		if _, err := c.Write([]byte("with a new key\n")); err != nil {
			t.Fatal(err)
		}
		openssltest.Until(t, out, "with a new key")
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		openssltest.Until(t, out, "DONE")
	}
}

// openssl's client and our server, with one group, and with one that it is asked to change.
func TestOpenSSLClient(t *testing.T) {
	needOpenssl(t)
	k := opensslKey(t)
	for _, args := range [][]string{
		{"-psk", hex.EncodeToString(k.PSK), "-psk_identity", k.Identity, "-groups", "X25519"},
		{"-psk", hex.EncodeToString(k.PSK), "-psk_identity", k.Identity, "-groups", "P-256"},
		{"-psk", hex.EncodeToString(k.PSK), "-psk_identity", k.Identity, "-groups", "P-384:P-256"}, // HelloRetryRequest
		{"-psk", hex.EncodeToString(k.PSK), "-psk_identity", k.Identity},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		in, out := openssltest.Start(t, append([]string{"s_client", "-connect", l.Addr().String(), "-tls1_3"}, args...)...)
		if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		defer nc.Close()
		if err := nc.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		c, err := Server(nc, lookup(k))
		if err != nil {
			t.Fatalf("%v: %v", args[4:], err)
		}
		openssltest.Until(t, out, "TLS_AES_128_GCM_SHA256")
		if _, err := c.Write([]byte("from us\n")); err != nil {
			t.Fatal(err)
		}
		openssltest.Until(t, out, "from us")
		fmt.Fprintln(in, "from openssl")
		b := make([]byte, len("from openssl\n"))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "from openssl\n" {
			t.Fatalf("%q, %v", b, err)
		}
		in.Close() // ends s_client, which says so
		if _, err := c.Read(b); err != io.EOF {
			t.Errorf("%v: %v", args[4:], err)
		}
		c.Close()
	}
}
