package portal

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
)

// Certificates are what a portal has for TLS, inside which iSCSI is spoken. NVMe/TCP has
// keys of its own, and needs none of it.
type Certificates struct {
	Own       *tls.Certificate
	ClientCAs *x509.CertPool // whose certificates initiators must have; nil: they need none
	Required  bool           // nothing is spoken on the portal that is not encrypted
	// NameInitiators: an initiator has a name that is in its certificate, unless the access
	// list of a target says which certificates its name belongs to.
	NameInitiators bool
}

// Config is that of a server.
func (t *Certificates) Config() *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*t.Own}}
	if t.ClientCAs != nil {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, t.ClientCAs
	}
	return c
}

// Certificates returns what the portal has for TLS now; nil: nothing.
func (p *Portal) Certificates() *Certificates { return p.certificates.Load() }

// SetCertificates changes what the portal of that listening address has for TLS, for
// connections that come from now on; nil: nothing.
func (s *Server) SetCertificates(listen string, t *Certificates) error {
	for _, p := range s.portals {
		if p.cfg.Listen == listen {
			p.certificates.Store(t)
			return nil
		}
	}
	return fmt.Errorf("target: there is no portal %s", listen)
}

// encrypted reports whether nobody on the way can read what is said.
func (h Hello) encrypted() bool { return h.Transport == TLS }

// Lengths of a ClientHello (RFC 8446 §4.1.2), bytes.
const (
	recordHeader    = 5
	maxRecord       = recordHeader + 16<<10
	helloFixed      = 4 + 2 + 32 // type and length, version, random
	extPreSharedKey = 41
)

// classifyTLS tells who has sent a ClientHello, to a portal that has certificates: hosts of
// NVMe offer a pre-shared key. It returns the bytes that it has to see, as long as there are
// fewer. What is no ClientHello is left to whoever does the handshake.
func classifyTLS(b []byte) (h Hello, need int) {
	h = Hello{ISCSI, TLS}
	if len(b) < recordHeader {
		return Hello{}, recordHeader
	}
	n := recordHeader + int(binary.BigEndian.Uint16(b[3:]))
	if n > maxRecord {
		return h, 0
	}
	if len(b) < n {
		return Hello{}, n
	}
	b = b[recordHeader:n]
	if len(b) < helloFixed {
		return h, 0
	}
	b = b[helloFixed:]
	// Session, suites, compression, extensions: each behind its length.
	for _, width := range []int{1, 2, 1} {
		if _, b = vector(b, width); b == nil {
			return h, 0
		}
	}
	ext, _ := vector(b, 2)
	for len(ext) >= 4 {
		id := binary.BigEndian.Uint16(ext)
		if id == extPreSharedKey {
			return Hello{NVMe, TLS}, 0
		}
		if _, ext = vector(ext[2:], 2); ext == nil {
			break
		}
	}
	return h, 0
}

// vector takes what stands behind a length of width bytes; rest is nil when it is not all there.
func vector(b []byte, width int) (v, rest []byte) {
	if len(b) < width {
		return nil, nil
	}
	n := int(b[0])
	if width == 2 {
		n = int(binary.BigEndian.Uint16(b))
	}
	if b = b[width:]; len(b) < n {
		return nil, nil
	}
	return b[:n], b[n:]
}
