package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/blockdev/mem"
	"softiser/initiator/nvmf"
	"softiser/target"
	targetnvmf "softiser/target/nvmf"
	"softiser/target/scsi"
	"softiser/target/targettest"
)

const testNQN = "nqn.2026-11.softiser:cli"

// serveBoth runs a target whose only volume is a LUN and a namespace.
func serveBoth(t *testing.T) (addr string, vol *mem.Device) {
	t.Helper()
	srv, vol := serveTarget(t)
	return srv.Addrs()[0], vol
}

func serveTarget(t *testing.T) (*target.Server, *mem.Device) {
	t.Helper()
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.AddTarget(target.Target{Name: testIQN, LUNs: []target.LUN{{Name: "disk0", LUConfig: scsi.LUConfig{Volume: vol}}}}); err != nil {
		t.Fatal(err)
	}
	if err := srv.AddSubsystem(targetnvmf.SubsystemConfig{NQN: testNQN, Namespaces: []targetnvmf.NamespaceConfig{{NSID: 1, Volume: vol}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vol.Close() })
	targettest.Serve(t, srv)
	return srv, vol
}

// refer makes a target tell of discovery services at these addresses.
func refer(t *testing.T, srv *target.Server, list ...targetnvmf.Remote) {
	t.Helper()
	if err := srv.SetReferrals(list); err != nil {
		t.Fatal(err)
	}
}

// Referrals are followed, in circles too, and what one of them does not answer hides
// nothing of the others.
func TestDiscoverFollows(t *testing.T) {
	a, _ := serveTarget(t)
	b, _ := serveTarget(t)
	at := func(addr string) targetnvmf.Remote {
		return targetnvmf.Remote{Address: netip.MustParseAddrPort(addr), TCP: true}
	}
	nobody := "127.0.0.1:1"
	other := at(b.Addrs()[0])
	other.TCP, other.RDMA = false, true
	refer(t, a, at(b.Addrs()[0]))
	refer(t, b, at(a.Addrs()[0]), at(nobody), other)

	portal := "nvme+tcp://" + a.Addrs()[0]
	var want string
	for _, s := range []*target.Server{a, b} {
		for _, wire := range []string{"tcp", "rdma"} {
			want += "nvme+" + wire + "://" + s.Addrs()[0] + "/" + testNQN + "/1\n"
		}
	}
	out, errs, code := run(t, "discover", portal, "--follow", "--urls")
	if code != 0 || out != want {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
	}
	for _, want := range []string{nobody + ": ", b.Addrs()[0] + ": over rdma, asked over tcp"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q is not in %s", want, errs)
		}
	}
	var services []nvmf.Service
	if err := json.Unmarshal([]byte(must(t, "discover", portal, "--follow", "--json")), &services); err != nil || len(services) != 4 ||
		services[0].Address != a.Addrs()[0] || services[0].Log == nil || services[2].Error == "" || services[2].Log != nil {
		t.Errorf("%v %+v", err, services)
	}
	if text := must(t, "discover", portal, "--follow"); !strings.Contains(text, "Discovery service nqn.2014-08.org.nvmexpress.discovery at "+b.Addrs()[0]+" over tcp\n") {
		t.Error(text)
	}

	// As many as one likes to make up are not followed.
	var many []targetnvmf.Remote
	for i := range 40 {
		r := at(a.Addrs()[0])
		r.NQN = fmt.Sprintf("nqn.2026-11.softiser:disc%d", i)
		many = append(many, r)
	}
	refer(t, a, many...)
	if _, errs, code := run(t, "discover", portal, "--follow"); code == 0 || !strings.Contains(errs, "more than 32 discovery services") {
		t.Error(code, errs)
	}
	if _, errs, code := run(t, "discover", "iscsi://"+a.Addrs()[0], "--follow"); code != 2 || !strings.Contains(errs, "referrals") {
		t.Error(code, errs)
	}
}

func TestNVMe(t *testing.T) {
	for transport, title := range map[string]string{"tcp": "NVMe over TCP   ", "rdma": "NVMe over RDMA  "} {
		t.Run(transport, func(t *testing.T) { testNVMe(t, transport, title) })
	}
}

// testNVMe uses every command; title is what it writes, 16 bytes.
func testNVMe(t *testing.T, transport, title string) {
	addr, vol := serveBoth(t)
	scheme := "nvme+" + transport + "://"
	url := scheme + addr + "/" + testNQN + "/1"

	text := must(t, "discover", scheme+addr)
	for _, want := range []string{"Discovery Log Number of Records ", "=====Discovery Log Entry 0======\n", "trtype:  " + transport + "\n", "subtype: nvme subsystem\n", "subnqn:  " + testNQN + "\n", "traddr:  127.0.0.1\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	var log nvmf.Log
	if err := json.Unmarshal([]byte(must(t, "discover", scheme+addr, "--json")), &log); err != nil || len(log.Records) == 0 {
		t.Errorf("%v %+v", err, log)
	}
	if out := must(t, "discover", scheme+addr, "--urls", "--here"); !strings.Contains(out, url+"\n") {
		t.Errorf("%s", out)
	}

	var r report
	info := must(t, "info", url, "--json", "--nr-queues=2", "--hdr-digest", "--data-digest")
	if err := json.Unmarshal([]byte(info), &r); err != nil || strings.Contains(info, "null") {
		t.Fatalf("%v: %s", err, info)
	}
	if r.URL != url || r.Volume.Size != 1<<20 || r.Namespace == nil || r.Namespace.ID != 1 || len(r.Namespace.All) != 1 || len(r.Identity.Designators) == 0 || r.Session != nil {
		t.Errorf("%+v", r)
	}
	if text := must(t, "info", url, "--nr-queues=2"); !strings.Contains(text, "2 I/O queues") {
		t.Errorf("%s", text)
	}

	file := filepath.Join(t.TempDir(), "img")
	data := bytes.Repeat([]byte(title), 1<<16)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "write", url, file, "--data-digest")
	got := make([]byte, len(data))
	if _, err := vol.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("what is on the volume is not what was written: %v", err)
	}
	must(t, "verify", url, file, "--nr-queues=3")
	must(t, "read", url, file, "--force", "-q")
	if out := must(t, "bench", url, "--rw=randrw", "--bs=4k", "--iodepth=8", "--size=1m", "--number_ios=500", "--verify=crc32c", "--nr-queues=2"); !strings.Contains(out, "err= 0") {
		t.Errorf("%s", out)
	}

	// A LUN and a namespace are paths to one volume.
	both := "iser://" + addr + "/" + testIQN + "/0," + url
	if err := json.Unmarshal([]byte(must(t, "info", both, "--json")), &r); err != nil || len(r.Paths) != 2 || !r.Paths[0].Active || !r.Paths[1].Active {
		t.Errorf("%v %+v", err, r.Paths)
	}
	must(t, "write", both, file)
	must(t, "verify", both, file)

	for code, lines := range map[int][][]string{
		exitUsage: {
			{"info", scheme + addr}, {"info", "nvme+fc://h/" + testNQN + "/1"}, {"info", url, "--nr-queues=0"}, {"info", url, "--hostid=x"},
			{"info", url, "--all-portals"}, {"info", url, "--hostnqn=me"}, {"info", url, "--dhchap-secret=DHHC-1:x"},
			{"info", "nvme+rdma://" + addr + "/" + testNQN + "/1", "--tls-key=NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"},
			{"discover", "nvme+rdma://" + addr, "--tls-key=NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"}, {"info", url, "--crc=x"}, {"info", url, "--busy-poll=x"}, {"discover", scheme}, {"info", url, "--ctrl-loss-tmo=-2"},
		},
		exitNotFound: {{"info", scheme + addr + "/" + testNQN + "/7"}, {"info", scheme + addr + "/" + testNQN + "x/1"}},
		exitConnect:  {{"info", scheme + "127.0.0.1:1/" + testNQN + "/1"}},
	} {
		for _, line := range lines {
			if _, errs, got := run(t, line...); got != code {
				t.Errorf("%q: exit code %d, want %d\n%s", line, got, code, errs)
			}
		}
	}
}
