package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"softiser/internal/certs"
)

// PortalTLS encrypts iSCSI on a portal by TLS 1.3, with certificates. NVMe/TCP uses pre-shared
// keys instead (subsystems[].keys). A reload reads the files again.
type PortalTLS struct {
	Cert     string `mapstructure:"cert" json:"cert"`                     // PEM: our certificate, and those between it and its authority
	Key      string `mapstructure:"key" json:"key,omitempty"`             // PEM: its private key; empty: cert has it
	ClientCA string `mapstructure:"client_ca" json:"client_ca,omitempty"` // PEM: authorities of the certificates that initiators must have; none: they need no certificate
	Mode     string `mapstructure:"mode" json:"mode,omitempty"`           // required: only encrypted connections are accepted; allowed: others too
	// Names says which names initiators may have: any; or certificate: one that is in their
	// certificate (common name or subjectAltName=URI:iqn.…), unless acl.bind of a target says whose it is.
	Names string `mapstructure:"names" json:"names,omitempty"`

	own *tls.Certificate
	cas *x509.CertPool
}

// TLSModes are the values of PortalTLS.Mode.
var TLSModes = []string{"required", "allowed"}

// TLSNames are the values of PortalTLS.Names.
var TLSNames = []string{"any", "certificate"}

// Own returns the certificate that Load has read.
func (t *PortalTLS) Own() *tls.Certificate { return t.own }

// ClientCAs returns the authorities of initiators; nil: initiators need no certificate.
func (t *PortalTLS) ClientCAs() *x509.CertPool { return t.cas }

// Required reports whether nothing may go by that is not encrypted.
func (t *PortalTLS) Required() bool { return t.Mode != "allowed" }

// closed reports whether only initiators with a certificate or a key of TLS get in.
func (t *PortalTLS) closed() bool { return t != nil && t.Required() && t.ClientCA != "" }

// Same reports whether two say the same, and their files too. Either may be nil.
func (t *PortalTLS) Same(o *PortalTLS) bool {
	if t == nil || o == nil {
		return t == o
	}
	if t.Cert != o.Cert || t.Key != o.Key || t.ClientCA != o.ClientCA || t.Mode != o.Mode || t.Names != o.Names {
		return false
	}
	return (t.own == nil) == (o.own == nil) && (t.own == nil || slices.EqualFunc(t.own.Certificate, o.own.Certificate, slices.Equal)) && t.cas.Equal(o.cas)
}

// readTLS reads the certificates of portals.
func (c *Config) readTLS(r *report) {
	for i := range c.Portals {
		p, key := &c.Portals[i], fmt.Sprintf("portals[%d].tls", i)
		t := p.TLS
		if t == nil {
			continue
		}
		oneOf(r, key+".mode", t.Mode, TLSModes...)
		oneOf(r, key+".names", t.Names, TLSNames...)
		if t.Names == "certificate" && !t.closed() {
			r.add(key+".names", "certificate needs client_ca and mode: required; else initiators come in without a certificate, under any name")
		}
		if p.RoCE() || !p.Speaks("iscsi") {
			r.add(key, "is for iSCSI over TCP, which this portal (%s) does not speak; NVMe/TCP has subsystems[].keys, and what goes over RDMA can be encrypted below it alone, by WireGuard or IPsec", p.Listen)
			continue
		}
		if t.Cert == "" {
			r.add(key+".cert", "missing; name a file with a certificate (PEM)")
			continue
		}
		where, file := key+".cert", t.Cert
		if t.Key != "" {
			where, file = key+".key", t.Key
		}
		if _, err := readSecret(file); err != nil {
			r.add(where, "%v", err)
			continue
		}
		var err error
		if t.own, err = certs.Pair(t.Cert, t.Key); err != nil {
			r.add(key+".cert", "%v", err)
		}
		if t.ClientCA != "" {
			if t.cas, err = certs.Authorities(t.ClientCA); err != nil {
				r.add(key+".client_ca", "%v", err)
			}
		}
	}
}

// expiring tells of certificates that peers do not take, or soon will not.
func (c *Config) expiring(now time.Time) (all []string) {
	for _, p := range c.Portals {
		if p.TLS == nil || p.TLS.own == nil {
			continue
		}
		if problem := certs.Problem(p.TLS.own, now); problem != "" {
			all = append(all, fmt.Sprintf("the certificate %s of portal %s %s; put a new one there and reload", p.TLS.Cert, p.Listen, problem))
		}
	}
	return all
}
