package initiator

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"strings"
	"testing"
	"time"

	"softiser/internal/certs"
	"softiser/internal/certs/certtest"
	"softiser/internal/loopback"
	"softiser/internal/tlsio"
)

// TestTLSRefusals: an initiator that does not take the target's certificate says what is wrong with it, and what to do.
func TestTLSRefusals(t *testing.T) {
	ours, theirs := certtest.New(t, "ours"), certtest.New(t, "theirs")
	day := 24 * time.Hour
	for _, c := range []struct {
		name string
		leaf certtest.Leaf
		ca   string // what the initiator trusts
		want []string
		not  string
	}{
		{"expired", certtest.Leaf{From: time.Now().Add(-2 * day), To: time.Now().Add(-day)}, ours.File, []string{"has expired", "needs a new one", "timedatectl", "current time"}, "authority"},
		{"of tomorrow", certtest.Leaf{From: time.Now().Add(day), To: time.Now().Add(2 * day)}, ours.File, []string{"is not valid yet", "timedatectl"}, "authority"},
		{"expired, the system's authorities", certtest.Leaf{From: time.Now().Add(-2 * day), To: time.Now().Add(-day)}, "", []string{"has expired"}, "--tls-ca"},
		{"of another host", certtest.Leaf{Hosts: []string{"storage.example", "192.0.2.7"}}, ours.File, []string{"for storage.example, 192.0.2.7, and not for 127.0.0.1", "--tls-name"}, "authority"},
		{"of nobody", certtest.Leaf{Hosts: []string{}}, ours.File, []string{"names no host", "one for 127.0.0.1"}, "authority"},
		{"of another authority", certtest.Leaf{}, theirs.File, []string{"not from an authority in " + theirs.File, "--tls-ca"}, "--tls-name"},
		{"of an authority that the system does not have", certtest.Leaf{}, "", []string{"not one that this system trusts", "--tls-ca"}, "--tls-name"},
		{"for initiators", certtest.Leaf{Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ours.File, []string{"cannot be used", "key usage"}, "authority"},
	} {
		cert, key := ours.Issue(t, "target", c.leaf)
		pair, err := certs.Pair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		near, far := loopback.Pair(t)
		served := make(chan struct{})
		go func() {
			defer close(served)
			tls.Server(far, &tls.Config{Certificates: []tls.Certificate{*pair}}).Handshake() //nolint:errcheck // the client tells
			far.Close()
		}()
		x := &TLS{CA: c.ca}
		cfg, err := x.config("127.0.0.1:3260")
		if err != nil {
			t.Fatal(err)
		}
		_, err = tlsio.Client(t.Context(), near, cfg)
		near.Close()
		<-served
		if err == nil {
			t.Errorf("%s: it is taken", c.name)
			continue
		}
		told := x.explain(err).Error()
		for _, want := range c.want {
			if !strings.Contains(told, want) {
				t.Errorf("%s: %s; want %q", c.name, told, want)
			}
		}
		if strings.Contains(strings.Split(told, ": tls:")[0], c.not) {
			t.Errorf("%s: %s; it is not about %q", c.name, told, c.not)
		}
	}
}

// TestTLSOfNVMeAlone: a portal without tls has TLS for NVMe/TCP, with pre-shared keys, and finds nothing in common with an initiator of
// iSCSI.
func TestTLSOfNVMeAlone(t *testing.T) {
	near, far := loopback.Pair(t)
	go func() {
		far.Read(make([]byte, 1))                //nolint:errcheck // the alert does not depend on what is asked
		far.Write([]byte{21, 3, 3, 0, 2, 2, 40}) //nolint:errcheck // the client tells
		io.Copy(io.Discard, far)                 //nolint:errcheck // so that nothing is reset
	}()
	x := &TLS{}
	cfg, err := x.config("127.0.0.1:3260")
	if err != nil {
		t.Fatal(err)
	}
	_, err = tlsio.Client(t.Context(), near, cfg)
	near.Close()
	if err == nil || !strings.Contains(x.explain(err).Error(), "portals[].tls") {
		t.Errorf("%v", err)
	}
}
