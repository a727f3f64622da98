// Package certtest makes authorities and certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is an authority; File has its certificate.
type CA struct {
	File string

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64
}

// Leaf is what a certificate is to be; the zero value is for localhost, 127.0.0.1 and ::1,
// for both sides, and good for an hour.
type Leaf struct {
	Name     string // the common name
	Hosts    []string
	URIs     []string
	From, To time.Time
	Usage    []x509.ExtKeyUsage
}

// New makes an authority whose files are in a folder of the test's.
func New(t testing.TB, name string) *CA {
	t.Helper()
	ca := &CA{dir: t.TempDir()}
	ca.key = newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &ca.key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.File = filepath.Join(ca.dir, "ca.pem")
	write(t, ca.File, "CERTIFICATE", der)
	return ca
}

// Issue writes NAME.pem and NAME.key, over what is there.
func (ca *CA) Issue(t testing.TB, name string, l Leaf) (cert, key string) {
	t.Helper()
	ca.last++
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano() + ca.last), Subject: pkix.Name{CommonName: l.Name},
		NotBefore: l.From, NotAfter: l.To, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: l.Usage,
	}
	if l.Name == "" {
		tmpl.Subject.CommonName = name
	}
	if l.From.IsZero() {
		tmpl.NotBefore = time.Now().Add(-time.Hour)
	}
	if l.To.IsZero() {
		tmpl.NotAfter = time.Now().Add(time.Hour)
	}
	if l.Usage == nil {
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}
	if l.Hosts == nil {
		l.Hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	for _, h := range l.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}
	for _, text := range l.URIs {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		tmpl.URIs = append(tmpl.URIs, u)
	}
	k := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, &k.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(ca.dir, name+".pem"), filepath.Join(ca.dir, name+".key")
	write(t, cert, "CERTIFICATE", der)
	write(t, key, "PRIVATE KEY", secret)
	return cert, key
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func write(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
