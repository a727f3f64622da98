package nvmf_test

import (
	"strings"
	"testing"

	. "softiser/initiator/nvmf"
)

func TestParseURL(t *testing.T) {
	const nqn = "nqn.2026-11.softiser:disk0"
	for in, want := range map[string]Config{
		"nvme+tcp://h/" + nqn + "/1":           {Address: "h:4420", Subsystem: nqn, NSID: 1},
		"nvme+tcp://h:3260/" + nqn + "/7":      {Address: "h:3260", Subsystem: nqn, NSID: 7},
		"nvme+tcp://[::1]/" + nqn + "/1":       {Address: "[::1]:4420", Subsystem: nqn, NSID: 1},
		"nvme+tcp://[::1]:3260/" + nqn + "/1":  {Address: "[::1]:3260", Subsystem: nqn, NSID: 1},
		"nvme+rdma://h/" + nqn + "/1":          {Transport: TransportRDMA, Address: "h:4420", Subsystem: nqn, NSID: 1},
		"nvme+tcp://10.0.0.1:1/" + nqn + "/99": {Address: "10.0.0.1:1", Subsystem: nqn, NSID: 99},
	} {
		got, err := ParseURL(in)
		if err != nil || got.URL() != want.URL() {
			t.Errorf("%s: %s, %v", in, got.URL(), err)
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
	if _, err := ParseURL("nvme+tcp://joe%secret@h/" + nqn + "/1"); err == nil || strings.Contains(err.Error(), "secret@") {
		t.Errorf("a user and his secret, as iSCSI has them: %v", err)
	}
	if c, err := ParsePortal("nvme+tcp://h"); err != nil || c.Address != "h:8009" || c.Subsystem != "" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := ParsePortal("nvme+rdma://h"); err != nil || c.Transport != TransportRDMA || c.Address != "h:4420" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := ParsePortal("nvme+tcp://h/x/1"); err == nil {
		t.Error("what is no NQN was taken for one")
	}
}
