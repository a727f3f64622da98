package volurl

import (
	"strings"
	"testing"
)

func TestHostPort(t *testing.T) {
	for in, want := range map[string]string{
		"host": "host:9", "host:1": "host:1", "10.0.0.1": "10.0.0.1:9", "10.0.0.1:65535": "10.0.0.1:65535",
		"[::1]": "[::1]:9", "[::1]:1": "[::1]:1", "[fe80::1%eth0]:99": "[fe80::1%eth0]:99",
		"[fe80::1%25eth0]:99": "[fe80::1%eth0]:99", "[fe80::1%25eth%2e0]": "[fe80::1%eth.0]:9", "[fe80::1%7]": "[fe80::1%7]:9", "[fe80::1%25]": "[fe80::1%25]:9", "[fe80::1%257]": "[fe80::1%7]:9", "[::ffff:10.0.0.1]": "[::ffff:10.0.0.1]:9",
	} {
		if got, err := HostPort(in, "9"); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
	}
	for in, why := range map[string]string{
		"": "host is empty", ":1": "host is empty", "host:": "port", "host:0": "port", "host:65536": "port", "host:x": "port",
		"::1": "in brackets: [::1]", "[::1": "closing bracket", "[::1]x": "after the bracket", "[]": "host is empty", "[::1::2]": "not an IPv6 address",
		"[127.0.0.1]": "write 127.0.0.1", "[127.0.0.1]:3260": "write 127.0.0.1:3260", "[host]:1": "write host:1", "[127.0.0.1]x": "after the bracket", "[fe80::1%]": "name of an interface", "[fe80::1%25e%zz]": "start of an escape",
	} {
		if got, err := HostPort(in, "9"); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %s, %v; want something about %q", in, got, err, why)
		}
	}
}

// A host that is local to a link is on the one that its peer is on.
func TestOnLink(t *testing.T) {
	for _, c := range [][3]string{
		{"fe80::1", "[fe80::2%eth0]:3260", "fe80::1%eth0"},
		{"fe80::1", "[2001:db8::2]:3260", "fe80::1"},
		{"fe80::1", "host:3260", "fe80::1"},
		{"fe80::1%eth1", "[fe80::2%eth0]:3260", "fe80::1%eth1"},
		{"2001:db8::1", "[fe80::2%eth0]:3260", "2001:db8::1"},
		{"169.254.0.1", "[fe80::2%eth0]:3260", "169.254.0.1"},
		{"host", "[fe80::2%eth0]:3260", "host"},
	} {
		if got := OnLink(c[0], c[1]); got != c[2] {
			t.Errorf("%s at %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

func TestScheme(t *testing.T) {
	if scheme, rest, ok := Scheme("NVMe+TCP://H/NQN"); scheme != "nvme+tcp" || rest != "H/NQN" || !ok {
		t.Errorf("%q, %q, %v", scheme, rest, ok)
	}
	if _, _, ok := Scheme("host:1"); ok {
		t.Error("host:1 has a scheme")
	}
}
