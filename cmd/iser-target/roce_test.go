package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"softiser/rdma"
	"softiser/target"
)

// What limits the way to a peer over RoCE can be read in the status and in the metrics.
func TestRoCEPaths(t *testing.T) {
	local, peer := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	st := target.Status{RoCE: []rdma.RoCEPort{
		{Addr: local, ActiveMTU: 1024, Paths: []rdma.RoCEPath{{
			Local: local, Peer: peer, QPs: 3, Limit: 1 << 20, InFlight: 4096, RTT: 2 * time.Millisecond, MinRTT: time.Millisecond, Rate: 512 << 20, Losses: 7, Congested: 6, Delayed: 5,
		}}},
		{Addr: peer, ActiveMTU: 4096},
	}}
	var b strings.Builder
	if err := printRoCE(&b, st.RoCE); err != nil {
		t.Fatal(err)
	}
	if line := "3 2ms 1ms 1.0 MiB 512 MiB/s 7 6 5 10.9.0.2"; !strings.Contains(strings.Join(strings.Fields(b.String()), " "), line) {
		t.Errorf("there is no %q in\n%s", line, b.String())
	}
	b.Reset()
	if err := printRoCE(&b, st.RoCE[1:]); err != nil || strings.Contains(b.String(), "PEER") {
		t.Errorf("%v; without a peer:\n%s", err, b.String())
	}

	reg := prometheus.NewRegistry()
	reg.MustRegister(newCollector(func() target.Status { return st }))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"iser_target_roce_path_limit_bytes": 1 << 20, "iser_target_roce_path_in_flight_bytes": 4096, "iser_target_roce_path_rtt_seconds": 0.002,
		"iser_target_roce_path_losses_total": 7, "iser_target_roce_path_delayed_total": 5, "iser_target_roce_path_congested_total": 6,
	}
	for _, f := range families {
		if v, ok := want[f.GetName()]; ok {
			delete(want, f.GetName())
			m := f.GetMetric()
			if len(m) != 1 || m[0].GetGauge().GetValue()+m[0].GetCounter().GetValue() != v {
				t.Errorf("%s: %v, want %v", f.GetName(), m, v)
			}
		}
	}
	for name := range want {
		t.Errorf("there is no %s", name)
	}
}
