package nvmf

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"softiser/internal/nvme"
)

// Schemes of URLs, one for each transport.
var schemes = map[string]Transport{"nvme+tcp": TransportTCP, "nvme+rdma": TransportRDMA, "nvme+roce": TransportRoCE}

// IsURL reports whether s begins like the URL of a namespace.
func IsURL(s string) bool {
	scheme, _, ok := strings.Cut(s, "://")
	return ok && strings.HasPrefix(scheme, "nvme+")
}

// ParseURL reads a namespace's address:
//
//	nvme+tcp://host[:port]/nqn/nsid
//	nvme+rdma://host[:port]/nqn/nsid (over iWARP)
//	nvme+roce://host[:port]/nqn/nsid (NVMe/RDMA over RoCE)
//
// IPv6 addresses stand in brackets. The fields that a URL does not speak of are left at
// their zero values.
func ParseURL(s string) (Config, error) {
	c, path, err := parseURL(s, func(Transport) string { return DefaultPort })
	if err != nil {
		return c, err
	}
	nqn, id, ok := strings.Cut(path, "/")
	if !ok || nqn == "" || id == "" {
		return c, fmt.Errorf("URL %s: want nvme+%v://host[:port]/nqn/nsid", s, c.Transport)
	}
	if err := nvme.CheckNQN(nqn); err != nil {
		return c, fmt.Errorf("URL %s: %w", s, err)
	}
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil || n == 0 || n >= uint64(nvme.NSIDAll) {
		return c, fmt.Errorf("URL %s: namespace %q is not a number from 1 to %d", s, id, uint32(nvme.NSIDAll)-1)
	}
	c.Subsystem, c.NSID = nqn, uint32(n)
	return c, nil
}

// ParsePortal reads the address of a discovery service: a URL without subsystem, or with the
// NQN of a service of its own.
func ParsePortal(s string) (Config, error) {
	c, nqn, err := parseURL(s, Transport.discoveryPort)
	if err == nil && nqn != "" {
		if err = nvme.CheckNQN(nqn); err != nil {
			err = fmt.Errorf("%s: want only host[:port], or the NQN of a discovery service behind it: %w", s, err)
		}
	}
	c.Subsystem = nqn
	return c, err
}

func parseURL(s string, port func(Transport) string) (c Config, path string, err error) {
	scheme, rest, _ := strings.Cut(s, "://")
	t, ok := schemes[scheme]
	if !ok {
		return c, "", fmt.Errorf("URL %s: scheme %q is not known: want nvme+tcp, nvme+rdma or nvme+roce", s, scheme)
	}
	host, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, '@'); i >= 0 { // not repeated: it may hold a secret
		return c, "", fmt.Errorf("URL %s://…%s: NVMe has no user names; keys are given by options such as --dhchap-secret", scheme, rest[i:])
	}
	c.Transport = t
	if c.Address, err = joinPort(host, port(t)); err != nil {
		return c, "", fmt.Errorf("URL %s: %w", s, err)
	}
	return c, path, nil
}

// joinPort completes host[:port] and checks it.
func joinPort(hp, port string) (string, error) {
	host := hp
	if h, p, err := net.SplitHostPort(hp); err == nil {
		host, port = h, p
	} else if strings.HasPrefix(hp, "[") && strings.HasSuffix(hp, "]") {
		host = hp[1 : len(hp)-1]
	} else if strings.Contains(hp, ":") {
		return "", fmt.Errorf("host %q: want host[:port], an IPv6 address in brackets", hp)
	}
	if host == "" {
		return "", errors.New("host is empty")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	return net.JoinHostPort(host, port), nil
}

// URL returns the address of the namespace.
func (c *Config) URL() string {
	return fmt.Sprintf("nvme+%v://%s/%s/%d", c.Transport, c.Address, c.Subsystem, c.NSID)
}
