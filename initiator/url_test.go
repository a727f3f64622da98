package initiator

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	const iqn = "iqn.2026-11.softiser:disk0"
	base := Config{Address: "host:3260", TargetName: iqn}
	with := func(f func(c *Config)) Config {
		c := base
		f(&c)
		return c
	}
	for _, c := range []struct {
		url  string
		want Config
	}{
		{"iser://host/" + iqn + "/0", base},
		{"ISER://host/" + iqn + "/0", base}, // RFC 3986 §3.1
		{"iSCSI://host/iqn.2026-11.softiser%3Adisk0/0?iser", base},
		{"iscsi://host:3261/" + iqn + "/7", with(func(c *Config) { c.Transport, c.Address, c.LUN = TransportTCP, "host:3261", 7 })},
		{"iscsi://host/" + iqn + "/0?iser", base},
		{"iser://[::1]/" + iqn + "/0", with(func(c *Config) { c.Address = "[::1]:3260" })},
		{"iser://[fe80::1%eth0]:99/" + iqn + "/0", with(func(c *Config) { c.Address = "[fe80::1%eth0]:99" })},
		{"iser://joe@host/" + iqn + "/0", with(func(c *Config) { c.Auth.User = "joe" })},
		{"iser://joe%secret12secret@host/" + iqn + "/0", with(func(c *Config) { c.Auth.User, c.Auth.Secret = "joe", "secret12secret" })},
		{"iser://joe%p%40ss%2Fw%25rd@host/" + iqn + "/0", with(func(c *Config) { c.Auth.User, c.Auth.Secret = "joe", "p@ss/w%rd" })},
		{"iser://a%b@host/" + iqn + "/0?target_user=t&target_password=x%26y", with(func(c *Config) { c.Auth = Auth{User: "a", Secret: "b", TargetUser: "t", TargetSecret: "x&y"} })},
		{"iscsi://host/" + iqn + "/0?header_digest=crc32c&data_digest=crc32c,none", with(func(c *Config) {
			c.Transport, c.HeaderDigest, c.DataDigest = TransportTCP, []string{"CRC32C"}, []string{"CRC32C", "None"}
		})},
		{"iser://host/" + iqn + "/0?auth=sha3-256,sha256,md5&noauth", with(func(c *Config) { c.Auth = Auth{Algorithms: []string{"sha3-256", "sha-256", "md5"}, None: true} })},
	} {
		got, err := ParseURL(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
		} else if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.url, got, c.want)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	for url, why := range map[string]string{
		"":                                             "not a URL",
		"host":                                         "not a URL",
		"http://host/iqn.2026-11.a:b/0":                "scheme",
		"iser://host":                                  "want iser://",
		"iser://host/iqn.2026-11.a:b":                  "want iser://",
		"iser://host/iqn.2026-11.a:b/":                 "want iser://",
		"iser:///iqn.2026-11.a:b/0":                    "host is empty",
		"iser://:3260/iqn.2026-11.a:b/0":               "host is empty",
		"iser://host:0/iqn.2026-11.a:b/0":              "port",
		"iser://host:70000/iqn.2026-11.a/0":            "port",
		"iser://::1/iqn.2026-11.a:b/0":                 "brackets",
		"iser://[::1/iqn.2026-11.a:b/0":                "bracket",
		"iser://[host]/iqn.2026-11.a:b/0":              "IPv6",
		"iscsi://[127.0.0.1]:99/iqn.2026-11.a:b/0":     "write 127.0.0.1:99",
		"iser://[::1]x/iqn.2026-11.a:b/0":              "after the bracket",
		"iser://host/disk/0":                           "target name",
		"iser://host/iqn.2026-11.a:b/x":                "LUN",
		"iser://host/iqn.2026-11.a:b/-1":               "LUN",
		"iser://host/iqn.2026-11.a:b/16384":            "LUN",
		"iser://@host/iqn.2026-11.a:b/0":               "user name",
		"iser://u%a%zz@h/iqn.2026-11.a:b/0":            "escape",
		"iser://u%a/b@h/iqn.2026-11.a:b/0":             "%2F",
		"iser://u%a?b@h/iqn.2026-11.a:b/0":             "%3F",
		"iser://h/iqn.2026-11.a:b/0?foo=1":             "option",
		"iser://h/iqn.2026-11.a:b/0?auth=x":            "CHAP algorithm",
		"iser://h/iqn.2026-11.a:b/0?header_digest=md5": "digest",
	} {
		if _, err := ParseURL(url); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want something about %q", url, err, why)
		}
	}
}

// Whatever is wrong with a URL, the message does not contain the secret, nor
// does anything that prints a configuration.
func TestSecretsAreNotPrinted(t *testing.T) {
	const secret = "hunter2hunter2"
	for _, url := range []string{
		"iser://joe%" + secret + "@host/disk/0", "iser://joe%" + secret + "@:1/iqn.2026-11.a:b/0", "joe%" + secret + "@host",
		"iser://joe%" + secret + "%zz@host/iqn.2026-11.a:b/0", "iser://h/x/0?target_password=" + secret, "x://joe%" + secret + "@h",
		"iser://joe%a/" + secret + "@host/iqn.2026-11.a:b/0", "iser://joe%a?" + secret + "@host/iqn.2026-11.a:b/0", "iser://joe%a@/" + secret + "@host/iqn.2026-11.a:b/0",
		"x://joe%a?" + secret + "@h", "iser://joe%a/b?" + secret + "@host/iqn.2026-11.a:b/0",
		"iser://h/iqn.2026-11.a:b/0?target_password=" + secret + "&bad=1", "iser://h/iqn.2026-11.a:b/0?target_password=" + secret + "%zz",
	} {
		if _, err := ParseURL(url); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
	}
	for _, url := range []string{
		"iser://joe%" + secret + "@host/iqn.2026-11.a:b/0?target_password=a@b", "iser://[fe80::1%eth0]:3260/iqn.2026-11.a:b/0?target_user=joe&target_password=a@b",
	} {
		if _, err := ParseURL(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	c, err := ParseURL("iser://joe%" + secret + "@host/iqn.2026-11.a:b/0?target_password=" + secret + "x")
	if err != nil || c.Auth.Secret != secret {
		t.Fatal(err)
	}
	j, err := json.Marshal(c.Auth)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprint(c.Auth), fmt.Sprintf("%+v %#v %q %x %s", c.Auth, c.Auth.Secret, c.Auth.Secret, c.Auth.Secret, c.Auth.Secret), string(j), c.URL()} {
		if strings.Contains(s, secret) || strings.Contains(s, fmt.Sprintf("%x", secret)) {
			t.Errorf("secret printed: %s", s)
		}
	}
}

func TestParsePortal(t *testing.T) {
	for in, want := range map[string]string{"host": "iser host:3260", "iscsi://[::1]": "iscsi [::1]:3260", "10.0.0.1:99": "iser 10.0.0.1:99"} {
		c, err := ParsePortal(in)
		if got := fmt.Sprint(c.Transport, " ", c.Address); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "iser://host/iqn.2026-11.a:b/0", "::1"} {
		if _, err := ParsePortal(in); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	ok := Config{Address: "h:1", TargetName: "iqn.2026-11.a:b"}
	for name, f := range map[string]func(c *Config){
		"no address":     func(c *Config) { c.Address = "" },
		"no target":      func(c *Config) { c.TargetName = "" },
		"bad target":     func(c *Config) { c.TargetName = "disk" },
		"queue depth":    func(c *Config) { c.QueueDepth = 5000 },
		"LUN":            func(c *Config) { c.LUN = 1 << 40 },
		"secret alone":   func(c *Config) { c.Auth.Secret = "x" },
		"user alone":     func(c *Config) { c.Auth.User = "x" },
		"same secrets":   func(c *Config) { c.Auth = Auth{User: "a", Secret: "x", TargetSecret: "x"} },
		"half mutual":    func(c *Config) { c.Auth = Auth{TargetSecret: "x"} },
		"no such alg":    func(c *Config) { c.Auth.Algorithms = []string{"rot13"} },
		"initiator name": func(c *Config) { c.InitiatorName = "me" },
		"burst":          func(c *Config) { c.MaxBurstLength = 1 << 24 },
	} {
		c := ok.withDefaults()
		f(&c)
		if c.validate(false) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	c := ok.withDefaults()
	if err := c.validate(false); err != nil {
		t.Error(err)
	}
	if c.ISID == ok.withDefaults().ISID {
		t.Error("two sessions have the same random ISID")
	}
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"iser://a%b@[::1]:1/iqn.2026-11.a:b/0?auth=md5", "iscsi://h/iqn.2026-11.a:b/1", "iser://%@?%", "iser://[", "://@/?="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseURL(s)
		if err != nil {
			return
		}
		// What is understood can be written and understood again.
		again, err := ParseURL(c.URL())
		if err != nil {
			// User names may contain what a URL cannot; nothing else may.
			if c.Auth.User == "" {
				t.Fatalf("%q → %q: %v", s, c.URL(), err)
			}
			return
		}
		if again.Address != c.Address || again.TargetName != c.TargetName || again.LUN != c.LUN || again.Transport != c.Transport {
			t.Fatalf("%q → %+v → %+v", s, c, again)
		}
	})
}
