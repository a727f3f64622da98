package initiator

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"softiser/initiator/internal/volurl"
	"softiser/internal/iscsi"
)

// ParseURL reads a volume's address as libiscsi writes it, with iser:// for
// RDMA over TCP (iWARP), iser+roce:// for RDMA over UDP (RoCE), and iscsi:// for plain TCP:
//
//	iser://[user[%secret]@]host[:port]/iqn/lun[?option[=value]&…]
//
// Options: target_user, target_password (mutual CHAP), header_digest,
// data_digest (none, crc32c, or a list), auth (md5, sha1, sha-256, sha3-256, or
// a list), noauth, iser; for iscsi:// in TLS: tls, tls_ca, tls_cert, tls_key (files), tls_name
// (in the target's certificate). A secret that contains @ / % or ? is written with
// %XX escapes. IPv6 addresses, and nothing else, stand in brackets; one that is local to a link has its interface behind
// it, as [fe80::1%eth0] or [fe80::1%25eth0] (RFC 6874). The fields that a URL does not
// speak of are left at their zero values. Errors never quote the secret.
func ParseURL(s string) (Config, error) {
	c, path, err := parseURL(s)
	if err != nil {
		return Config{}, err
	}
	name, lun, ok := strings.Cut(path, "/")
	if !ok || name == "" || lun == "" {
		return Config{}, fmt.Errorf("URL %s: want %s://host[:port]/iqn/lun", volurl.Redact(s), c.Transport)
	}
	if name, err = url.PathUnescape(name); err != nil {
		return Config{}, fmt.Errorf("URL %s: target name: %w", volurl.Redact(s), err)
	}
	if err := iscsi.CheckName(name); err != nil {
		return Config{}, fmt.Errorf("URL %s: target name: %w", volurl.Redact(s), err)
	}
	n, err := strconv.ParseUint(lun, 10, 64)
	if err != nil || n > 1<<14-1 {
		return Config{}, fmt.Errorf("URL %s: LUN %q is not a number from 0 to 16383", volurl.Redact(s), lun)
	}
	c.TargetName, c.LUN = name, n
	return c, nil
}

// ParsePortal reads the address of a portal for Discover: a URL without target
// and LUN, or plain host[:port], which means iSER.
func ParsePortal(s string) (Config, error) {
	if !strings.Contains(s, "://") {
		s = "iser://" + s
	}
	c, path, err := parseURL(s)
	if err != nil {
		return Config{}, err
	}
	if path != "" {
		return Config{}, fmt.Errorf("%s: want only host[:port], without target and LUN", volurl.Redact(s))
	}
	return c, nil
}

// parseURL reads everything but the path, which it returns without its slash.
func parseURL(s string) (c Config, path string, err error) {
	scheme, rest, ok := volurl.Scheme(s)
	switch {
	case !ok:
		return c, "", fmt.Errorf("%q is not a URL: want iser://host[:port]/iqn/lun, iscsi://host[:port]/iqn/lun or nvme+tcp://host[:port]/nqn/nsid", volurl.Redact(s))
	case !slices.Contains(schemes[:], scheme):
		return c, "", fmt.Errorf("URL %s: scheme %q is not known: want iser, iser+roce or iscsi, or for NVMe nvme+tcp, nvme+rdma or nvme+roce", volurl.Redact(s), scheme)
	}
	c.Transport = Transport(slices.Index(schemes[:], scheme))
	if _, _, ok := volurl.CutUser(rest); ok {
		return c, "", fmt.Errorf("URL %s: a / or ? in the secret is written %%2F or %%3F; or the secret is put into a file (--chap-secret-file) or the environment", volurl.Redact(s))
	}
	rest, query, _ := strings.Cut(rest, "?")
	host, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, '@'); i >= 0 {
		if c.Auth.User, c.Auth.Secret, err = parseUser(host[:i]); err != nil {
			return c, "", fmt.Errorf("URL %s: %w", volurl.Redact(s), err)
		}
		host = host[i+1:]
	}
	if c.Address, err = volurl.HostPort(host, DefaultPort); err != nil {
		return c, "", fmt.Errorf("URL %s: %w", volurl.Redact(s), err)
	}
	if err := c.parseOptions(query); err != nil {
		return c, "", fmt.Errorf("URL %s: %w", volurl.Redact(s), err)
	}
	return c, path, nil
}

// parseUser splits user%secret. The first per cent sign that is not the start
// of an escape in the user's name separates them, as in libiscsi; each part
// may contain %XX escapes where the result is unambiguous.
func parseUser(s string) (string, Secret, error) {
	user, secret, _ := strings.Cut(s, "%")
	if user == "" {
		return "", "", errors.New("user name before @ is empty")
	}
	if strings.Contains(secret, "%") {
		// Escapes, as the other characters of a secret need them.
		u, err := url.PathUnescape(secret)
		if err != nil {
			return "", "", errors.New("the secret contains a % that is not the start of an escape such as %40: write %25 for it")
		}
		secret = u
	}
	return user, Secret(secret), nil
}

// parseOptions reads the query part.
func (c *Config) parseOptions(query string) error {
	if query == "" {
		return nil
	}
	secure := func() *TLS {
		if c.TLS == nil {
			c.TLS = &TLS{}
		}
		return c.TLS
	}
	for _, o := range strings.Split(query, "&") {
		key, val, _ := strings.Cut(o, "=")
		v, err := url.PathUnescape(val)
		if err != nil {
			return fmt.Errorf("option %s: the value contains a %% that is not the start of an escape", key)
		}
		switch key {
		case "target_user":
			c.Auth.TargetUser = v
		case "target_password":
			c.Auth.TargetSecret = Secret(v)
		case "header_digest":
			c.HeaderDigest, err = parseDigest(v)
		case "data_digest":
			c.DataDigest, err = parseDigest(v)
		case "auth":
			c.Auth.Algorithms, err = ParseAlgorithms(v)
		case "noauth":
			c.Auth.None = true
		case "iser":
			if c.Transport == TransportTCP {
				c.Transport = TransportISER
			}
		case "tls":
			secure()
		case "tls_ca":
			secure().CA = v
		case "tls_cert":
			secure().Cert = v
		case "tls_key":
			secure().Key = v
		case "tls_name":
			secure().ServerName = v
		default:
			return fmt.Errorf("option %q is not known: want target_user, target_password, header_digest, data_digest, auth, noauth, iser, tls, tls_ca, tls_cert, tls_key or tls_name", key)
		}
		if err != nil {
			return fmt.Errorf("option %s: %w", key, err)
		}
	}
	return nil
}

// parseDigest reads one digest or a list in order of preference.
func parseDigest(v string) ([]string, error) {
	var list []string
	for _, d := range strings.Split(v, ",") {
		switch strings.ToLower(d) {
		case "none":
			list = append(list, "None")
		case "crc32c":
			list = append(list, "CRC32C")
		default:
			return nil, fmt.Errorf("%q is not a digest: want none, crc32c or a list of them", d)
		}
	}
	return list, nil
}

// Algorithms of CHAP by the names that URLs, options and files use.
var chapNames = []string{"md5", "sha1", "sha-256", "sha3-256"}

// ParseAlgorithms reads one CHAP algorithm or a list in order of preference.
func ParseAlgorithms(v string) ([]string, error) {
	var list []string
next:
	for _, a := range strings.Split(strings.ToLower(v), ",") {
		for _, n := range chapNames {
			if a == n || strings.ReplaceAll(a, "-", "") == strings.ReplaceAll(n, "-", "") {
				list = append(list, n)
				continue next
			}
		}
		return nil, fmt.Errorf("%q is not a CHAP algorithm: want %s or a list of them", a, strings.Join(chapNames, ", "))
	}
	return list, nil
}

// URL returns the address of the volume without secrets.
func (c *Config) URL() string {
	user := ""
	if c.Auth.User != "" {
		user = c.Auth.User + "@"
	}
	return fmt.Sprintf("%s://%s%s/%s/%d", c.Transport, user, volurl.Authority(c.Address), c.TargetName, c.LUN)
}

// onLink is an address that the portal at another one has told, with the interface that leads to both.
func onLink(addr, portal string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return net.JoinHostPort(volurl.OnLink(host, portal), port)
}
