package initiator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"softiser/internal/certs"
	"softiser/internal/tlsio"
)

// TLS says how plain iSCSI goes in TLS 1.3. Files are PEM, and read again for each connection,
// so that new ones are in use from the next one on.
type TLS struct {
	CA         string // file of the authorities of targets; empty: those of the system
	Cert, Key  string // files of our certificate and its key; Key empty: Cert has both; Cert empty: we have none
	ServerName string // that the target's certificate is to have; empty: the host of the address
}

// problem is what is wrong with the settings, files included.
func (t *TLS) problem(over Transport) error {
	switch {
	case over != TransportTCP:
		return fmt.Errorf("TLS goes with iscsi:// alone: %s places data from the socket to its memory, and nothing can decrypt it in between; use iscsi://, or encrypt below it with WireGuard or IPsec", over)
	case t.Key != "" && t.Cert == "":
		return errors.New("TLS: there is a key, and no certificate")
	}
	_, err := t.config("localhost:1")
	return err
}

// config is that for a connection to addr.
func (t *TLS) config(addr string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: t.ServerName}
	var err error
	if c.ServerName == "" {
		if c.ServerName, _, err = net.SplitHostPort(addr); err != nil {
			return nil, err
		}
	}
	if t.CA != "" {
		if c.RootCAs, err = certs.Authorities(t.CA); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
	}
	if t.Cert != "" {
		pair, err := certs.Pair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
		c.Certificates = []tls.Certificate{*pair}
	}
	return c, nil
}

// secure does the handshake over nc, which is closed when it fails.
func (t *transport) secure(ctx context.Context, nc net.Conn, addr string) (net.Conn, error) {
	c, err := t.cfg.TLS.config(addr)
	if err != nil {
		nc.Close()
		return nil, err
	}
	s, err := tlsio.Client(ctx, nc, c)
	if err != nil {
		nc.Close()
		return nil, t.cfg.TLS.explain(err)
	}
	return s, nil
}

// explain adds to an error of the handshake what can be done about it.
func (t *TLS) explain(err error) error {
	var header tls.RecordHeaderError
	if errors.As(err, &header) {
		return fmt.Errorf("the target's port does not speak TLS: %w", err)
	}
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("%s: %w", t.refused(bad), err)
	}
	if tlsio.Alert(err) == tlsio.HandshakeFailure { // of a portal whose TLS is NVMe's alone, with pre-shared keys
		return fmt.Errorf("no TLS with the target, whose portal may have none for iSCSI (portals[].tls): %w", err)
	}
	return fmt.Errorf("no TLS with the target: %w", err)
}

// refused says why the target's certificate is not taken, and what is to be done about that.
func (t *TLS) refused(bad *tls.CertificateVerificationError) string {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](bad); ok && invalid.Reason == x509.Expired {
		what := "has expired"
		if time.Now().Before(invalid.Cert.NotBefore) {
			what = "is not valid yet"
		}
		return "the target's certificate " + what + "; the target needs a new one, or this machine the right time (timedatectl)"
	}
	if name, ok := errors.AsType[x509.HostnameError](bad); ok {
		names := slices.Clone(name.Certificate.DNSNames)
		for _, ip := range name.Certificate.IPAddresses {
			names = append(names, ip.String())
		}
		if len(names) == 0 {
			return fmt.Sprintf("the target's certificate names no host in subjectAltName; it needs one for %s", name.Host)
		}
		return fmt.Sprintf("the target's certificate is one for %s, and not for %s; --tls-name says which name to expect", strings.Join(names, ", "), name.Host)
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](bad); !ok {
		return "the target's certificate cannot be used"
	}
	if t.CA == "" {
		return "the target's certificate is not one that this system trusts; name its authority (--tls-ca)"
	}
	return fmt.Sprintf("the target's certificate is not from an authority in %s (--tls-ca)", t.CA)
}
