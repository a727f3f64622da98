package nvmf_test

import (
	"reflect"
	"strings"
	"testing"

	. "softiser/initiator/nvmf"
	"softiser/internal/nvme"
)

func TestParseURL(t *testing.T) {
	const nqn = "nqn.2026-11.softiser:disk0"
	for in, want := range map[string]Config{
		"nvme+tcp://h/" + nqn + "/1":                  {Address: "h:4420", Subsystem: nqn, NSID: 1},
		"nvme+tcp://h:3260/" + nqn + "/7":             {Address: "h:3260", Subsystem: nqn, NSID: 7},
		"nvme+tcp://[::1]/" + nqn + "/1":              {Address: "[::1]:4420", Subsystem: nqn, NSID: 1},
		"nvme+tcp://[::1]:3260/" + nqn + "/1":         {Address: "[::1]:3260", Subsystem: nqn, NSID: 1},
		"nvme+rdma://h/" + nqn + "/1":                 {Transport: TransportRDMA, Address: "h:4420", Subsystem: nqn, NSID: 1},
		"NVMe+TCP://h/" + nqn + "/1":                  {Address: "h:4420", Subsystem: nqn, NSID: 1}, // RFC 3986 §3.1
		"nvme+tcp://h/nqn.2026-11.softiser%3Adisk0/1": {Address: "h:4420", Subsystem: nqn, NSID: 1},
		"nvme+tcp://h/nqn.a%3Fb%2Fc%2Cd%25/1":         {Address: "h:4420", Subsystem: "nqn.a?b/c,d%", NSID: 1},
		"nvme+tcp://10.0.0.1:1/" + nqn + "/99":        {Address: "10.0.0.1:1", Subsystem: nqn, NSID: 99},
	} {
		got, err := ParseURL(in)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
		if again, err := ParseURL(got.URL()); err != nil || !reflect.DeepEqual(again, want) {
			t.Errorf("%s → %s → %+v, %v", in, got.URL(), again, err)
		}
	}
	for _, in := range []string{
		"", "nvme+tcp://", "nvme+tcp://h", "nvme+tcp://h/" + nqn, "nvme+tcp://h/" + nqn + "/0", "nvme+tcp://h/" + nqn + "/x",
		"nvme+tcp://h/" + nqn + "/4294967295", "nvme+tcp://h/iqn.2026-11.x:y/1", "nvme+tcp://::1/" + nqn + "/1", "nvme+tcp://h:0/" + nqn + "/1",
		"nvme+tcp://h:65536/" + nqn + "/1", "nvme+fc://h/" + nqn + "/1", "iser://h/" + nqn + "/1",
	} {
		if c, err := ParseURL(in); err == nil {
			t.Errorf("%q was taken for %s", in, c.URL())
		}
	}
	for in, why := range map[string]string{
		"nvme+tcp://joe%secret@h/" + nqn + "/1":             "--dhchap-secret", // a user and his secret, as iSCSI has them
		"nvme+tcp://joe%a/secret@h/" + nqn + "/1":           "--dhchap-secret",
		"nvme+tcp://joe%a?secret@h/" + nqn + "/1":           "--dhchap-secret",
		"nvme+fc://joe%secret@h/" + nqn + "/1":              "want nvme+tcp",
		"nvme://h/" + nqn + "/1":                            "want nvme+tcp, nvme+rdma",
		"nvme+tcp://h/" + nqn + "/1?target_password=secret": "%3F",
		"nvme+tcp://[127.0.0.1]:4420/" + nqn + "/1":         "write 127.0.0.1:4420",
		"nvme+tcp://h/nqn.a%zz/1":                           "escape",
		"nvme+tcp://h/nqn.a%00/1":                           "a character",
		"nvme+tcp://h/" + nqn + "%2F1":                      "want nvme+tcp://",
	} {
		if _, err := ParseURL(in); !IsURL(in) || err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "secret@") || strings.Contains(err.Error(), "=secret") {
			t.Errorf("%s: %v, want something about %q", in, err, why)
		}
	}
	if c, err := ParsePortal("nvme+tcp://h"); err != nil || c.Address != "h:8009" || c.Subsystem != "" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := ParsePortal("nvme+rdma://h"); err != nil || c.Transport != TransportRDMA || c.Address != "h:4420" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := ParsePortal("NVME+TCP://h/" + strings.ReplaceAll(nqn, ":", "%3A")); err != nil || c.Subsystem != nqn {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := ParsePortal("nvme+tcp://h/x/1"); err == nil {
		t.Error("what is no NQN was taken for one")
	}
	e := Entry{Transport: "rdma", Address: "::1", Service: "4420", Subsystem: "nqn.a,b:c"}
	if got := e.URL(1); got != "nvme+rdma://[::1]:4420/nqn.a%2Cb:c/1" {
		t.Errorf("of a discovery log: %s", got)
	}
}

// FuzzParseURL reads addresses of namespaces and of discovery services. What is understood can be
// written and understood again.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"nvme+tcp://h/nqn.2026-11.a:b/1", "nvme+rdma://[::1%25lo]:4420/nqn.a%2fb/4294967294", "nvme+rdma://[::1%25lo%2fa%40b]:4420/nqn.a/4", "nvme+tcp://[fe80::1%25257]/nqn.a/1", "nvme+tcp://h%25lo]:4420/nqn.a/4", "nvme+roce://1.2.3.4:1/nqn.a/1", "nvme+tcp://h", "nvme+tcp://h/nqn.a?x=1", "nvme+tcp://%@h/%/", "nvme+tcp://[::1/nqn.a/01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := ParseURL(s); err == nil {
			if again, err := ParseURL(c.URL()); err != nil || !reflect.DeepEqual(again, c) {
				t.Errorf("%q → %q → %+v, %v", s, c.URL(), again, err)
			}
		}
		if c, err := ParsePortal(s); err == nil && (c.Address == "" || c.Subsystem != "" && nvme.CheckNQN(c.Subsystem) != nil) {
			t.Errorf("%q → %+v", s, c)
		}
	})
}
