// Package volurl parses what the URLs of volumes have in common, whatever the wire (scheme, host
// and port, RFC 3986), and keeps secrets in them out of messages.
package volurl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Scheme cuts s behind its scheme, which it returns in small letters (RFC 3986 §3.1). ok=false: s
// has none.
func Scheme(s string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(s, "://")
	return strings.ToLower(scheme), rest, ok
}

// HostPort completes host[:port] with the port that is meant where it names none, and checks it.
func HostPort(hp, port string) (string, error) {
	host := hp
	switch {
	case strings.HasPrefix(hp, "["):
		inside, tail, ok := strings.Cut(hp[1:], "]")
		if !ok {
			return "", fmt.Errorf("host %q: the closing bracket of the IPv6 address is missing", hp)
		}
		if tail != "" && tail[0] != ':' {
			return "", fmt.Errorf("host %q: want :port after the bracket", hp)
		}
		// RFC 3986 §3.2.2: in brackets stands no IPv4 address and no name.
		ip, zone, zoned := strings.Cut(inside, "%")
		switch {
		case inside == "":
		case !strings.Contains(ip, ":"):
			return "", fmt.Errorf("host %q: brackets are for IPv6 addresses: write %s%s", hp, inside, tail)
		case net.ParseIP(ip) == nil:
			return "", fmt.Errorf("host %q: what stands in brackets is not an IPv6 address", hp)
		}
		if host = inside; zoned {
			var err error
			if zone, err = interfaceOf(zone); err != nil {
				return "", fmt.Errorf("host %q: %w", hp, err)
			}
			host = ip + "%" + zone
		}
		if tail != "" {
			port = tail[1:]
		}
	case strings.Count(hp, ":") > 1:
		return "", fmt.Errorf("host %q: write an IPv6 address in brackets: [%s]", hp, hp)
	default:
		if h, p, ok := strings.Cut(hp, ":"); ok {
			host, port = h, p
		}
	}
	if host == "" {
		return "", errors.New("host is empty")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	return net.JoinHostPort(host, port), nil
}

// interfaceOf reads what stands behind the % of an IPv6 address: an interface as it is written for humans (%eth0), or as
// RFC 6874 has it in URLs (%25eth0). %25 alone is the interface with that number.
func interfaceOf(zone string) (string, error) {
	if zone == "" {
		return "", errors.New("behind the % of the address stands the name of an interface of this machine (ip link)")
	}
	escaped, ok := strings.CutPrefix(zone, "25")
	if !ok || escaped == "" {
		return zone, nil
	}
	name, err := url.PathUnescape(escaped)
	if err != nil {
		return "", fmt.Errorf("interface %q: the %% is not the start of an escape", escaped)
	}
	return name, nil
}

// Authority is host:port of HostPort as it stands in a URL: an interface that would be read as another one, or end the
// host, is written as RFC 6874 has it.
func Authority(addr string) string {
	ip, rest, zoned := strings.Cut(addr, "%")
	end := strings.LastIndex(rest, "]")
	if !zoned || addr[0] != '[' || end < 0 {
		return addr
	}
	zone := rest[:end]
	if again, err := interfaceOf(zone); err == nil && again == zone && !strings.ContainsAny(zone, "/?@%,[]") {
		return addr
	}
	return ip + "%25" + strings.ReplaceAll(url.PathEscape(zone), "@", "%40") + rest[end:]
}

// OnLink is a host that was told by the peer at an address, host:port: one that is local to a link is on the
// interface by which the peer was reached, as the peer cannot know what that is called here (RFC 4007 §6).
func OnLink(host, peer string) string {
	h, _, err := net.SplitHostPort(peer)
	from, ferr := netip.ParseAddr(h)
	to, terr := netip.ParseAddr(host)
	if err != nil || ferr != nil || terr != nil || !to.Is6() || !to.IsLinkLocalUnicast() || to.Zone() != "" {
		return host
	}
	return to.WithZone(from.Zone()).String()
}

// CutUser returns what stands before the secret of user%secret@host, and behind it from the @ on, where the secret has
// a slash or a question mark in it, so that host and path do not begin where they seem to; ok=false: it has none.
func CutUser(rest string) (user, behind string, ok bool) {
	end := strings.IndexAny(rest, "/?")
	if end < 0 || rest[0] == '[' {
		return "", "", false
	}
	upTo := len(rest)
	if q := strings.IndexByte(rest, '?'); q > end && strings.Contains(rest[:end], "@") {
		upTo = q // of options, which may have an @
	}
	at := strings.LastIndexByte(rest[:upTo], '@')
	if at < end || strings.Contains(rest[end:at], "://") { // of another path to the volume
		return "", "", false
	}
	user, _, ok = strings.Cut(rest[:end], "%")
	return user, rest[at:], ok
}

// Redact removes what may be a secret.
func Redact(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		scheme, rest = "", s
	} else {
		scheme += "://"
	}
	if user, behind, ok := CutUser(rest); ok {
		rest = user + "%…" + behind
	}
	rest, query, q := strings.Cut(rest, "?")
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		user, _, secret := strings.Cut(rest[:i], "%")
		if secret {
			user += "%…"
		}
		rest = user + rest[i:]
	}
	if q {
		opts := strings.Split(query, "&")
		for i, o := range opts {
			if k, _, ok := strings.Cut(o, "="); ok && strings.Contains(k, "password") {
				opts[i] = k + "=…"
			}
		}
		rest += "?" + strings.Join(opts, "&")
	}
	return scheme + rest
}
