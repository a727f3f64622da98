package portal

import (
	"crypto/tls"
	"net"
	"testing"

	"softiser/internal/nvme/tls13psk"
)

// hello is the first thing that a client of TLS says.
func hello(t *testing.T, client func(net.Conn)) []byte {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() {
		client(a)
		close(done)
	}()
	buf := make([]byte, maxRecord)
	n, err := b.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	a.Close()
	<-done
	return buf[:n]
}

// A ClientHello with a pre-shared key is NVMe's, any other iSCSI's, and neither is known before
// it is there.
func TestClassifyTLS(t *testing.T) {
	certs := hello(t, func(c net.Conn) { _ = tls.Client(c, &tls.Config{ServerName: "x"}).Handshake() })
	psk := hello(t, func(c net.Conn) {
		key := tls13psk.Key{Identity: "NVMe1R01 a b c", PSK: make([]byte, 32), Suite: tls13psk.AES128GCMSHA256}
		if s, err := tls13psk.Client(c, tls13psk.ClientConfig{Keys: []tls13psk.Key{key}}); err == nil {
			s.Close()
		}
	})
	for _, c := range []struct {
		b    []byte
		want Hello
	}{{certs, Hello{ISCSI, TLS}}, {psk, Hello{NVMe, TLS}}} {
		for n := range len(c.b) {
			if h, need := classifyTLS(c.b[:n]); h.known() || need <= n || need > len(c.b) {
				t.Fatalf("%d of %d bytes: %v, %d are needed", n, len(c.b), h, need)
			}
		}
		if h, _ := classifyTLS(append(c.b, 0x17)); h != c.want {
			t.Errorf("%v, want %v", h, c.want)
		}
		for i := recordHeader; i < len(c.b); i++ { // damage makes one or the other of it
			for _, v := range []byte{0, 0xFF} {
				bad := append([]byte(nil), c.b...)
				bad[i] = v
				if h, _ := classifyTLS(bad); h.Transport != TLS {
					t.Fatalf("byte %d is %#x: %v", i, v, h)
				}
			}
		}
	}
	if h, _ := classifyTLS([]byte{0x16, 3, 1, 0xFF, 0xFF}); h != (Hello{ISCSI, TLS}) {
		t.Errorf("a record that is too long: %v", h)
	}
}
