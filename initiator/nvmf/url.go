package nvmf

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"softiser/initiator/internal/volurl"
	"softiser/internal/nvme"
)

// Schemes of URLs, one for each transport.
var schemes = map[string]Transport{"nvme+tcp": TransportTCP, "nvme+rdma": TransportRDMA, "nvme+roce": TransportRoCE}

// IsURL reports whether s begins like the URL of a namespace.
func IsURL(s string) bool {
	scheme, _, ok := volurl.Scheme(s)
	return ok && strings.HasPrefix(scheme, "nvme") // nvme:// too, so that ParseURL says what there is
}

// ParseURL reads a namespace's address:
//
//	nvme+tcp://host[:port]/nqn/nsid
//	nvme+rdma://host[:port]/nqn/nsid (over iWARP)
//	nvme+roce://host[:port]/nqn/nsid (NVMe/RDMA over RoCE)
//
// IPv6 addresses, and nothing else, stand in brackets. What an NQN has of / % ? and commas is written
// with %XX escapes. The fields that a URL does not speak of are left at their zero values.
func ParseURL(s string) (Config, error) {
	c, path, err := parseURL(s, func(Transport) string { return DefaultPort })
	if err != nil {
		return c, err
	}
	nqn, id, ok := strings.Cut(path, "/")
	if !ok || nqn == "" || id == "" {
		return c, fmt.Errorf("URL %s: want nvme+%v://host[:port]/nqn/nsid", s, c.Transport)
	}
	if c.Subsystem, err = parseNQN(nqn); err != nil {
		return c, fmt.Errorf("URL %s: %w", s, err)
	}
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil || n == 0 || n >= uint64(nvme.NSIDAll) {
		return c, fmt.Errorf("URL %s: namespace %q is not a number from 1 to %d", s, id, uint32(nvme.NSIDAll)-1)
	}
	c.NSID = uint32(n)
	return c, nil
}

// ParsePortal reads the address of a discovery service: a URL without subsystem, or with the
// NQN of a service of its own.
func ParsePortal(s string) (Config, error) {
	c, nqn, err := parseURL(s, Transport.discoveryPort)
	if err != nil || nqn == "" {
		return c, err
	}
	if c.Subsystem, err = parseNQN(nqn); err != nil {
		return c, fmt.Errorf("%s: want only host[:port], or the NQN of a discovery service behind it: %w", s, err)
	}
	return c, nil
}

func parseNQN(s string) (string, error) {
	nqn, err := url.PathUnescape(s)
	if err != nil {
		return "", fmt.Errorf("subsystem: %w", err)
	}
	return nqn, nvme.CheckNQN(nqn)
}

func parseURL(s string, port func(Transport) string) (c Config, path string, err error) {
	scheme, rest, _ := volurl.Scheme(s)
	fail := func(format string, args ...any) (Config, string, error) {
		return Config{}, "", fmt.Errorf("URL %s: %w", volurl.Redact(s), fmt.Errorf(format, args...))
	}
	t, ok := schemes[scheme]
	if !ok {
		return fail("scheme %q is not known: want nvme+tcp, nvme+rdma (iWARP) or nvme+roce", scheme)
	}
	_, _, secret := volurl.CutUser(rest)
	rest, _, options := strings.Cut(rest, "?")
	host, path, _ := strings.Cut(rest, "/")
	switch {
	case secret, strings.Contains(host, "@"):
		return fail("NVMe has no user names; keys are given by options such as --dhchap-secret")
	case options:
		return fail("what is behind the ? is for iSCSI; of NVMe there are options such as --hostnqn instead, and a ? in an NQN is written %%3F")
	}
	if c.Address, err = volurl.HostPort(host, port(t)); err != nil {
		return fail("%w", err)
	}
	c.Transport = t
	return c, path, nil
}

// URL returns the address of the namespace.
func (c *Config) URL() string {
	return formatURL("nvme+"+c.Transport.String(), c.Address, c.Subsystem, c.NSID)
}

func formatURL(scheme, address, nqn string, nsid uint32) string {
	return fmt.Sprintf("%s://%s/%s/%d", scheme, volurl.Authority(address), url.PathEscape(nqn), nsid)
}
