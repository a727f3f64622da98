// Package certs reads the certificates, keys and authorities of TLS from files of PEM. Its
// errors name the file and what is wrong with it.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// maxFile bounds a file, bytes: a chain, or a bundle of authorities.
const maxFile = 4 << 20

// Pair reads a certificate, with those that lead to its authority behind it, and its private
// key. key is what a file of its own says; empty: the certificate's file has it.
func Pair(certFile, keyFile string) (*tls.Certificate, error) {
	cert, err := read(certFile)
	if err != nil {
		return nil, err
	}
	if block(cert, "CERTIFICATE") == nil {
		return nil, fmt.Errorf("%s has no certificate (PEM, BEGIN CERTIFICATE)", certFile)
	}
	key, from := cert, certFile
	if keyFile != "" {
		if key, err = read(keyFile); err != nil {
			return nil, err
		}
		from = keyFile
	}
	if block(key, "ENCRYPTED PRIVATE KEY") != nil {
		return nil, fmt.Errorf("%s is encrypted: nobody is there to ask for the passphrase; openssl pkey -in %s writes it without", from, from)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with the key in %s: %w", certFile, from, err)
	}
	return &pair, nil
}

// Authorities reads the certificates that those of peers have to come from.
func Authorities(file string) (*x509.CertPool, error) {
	b, err := read(file)
	if err != nil {
		return nil, err
	}
	pool, n := x509.NewCertPool(), 0
	for {
		var p *pem.Block
		if p, b = pem.Decode(b); p == nil {
			break
		}
		if p.Type != "CERTIFICATE" {
			continue
		}
		n++
		c, err := x509.ParseCertificate(p.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", file, n, err)
		}
		pool.AddCert(c)
	}
	if n == 0 {
		return nil, fmt.Errorf("%s has no certificate of an authority (PEM, BEGIN CERTIFICATE)", file)
	}
	return pool, nil
}

// Problem says why peers will not take the certificate at a time, or not for much longer;
// empty: nothing is known.
func Problem(pair *tls.Certificate, now time.Time) string {
	const soon = 14 * 24 * time.Hour
	c := pair.Leaf
	switch {
	case c == nil:
	case now.Before(c.NotBefore):
		return "is not valid before " + c.NotBefore.UTC().Format(time.RFC3339)
	case now.After(c.NotAfter):
		return "has expired on " + c.NotAfter.UTC().Format(time.RFC3339)
	case now.After(c.NotAfter.Add(-soon)):
		return "expires on " + c.NotAfter.UTC().Format(time.RFC3339)
	}
	return ""
}

// block finds the first block of a type.
func block(b []byte, name string) *pem.Block {
	for {
		var p *pem.Block
		if p, b = pem.Decode(b); p == nil || p.Type == name {
			return p
		}
	}
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		if pe, ok := errors.AsType[*os.PathError](err); ok {
			err = pe.Err
		}
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", file, err)
	case len(b) > maxFile:
		return nil, fmt.Errorf("%s is longer than %d bytes", file, maxFile)
	}
	return b, nil
}
