package iscsi

import (
	"crypto/x509"
	"slices"
	"strings"

	"softiser/internal/iscsi"
)

// certificate is what a connection knows of the one that its initiator has shown in TLS,
// which leads to an authority of the portal. The zero value: none was shown.
type certificate struct {
	subject string   // for people
	names   []string // its common name, and what it has for URIs and hosts
	// namesInitiators is set where the portal takes initiators under a name of their
	// certificate alone (portal.Certificates.NameInitiators).
	namesInitiators bool
}

// certificateOf tells of the first of the certificates that a peer has shown: its own.
func certificateOf(shown []*x509.Certificate, namesInitiators bool) certificate {
	c := certificate{namesInitiators: namesInitiators}
	if len(shown) == 0 {
		return c
	}
	own := shown[0]
	c.subject = own.Subject.String()
	if n := own.Subject.CommonName; n != "" {
		c.names = append(c.names, n)
	}
	for _, u := range own.URIs {
		c.names = append(c.names, u.String())
	}
	c.names = append(c.names, own.DNSNames...)
	return c
}

// hasName reports whether one of the names is that one. They compare without case, as
// names of hosts and of iSCSI do.
func hasName(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}

// fits answers whether the initiator of a connection may have its name with the certificate that it
// has shown. Who may use the name at a target its access list says first; what that says nothing
// of has to be a name in the certificate, where the portal asks for that.
func (c *certificate) fits(initiator string, ok, bound bool) error {
	switch {
	case !ok && len(c.names) == 0:
		return iscsi.Refuse(iscsi.LoginForbidden, "the access list binds the name %s to certificates, and the initiator has shown none; it has to come by TLS, to a portal with client_ca", initiator)
	case !ok:
		return iscsi.Refuse(iscsi.LoginForbidden, "the access list binds the name %s to other certificates than that of %q", initiator, c.names)
	case !bound && c.namesInitiators && !hasName(c.names, initiator):
		return iscsi.Refuse(iscsi.LoginForbidden, "%s is no name of the initiator's certificate, which has %q; the portal asks for that (tls.names: certificate)", initiator, c.names)
	}
	return nil
}
