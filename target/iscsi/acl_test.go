package iscsi

import (
	"net/netip"
	"strings"
	"testing"
)

func TestMatchName(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true},
		{"*", "", true},
		{"*", "iqn.x", true},
		{"iqn.x", "iqn.x", true},
		{"iqn.x", "iqn.xy", false},
		{"iqn.x", "iqn.", false},
		{"iqn.?", "iqn.x", true},
		{"iqn.?", "iqn.", false},
		{"iqn.*:host-??", "iqn.2001-04.org:host-01", true},
		{"iqn.*:host-??", "iqn.2001-04.org:host-1", false},
		{"*a*a*b", "aaaaaaaaab", true},
		{"*a*a*b", "aaaaaaaaac", false},
		{"a**b", "ab", true},
	} {
		if got := matchName(c.pattern, c.name); got != c.want {
			t.Errorf("matchName(%q, %q) = %v", c.pattern, c.name, got)
		}
	}
	// The pattern that makes backtracking matchers exponential.
	if matchName(strings.Repeat("*a", 60)+"b", strings.Repeat("a", 200)) {
		t.Error("matched")
	}
}

func TestACL(t *testing.T) {
	acl := ACL{
		{Initiator: "iqn.1993-08.org.debian:*", Network: netip.MustParsePrefix("10.0.0.0/8")},
		{Initiator: "iqn.2026-11.softiser:Backup"},
		{Network: netip.MustParsePrefix("fd00::/8")},
	}
	for _, c := range []struct {
		name, from string
		want       bool
	}{
		{"iqn.1993-08.org.debian:01:abc", "10.1.2.3", true},
		{"IQN.1993-08.ORG.DEBIAN:01:abc", "10.1.2.3", true},
		{"iqn.1993-08.org.debian:01:abc", "::ffff:10.1.2.3", true}, // IPv4 on a v6 socket
		{"iqn.1993-08.org.debian:01:abc", "192.168.1.1", false},
		{"iqn.2026-11.softiser:backup", "192.168.1.1", true},
		{"iqn.other", "192.168.1.1", false},
		{"iqn.other", "fd12::1", true},
		{"iqn.other", "fd12::1%eth0", true},
	} {
		ok, reason := acl.allow(c.name, netip.MustParseAddr(c.from))
		if ok != c.want {
			t.Errorf("allow(%s, %s) = %v", c.name, c.from, ok)
		}
		if ok != (reason == "") {
			t.Errorf("allow(%s, %s): reason %q", c.name, c.from, reason)
		}
	}
	if ok, _ := ACL(nil).allow("x", netip.Addr{}); !ok {
		t.Error("a nil ACL refused")
	}
	if ok, _ := (ACL{}).allow("x", netip.Addr{}); ok {
		t.Error("an empty ACL admitted")
	}
}
