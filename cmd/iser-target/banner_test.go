package main

import (
	"strings"
	"testing"

	"softiser/config"
	"softiser/internal/await"
	"softiser/target"
)

// The banner of a target with a portal that requires TLS and one that only allows it tells each
// command with the portal that can speak it.
func TestBannerWithTLS(t *testing.T) {
	b := newTLSBed(t)
	const lun = "/iqn.2026-11.test:a/0"
	for _, want := range []string{
		"info   iser://" + b.open + lun + "\n", "attach iser://" + b.open + lun + "\n", "qemu-img info         iscsi://" + b.open + lun + "\n",
		"iser-initiator info   iscsi://" + b.addr + lun + " --tls --tls-ca CA --tls-cert CERT --tls-key KEY\n", "-I iser -p " + b.open + " ", "nvme connect -t tcp -a 127.0.0.1 -s " + strings.TrimPrefix(b.open, "127.0.0.1:") + " ",
	} {
		await.True(t, "the banner says "+want, func() bool { return strings.Contains(b.log.String(), want) })
	}
	if s := b.log.String(); strings.Contains(s, "iser://"+b.addr) || strings.Contains(s, "-p "+b.addr) {
		t.Errorf("commands without TLS for the portal that requires it:\n%s", s)
	}
}

func TestWaysIn(t *testing.T) {
	tls := &config.PortalTLS{}
	for name, c := range map[string]struct {
		portals []config.Portal
		secure  bool   // hosts of the subsystem have to use TLS
		want    string // the words that tell commands apart
	}{
		"one port":        {[]config.Portal{{}}, false, "iser://h0:1 iscsi://h0:1 iser:h0:1 tcp:h0 rdma:h0"},
		"TLS required":    {[]config.Portal{{TLS: tls}}, false, "tls:h0:1"},
		"TLS allowed":     {[]config.Portal{{TLS: &config.PortalTLS{Mode: "allowed"}}}, false, "iser://h0:1 iscsi://h0:1 iser:h0:1 tcp:h0 rdma:h0"},
		"TLS for NVMe":    {[]config.Portal{{TLS: tls}, {}}, true, "iser://h1:1 iscsi://h1:1 tls:h0:1 iser:h1:1 tcp:h0"},
		"only iSCSI":      {[]config.Portal{{TLS: tls}, {Protocols: []string{"iscsi"}}}, false, "iscsi://h1:1 iscsi://h1:1 tls:h0:1 tcp:h1:1"},
		"only NVMe":       {[]config.Portal{{Protocols: []string{"nvme-tcp"}}}, false, "tcp:h0"},
		"RoCE beside TLS": {[]config.Portal{{TLS: tls}, {Listen: "roce://h1:1"}}, false, "iser+roce://h1:1 tls:h0:1 iser:h1:1 rdma:h1"},
	} {
		at := waysIn{[]string{"h0:1", "h1:1"}[:len(c.portals)], c.portals}
		var got []string
		for _, line := range append(append(at.lun("iqn", 0), at.iscsiadm("iqn")...), at.nvmeConnects(&target.SubsystemStatus{NQN: "nqn", TLS: c.secure})...) {
			f := strings.Fields(line)
			switch {
			case strings.Contains(line, "--tls-ca"):
				got = append(got, "tls:"+strings.TrimSuffix(strings.TrimPrefix(f[2], "iscsi://"), "/iqn/0"))
			case f[1] == "info":
				got = append(got, strings.TrimSuffix(f[2], "/iqn/0"))
			case f[0] == "iscsiadm" && f[5] == "-I":
				got = append(got, "iser:"+f[8])
			case f[0] == "iscsiadm":
				got = append(got, "tcp:"+f[6])
			case f[0] == "nvme":
				got = append(got, f[3]+":"+f[5])
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", name, s, c.want)
		}
	}
}
