package iscsi

import (
	"fmt"
	"strconv"
	"strings"
)

// TargetPortal is one address of a target (RFC 7143 §13.8).
type TargetPortal struct {
	Address        string // host:port, IPv6 hosts in brackets
	PortalGroupTag uint16
	HasTag         bool
}

// String formats the value of a TargetAddress key.
func (p TargetPortal) String() string {
	if !p.HasTag {
		return p.Address
	}
	return p.Address + "," + strconv.Itoa(int(p.PortalGroupTag))
}

// DefaultPort is iSCSI's registered port, for iSER too.
const DefaultPort = "3260"

// ParseTargetAddress reads domainname[:port][,portal-group-tag].
func ParseTargetAddress(s string) (TargetPortal, error) {
	var p TargetPortal
	host := s
	if i := strings.LastIndexByte(s, ','); i >= 0 {
		tag, err := strconv.ParseUint(s[i+1:], 10, 16)
		if err != nil {
			return p, fmt.Errorf("%w: TargetAddress %.80q: the portal group tag is not a number up to 65535", ErrText, s)
		}
		host, p.PortalGroupTag, p.HasTag = s[:i], uint16(tag), true
	}
	h, port := host, DefaultPort
	if i := strings.LastIndexByte(host, ':'); i >= 0 && (strings.Count(host, ":") == 1 || host[i-1] == ']') {
		h, port = host[:i], host[i+1:]
	}
	h = strings.TrimSuffix(strings.TrimPrefix(h, "["), "]")
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || h == "" || strings.ContainsAny(h, "[]") {
		return p, fmt.Errorf("%w: TargetAddress %.80q is not host[:port][,tag]", ErrText, s)
	}
	if strings.Contains(h, ":") {
		h = "[" + h + "]"
	}
	p.Address = h + ":" + port
	return p, nil
}

// DiscoveredTarget is one target of a SendTargets answer.
type DiscoveredTarget struct {
	Name    string
	Alias   string
	Portals []TargetPortal // empty: reachable where it was discovered
}

// AppendTarget appends a target's record to a SendTargets answer (RFC 7143,
// Appendix C).
func AppendTarget(dst []byte, t *DiscoveredTarget) []byte {
	dst = AppendKey(dst, rules[KeyTargetName].name, t.Name)
	if t.Alias != "" {
		dst = AppendKey(dst, rules[KeyTargetAlias].name, t.Alias)
	}
	for _, p := range t.Portals {
		dst = AppendKey(dst, keyTargetAddress, p.String())
	}
	return dst
}

// ParseTargets reads a complete SendTargets answer.
func ParseTargets(text []byte) ([]DiscoveredTarget, error) {
	kvs, err := ParseText(text)
	if err != nil {
		return nil, err
	}
	var ts []DiscoveredTarget
	for _, kv := range kvs {
		if kv.Key == rules[KeyTargetName].name {
			ts = append(ts, DiscoveredTarget{Name: kv.Value})
			continue
		}
		if len(ts) == 0 {
			return nil, fmt.Errorf("%w: SendTargets answer begins with %s instead of TargetName", ErrText, kv.Key)
		}
		t := &ts[len(ts)-1]
		switch kv.Key {
		case keyTargetAddress:
			p, err := ParseTargetAddress(kv.Value)
			if err != nil {
				return nil, err
			}
			t.Portals = append(t.Portals, p)
		case rules[KeyTargetAlias].name:
			t.Alias = kv.Value
		}
	}
	return ts, nil
}

// AppendSendTargets appends the request: "All" in discovery sessions, "" for the
// session's own target, or a target's name.
func AppendSendTargets(dst []byte, which string) []byte { return AppendKey(dst, keySendTargets, which) }

// SendTargets finds the SendTargets request in the pairs of a Text Request.
func SendTargets(kvs []KeyValue) (which string, ok bool) {
	for _, kv := range kvs {
		if kv.Key == keySendTargets {
			return kv.Value, true
		}
	}
	return "", false
}
