package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"softiser/initiator"
	"softiser/internal/loopback"
	"softiser/target"
)

// scrape returns what /metrics answers.
func scrape(t *testing.T, addr string) string {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sum adds up a metric over all labels.
func sum(t *testing.T, text, name string) (total float64) {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name+"{") {
			_, v, _ := strings.Cut(strings.TrimSpace(line), "} ")
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				t.Fatal(err)
			}
			total += n
		}
	}
	return total
}

// What a volume has done is counted once, at however many LUNs and namespaces it is served;
// what a LUN has done is that LUN's.
func TestSumsCountOnce(t *testing.T) {
	addr, metrics := loopback.FreeAddr(t), loopback.FreeAddr(t)
	file, socket := configFile(t, t.TempDir(), fmt.Sprintf(`
portals: [{listen: %q}]
volumes: [{name: d, type: memory, size: 1MiB}]
targets:
  - {iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}
  - {iqn: "iqn.2026-11.test:b", luns: [{lun: 3, volume: d}]}
subsystems: [{nqn: "nqn.2026-11.test:s", namespaces: [{nsid: 1, volume: d}]}]
admin: {socket: SOCK, metrics: %q}
`, addr, metrics))
	start(t, "--config", file, "--log-level", "error")
	for i, x := range []struct {
		iqn string
		lun uint64
	}{{"iqn.2026-11.test:a", 0}, {"iqn.2026-11.test:b", 3}} {
		l, err := initiator.Open(t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: addr, TargetName: x.iqn, LUN: x.lun})
		if err != nil {
			t.Fatal(err)
		}
		for range i + 1 {
			if _, err := l.WriteAt(make([]byte, 4096), 0); err != nil {
				t.Fatal(err)
			}
		}
		l.Close()
	}
	text := scrape(t, metrics)
	for name, want := range map[string]float64{
		"iser_target_volume_writes_total": 3, "iser_target_volume_written_bytes_total": 3 * 4096, "iser_target_volume_size_bytes": 1 << 20,
		"iser_target_lun_up": 2, "iser_target_namespace_up": 1,
	} {
		if got := sum(t, text, name); got != want {
			t.Errorf("the sum of %s is %v, want %v", name, got, want)
		}
	}
	for _, want := range []string{
		`iser_target_lun_latency_seconds_count{kind="write",lun="0",target="iqn.2026-11.test:a",volume="d"} 1`,
		`iser_target_lun_latency_seconds_count{kind="write",lun="3",target="iqn.2026-11.test:b",volume="d"} 2`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}
	st := statusOf(t, socket)
	if v := st.Volumes; len(v) != 1 || v[0].Stats.Writes != 3 || len(v[0].Served) != 3 {
		t.Errorf("volumes in status: %+v", v)
	}
}

// A subsystem is where an operator looks for it: status, metrics, check, the commands that
// change what is served.
func TestNamespaceCommands(t *testing.T) {
	dir := t.TempDir()
	metrics := loopback.FreeAddr(t)
	file, socket := configFile(t, dir, fmt.Sprintf(`
portals: [{listen: "ADDR"}]
volumes: [{name: solo, type: memory, size: 1MiB}, {name: gone, type: file, path: gone.img}]
subsystems: [{nqn: "nqn.2026-11.test:s", namespaces: [{nsid: 1, volume: solo}, {nsid: 2, volume: gone}]}]
admin: {socket: SOCK, metrics: %q}
`, metrics))
	banner, _ := start(t, "--config", file, "--log-level", "error")
	const nqn = "nqn.2026-11.test:s"
	must := func(want string, args ...string) string {
		t.Helper()
		code, out := command(t, append(args, "--socket", socket)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%v: exit %d, want %q in\n%s", args, code, want, out)
		}
		return out
	}
	for _, s := range []string{banner.String(), must(nqn, "status")} {
		if !strings.Contains(s, "NOT SERVED") || !strings.Contains(s, "gone.img") {
			t.Errorf("what is not served is not told:\n%s", s)
		}
	}
	if !strings.Contains(banner.String(), "nvme connect -t tcp -a 127.0.0.1") {
		t.Errorf("the banner:\n%s", banner)
	}
	if code, out := command(t, "check", "--config", file); code != exitDegraded || !strings.Contains(out, "gone") || strings.Contains(out, "volume solo") {
		t.Errorf("check: exit %d\n%s", code, out)
	}
	serves := func(want string) {
		t.Helper()
		if got := namespaceLines(statusOf(t, socket)); got != want {
			t.Errorf("serves %s, want %s", got, want)
		}
	}
	must("", "namespace", "add", nqn, "7", "more=memory,size=2MiB")
	must("", "namespace", "add", nqn, "9", "solo")
	must("", "resize", "solo", "3MiB")
	serves("1=solo(3145728) 7=more(2097152) 9=solo(3145728)")
	must("", "namespace", "remove", nqn, "7")
	must("", "namespace", "remove", nqn, "9")
	serves("1=solo(3145728)")
	for _, args := range [][]string{{"add", nqn, "1", "x=memory,size=1MiB"}, {"add", "nqn.none", "1", "x=memory,size=1MiB"}, {"add", nqn, "5", "nobody"}, {"remove", nqn, "7"}} {
		if code, out := command(t, append([]string{"namespace", "--socket", socket}, args...)...); code != exitFailure {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
	for _, id := range []string{"0", "1025", "one"} {
		if code, _ := command(t, "namespace", "remove", "--socket", socket, nqn, id); code != exitUsage {
			t.Errorf("namespace %s: exit %d", id, code)
		}
	}
	if code, out := command(t, "resize", "--socket", socket, "gone", "2MiB"); code != exitFailure || !strings.Contains(out, "not served") {
		t.Errorf("resize: exit %d\n%s", code, out)
	}
	text := scrape(t, metrics)
	if up := sum(t, text, "iser_target_namespace_up"); up != 1 || strings.Count(text, "iser_target_namespace_up{") != 2 {
		t.Errorf("%v namespaces are up", up)
	}
	if err := os.WriteFile(filepath.Join(dir, "gone.img"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	must("namespace 2 = gone", "reload")
	serves("1=solo(3145728) 2=gone(1048576)")
}

// A namespace stays in the state of a LUN that is removed, and both remove and status say so.
func TestStateOutlivesLUN(t *testing.T) {
	file, socket := configFile(t, t.TempDir(), `
portals: [{listen: "ADDR"}]
volumes: [{name: d, type: memory, size: 1MiB}, {name: e, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d, alua: standby}, {lun: 1, volume: e}]}]
subsystems: [{nqn: "nqn.2026-11.test:s", namespaces: [{nsid: 1, volume: d}, {nsid: 2, volume: e}]}]
admin: {socket: SOCK}
`)
	start(t, "--config", file, "--log-level", "error")
	run := func(args ...string) string {
		t.Helper()
		code, out := command(t, append(args, "--socket", socket)...)
		if code != 0 {
			t.Fatalf("%v: exit %d\n%s", args, code, out)
		}
		return out
	}
	const say = "iser-target lun access nqn.2026-11.test:s 1 1 active-optimized"
	if out := run("lun", "remove", "iqn.2026-11.test:a", "0"); !strings.Contains(out, "namespace 1 of nqn.2026-11.test:s stays inaccessible through portal group 1") || !strings.Contains(out, say) {
		t.Error(out)
	}
	if out := run("lun", "remove", "iqn.2026-11.test:a", "1"); out != "" {
		t.Error(out)
	}
	const shown = "namespace 1 is inaccessible through portal group 1"
	if out := run("status"); !strings.Contains(out, shown) || strings.Contains(out, "namespace 2 is") {
		t.Error(out)
	}
	run(strings.Fields(say)[1:]...)
	if out := run("status"); strings.Contains(out, shown) {
		t.Error(out)
	}
}

// The banner names a portal that speaks what its commands speak.
func TestBannerNamesPortals(t *testing.T) {
	scsi, nvme, rdma := loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)
	file, _ := configFile(t, t.TempDir(), fmt.Sprintf(`
portals: [{listen: %q, protocols: [iser, iscsi]}, {listen: %q, protocols: [nvme-tcp]}, {listen: %q, protocols: [nvme-rdma]}]
volumes: [{name: d, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}]
subsystems:
  - {nqn: "nqn.2026-11.test:s", namespaces: [{nsid: 1, volume: d}]}
  - {nqn: "nqn.2026-11.test:tls", secure_channel: required}
`, scsi, nvme, rdma))
	banner, _ := start(t, "--config", file, "--log-level", "error")
	_, port, _ := strings.Cut(nvme, ":")
	_, rdmaPort, _ := strings.Cut(rdma, ":")
	for _, want := range []string{
		"iser://" + scsi + "/", "nvme connect -t tcp -a 127.0.0.1 -s " + port + " -n nqn.2026-11.test:s ", "nvme connect -t rdma -a 127.0.0.1 -s " + rdmaPort + " -n nqn.2026-11.test:s ",
		"nvme connect -t tcp -a 127.0.0.1 -s " + port + " -n nqn.2026-11.test:tls --tls ",
	} {
		if !strings.Contains(banner.String(), want) {
			t.Errorf("%s is not in the banner:\n%s", want, banner)
		}
	}
	if strings.Contains(banner.String(), rdmaPort+" -n nqn.2026-11.test:tls") { // there is no TLS over RDMA
		t.Error(banner)
	}
	if l, err := initiator.Open(t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: nvme, TargetName: "iqn.2026-11.test:a"}); err == nil {
		l.Close()
		t.Error("a portal for NVMe alone lets an initiator in")
	}
}

// namespaceLines are the namespaces of the first subsystem, "1=solo 7=more".
func namespaceLines(st target.Status) string {
	var b bytes.Buffer
	for _, n := range st.Subsystems[0].Namespaces {
		if n.Error == "" {
			fmt.Fprintf(&b, "%d=%s(%d) ", n.NSID, n.Volume, n.Size)
		}
	}
	return strings.TrimSpace(b.String())
}
