package nvmf

import (
	"fmt"
	"net"
	"strings"
	"time"

	"softiser/internal/nvme"
	"softiser/internal/nvme/tls13psk"
	"softiser/internal/nvme/tlspsk"
	"softiser/target/portal"
)

// SecureChannel says whether a subsystem is reached through TLS.
type SecureChannel uint8

// Secure channels. Whatever a subsystem allows, a host that has a TLS key and no other
// secret has to use TLS: nothing else shows who it is.
const (
	SecureAllowed  SecureChannel = iota // by hosts that have a TLS key
	SecureRequired                      // of every host
	SecureNone
)

// identity is the name of a TLS key: whose it is, and where it leads.
type identity struct {
	kind            string // version and hash, as NVMe1R01
	host, subsystem string
}

// secure makes a connection that begins with TLS secure, and remembers whose key it was.
// The goroutine is the connection's own.
func (f *Frontend) secure(c *portal.Conn) (net.Conn, *identity, error) {
	if err := c.Net.SetDeadline(time.Now().Add(f.cfg.Timeouts.Connect)); err != nil {
		return nil, nil, err
	}
	t, err := tls13psk.Server(c.Net, tls13psk.ServerConfig{Lookup: f.tlsKey})
	if err != nil {
		return nil, nil, fmt.Errorf("NVMe/TCP: %w", err)
	}
	id, _, _ := parseIdentity(t.Identity())
	return t, id, nil
}

// parseIdentity takes the name of a TLS key apart:
//
//	NVMe0R01 HOST SUBSYSTEM
//	NVMe1R01 HOST SUBSYSTEM DIGEST
func parseIdentity(s string) (*identity, tlspsk.Version, bool) {
	p := strings.Split(s, " ")
	switch {
	case len(p) == 3 && strings.HasPrefix(p[0], "NVMe0"):
		return &identity{p[0], p[1], p[2]}, tlspsk.Version0, true
	case len(p) == 4 && strings.HasPrefix(p[0], "NVMe1"):
		return &identity{p[0], p[1], p[2]}, tlspsk.Version1, true
	}
	return nil, 0, false
}

// tlsKey finds the key of an identity.
func (f *Frontend) tlsKey(name string) (tls13psk.Key, bool) {
	id, version, ok := parseIdentity(name)
	if !ok {
		return tls13psk.Key{}, false
	}
	s := f.find(id.subsystem)
	if s == nil {
		return tls13psk.Key{}, false
	}
	k := f.keyOf(s, id.host)
	if k == nil {
		return tls13psk.Key{}, false
	}
	own, err := k.For(id.host)
	if err != nil {
		return tls13psk.Key{}, false
	}
	full, psk, err := own.Identity(version, id.host, id.subsystem)
	if err != nil || full != name { // an identity of another key, or one that was not derived as ours is
		return tls13psk.Key{}, false
	}
	suite := tls13psk.AES128GCMSHA256
	if k.Suite() == tlspsk.SHA384 {
		suite = tls13psk.AES256GCMSHA384
	}
	return tls13psk.Key{Identity: name, PSK: psk, Suite: suite}, true
}

// keyOf returns the TLS key of a host; the discovery service takes that for any subsystem.
func (f *Frontend) keyOf(s *subsystem, host string) *tlspsk.Key {
	if s.kind != nvme.TypeDiscovery {
		return s.tlsKey(host)
	}
	for _, o := range f.list() {
		if k := o.tlsKey(host); k != nil {
			return k
		}
	}
	return nil
}

func (s *subsystem) tlsKey(host string) *tlspsk.Key {
	if s.secureChannel() == SecureNone {
		return nil
	}
	for _, r := range s.hostRules() {
		if r.TLSKey != nil && r.NQN == host {
			return r.TLSKey
		}
	}
	return nil
}

func (s *subsystem) secureChannel() SecureChannel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channel
}

// wantsTLS reports whether a host may reach a subsystem through TLS alone.
func (f *Frontend) wantsTLS(s *subsystem, host string) bool {
	return s.kind != nvme.TypeDiscovery && s.secureChannel() == SecureRequired || f.keyOf(s, host) != nil && f.keys(s, host) == nil
}

// refusesChannel checks that the connection is as secure as it has to be, and used for what
// its key is for.
func (q *queue) refusesChannel(d *nvme.ConnectData) *refusal {
	s := q.fe.find(d.Subsystem)
	switch id := q.identity; {
	case s == nil:
	case id == nil && q.fe.wantsTLS(s, d.Host):
		return &refusal{nvme.ConnectInvalidHost | nvme.DoNotRetry, nvme.InvalidParameter(true, nvme.ConnectDataAtHost), "the host has to use TLS"}
	case id != nil && id.host != d.Host:
		return &refusal{nvme.ConnectInvalidHost | nvme.DoNotRetry, nvme.InvalidParameter(true, nvme.ConnectDataAtHost), "the TLS key is that of " + id.host}
	case id != nil && id.subsystem != d.Subsystem:
		return invalid(true, nvme.ConnectDataAtSubsystem, "the TLS key is for "+id.subsystem)
	}
	return nil
}

// channel is what the discovery log says of TLS to a host.
func (f *Frontend) channel(s *subsystem, host string) (requirements, security uint8) {
	switch {
	case f.wantsTLS(s, host):
		return nvme.ChannelRequired, nvme.SecurityTLS13
	case f.keyOf(s, host) != nil:
		return nvme.ChannelNotRequired, nvme.SecurityTLS13
	}
	// That none is required would make libnvme ask for TLS.
	return 0, nvme.SecurityNone
}
