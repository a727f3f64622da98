package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/rdma/rdmatest"
)

// Prometheus' own checker has nothing to say about what a target with a session, a
// refused login and a LUN that is not served exposes.
func TestPromtoolAcceptsMetrics(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool (Debian package prometheus)")
	}
	text, _ := exposition(t)
	c := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	c.Stdin = strings.NewReader(text)
	if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// Without promtool: every family has help and a type, a counter ends in _total, reasons
// are labels.
func TestMetrics(t *testing.T) {
	text, roce := exposition(t)
	family := regexp.MustCompile(`(?m)^# TYPE (iser_target_\w+) (\w+)$`)
	all := family.FindAllStringSubmatch(text, -1)
	if len(all) < 15 {
		t.Errorf("%d families", len(all))
	}
	for _, f := range all {
		if f[2] == "counter" != strings.HasSuffix(f[1], "_total") {
			t.Errorf("%s is a %s", f[1], f[2])
		}
		if !strings.Contains(text, "# HELP "+f[1]+" ") {
			t.Errorf("%s has no help", f[1])
		}
	}
	for _, want := range []string{
		`iser_target_logins_refused_total{reason="no_such_target"} 1`, `iser_target_logins_refused_total{reason="access_list"} 0`,
		`iser_target_lun_up{lun="0",target="iqn.2026-11.test:a",volume="d"} 1`, `iser_target_lun_up{lun="1",target="iqn.2026-11.test:a",volume="gone"} 0`,
		`iser_target_sessions{transport="iSCSI/TCP"} 1`, `iser_target_sessions{transport="iSER"} 0`, `iser_target_iscsi_connections{transport="iSCSI/TCP"} 1`,
		`iser_target_iscsi_commands_total{kind="write",transport="iSCSI/TCP"} 0`, `iser_target_volume_reads_total{volume="d"} 1`, `iser_target_volume_latency_seconds_count{kind="write",volume="d"} 0`,
		`iser_target_config_last_reload_successful 1`, `iser_target_rdma_crc_errors_total{transport="iSER"} 0`, `iser_target_rdma_queue_pairs{transport="NVMe/RDMA"} 0`,
		`iser_target_tcp_retransmits_total{transport="iSCSI/TCP"} 0`, `iser_target_tcp_retransmits_total{transport="iSER"} 0`, `iser_target_tcp_retransmits_total{transport="NVMe/RDMA"} 0`,
		`iser_target_recovery_events_total{event="session_reinstated"} 0`, `iser_target_volume_throttled_commands_total{volume="d"} 0`, `iser_target_volume_staging_waits_total{volume="d"} 0`,
		`iser_target_volume_medium_errors_total{kind="write",volume="d"} 0`, fmt.Sprintf(`iser_target_build_info{goarch="%s",goversion="%s",version="%s"} 1`, runtime.GOARCH, runtime.Version(), version), fmt.Sprintf(`iser_target_roce_queue_pairs{address="%s"} 0`, roce), fmt.Sprintf(`iser_target_roce_sent_pkts_total{address="%s"} 0`, roce),
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}
}

// exposition is what /metrics of such a target answers.
func exposition(t *testing.T) (string, netip.Addr) {
	t.Helper()
	metrics, addr := loopback.FreeAddr(t), loopback.FreeAddr(t)
	roce := rdmatest.RoCEAddr()
	f, _ := configFile(t, t.TempDir(), fmt.Sprintf(`
portals: [{listen: %q}, {listen: "roce://%v:0"}]
volumes: [{name: d, type: memory, size: 1MiB}, {name: gone, type: file, path: gone.img}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}, {lun: 1, volume: gone}]}]
admin: {metrics: %q}
`, addr, roce, metrics))
	start(t, "--config", f)
	cfg := initiator.Config{Transport: initiator.TransportTCP, Address: addr, TargetName: "iqn.2026-11.test:a"}
	l, err := initiator.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.ReadAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	cfg.TargetName = "iqn.2026-11.test:nobody"
	if l, err := initiator.Open(t.Context(), cfg); err == nil {
		l.Close()
		t.Fatal("there is a target that there is not")
	}
	defer http.DefaultClient.CloseIdleConnections()
	var text string
	await.True(t, "the refusal is counted", func() bool { // after it has been answered
		resp, err := http.Get("http://" + metrics + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		text = string(b)
		return strings.Contains(text, `{reason="no_such_target"} 1`)
	})
	return text, roce
}

// TestMetricsOfOpenPorts: portals whose ports the system chooses are told apart.
func TestMetricsOfOpenPorts(t *testing.T) {
	metrics := loopback.FreeAddr(t)
	f, _ := configFile(t, t.TempDir(), fmt.Sprintf(`
portals: [{listen: "127.0.0.1:0"}, {listen: "127.0.0.1:0"}]
volumes: [{name: d, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}]
admin: {metrics: %q}
`, metrics))
	start(t, "--config", f)
	defer http.DefaultClient.CloseIdleConnections()
	resp, err := http.Get("http://" + metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if all := regexp.MustCompile(`iser_target_connections_total\{portal="127.0.0.1:[1-9][0-9]*"\} 0\n`).FindAllString(string(text), -1); err != nil || resp.StatusCode != http.StatusOK || len(all) != 2 || all[0] == all[1] {
		t.Errorf("%v, %s, %q\n%s", err, resp.Status, all, text)
	}
}

// TestMetricsConnections: whoever reaches the metrics listener has no more than metricsConns descriptors
// of the target; the next one gets in when one ends.
func TestMetricsConnections(t *testing.T) {
	all, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := fewAtATime(all)
	defer ln.Close()
	came := make(chan net.Conn)
	go func() {
		defer close(came)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			came <- c
		}
	}()
	for range metricsConns + 1 {
		c, err := net.Dial("tcp", all.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	var open []net.Conn
	for range metricsConns {
		open = append(open, <-came)
	}
	select {
	case <-came:
		t.Errorf("%d connections are there at once", metricsConns+1)
	case <-time.After(50 * time.Millisecond):
	}
	open[0].Close()
	last := <-came
	for _, c := range append(open, last) {
		c.Close()
	}
}
