package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"softiser/target"
)

const monitoring = "../../docs/monitoring"

// Alerts and dashboard ask for nothing that there is not.
func TestMonitoringNamesMetricsThatExist(t *testing.T) {
	known := map[string]bool{}
	ch := make(chan *prometheus.Desc)
	go func() { newCollector(nil).Describe(ch); close(ch) }()
	fq := regexp.MustCompile(`fqName: "(\w+)"`)
	for d := range ch {
		name := fq.FindStringSubmatch(d.String())[1]
		known[name] = true
	}
	for _, file := range []string{"alerts.yaml", "dashboard.json"} {
		text, err := os.ReadFile(filepath.Join(monitoring, file))
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`iser_target_\w+`).FindAllString(string(text), -1)
		if len(names) < 10 {
			t.Errorf("%s names %d metrics", file, len(names))
		}
		for _, n := range names {
			if !known[n] && !known[strings.TrimSuffix(n, "_bucket")] {
				t.Errorf("%s names %s, which there is not", file, n)
			}
		}
	}
}

// TestMonitoringNamesLabelsThatExist: alerts and dashboard sort by, and put into texts, labels that the metrics of the
// same query have.
func TestMonitoringNamesLabelsThatExist(t *testing.T) {
	labels := map[string][]string{}
	ch := make(chan *prometheus.Desc)
	go func() { newCollector(nil).Describe(ch); close(ch) }()
	variable := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`)
	for d := range ch {
		m := variable.FindStringSubmatch(d.String())
		labels[m[1]] = append(strings.Split(m[2], ","), "instance", "job", "le")
	}
	used := regexp.MustCompile(`\$labels\.(\w+)|\{\{(\w+)\}\}`)
	check := func(name, expr string, texts ...string) {
		t.Helper()
		has := func(label string) bool { // each metric of the query
			for _, n := range regexp.MustCompile(`iser_target_\w+`).FindAllString(expr, -1) {
				if !slices.Contains(labels[strings.TrimSuffix(n, "_bucket")], label) {
					return false
				}
			}
			return true
		}
		var by []string // what is left by sums
		for _, m := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
			for l := range strings.SplitSeq(m[1], ",") {
				if l = strings.TrimSpace(l); !has(l) {
					t.Errorf("%s: %s has no label %s", name, expr, l)
				}
				by = append(by, l)
			}
		}
		for _, m := range used.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
			l := m[1] + m[2]
			if !has(l) || by != nil && !slices.Contains(by, l) {
				t.Errorf("%s: the text has %s, which %s leaves no value", name, l, expr)
			}
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &rules)
	}
	if err != nil || len(rules.Groups) != 1 {
		t.Fatalf("%d groups, %v", len(rules.Groups), err)
	}
	for _, r := range rules.Groups[0].Rules {
		check(r.Alert, r.Expr, r.Annotations["summary"], r.Annotations["description"])
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if text, err = os.ReadFile(filepath.Join(monitoring, "dashboard.json")); err == nil {
		err = json.Unmarshal(text, &board)
	}
	if err != nil || len(board.Panels) < 10 {
		t.Fatalf("%d panels, %v", len(board.Panels), err)
	}
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			check(p.Title, q.Expr, q.LegendFormat)
		}
	}
}

// Every expression of the dashboard is one, and promtool takes the rules.
func TestPromtoolAcceptsRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool (Debian package prometheus)")
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			rules = append(rules, rule{"dashboard:panel", strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(q.Expr)})
		}
	}
	if len(rules) < 20 {
		t.Errorf("the dashboard asks %d questions", len(rules))
	}
	made, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	asked := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(asked, made, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=none", asked, filepath.Join(monitoring, "alerts.yaml")).CombinedOutput()
	if err != nil {
		t.Errorf("promtool check rules: %v\n%s", err, out)
	}
}

func get(h http.Handler, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// A process that serves is alive and ready, one that drains only alive, and what is not
// served is named.
func TestHealth(t *testing.T) {
	st := target.Status{State: "listening", Targets: []target.TargetStatus{{Name: "iqn.2026-11.test:a", LUNs: []target.LUNStatus{{LUN: 3, Error: "no such file"}}}}}
	h := observers(func() target.Status { return st })
	if code, body := get(h, "/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	if code, body := get(h, "/readyz"); code != 200 || body != "ok\nLUN 3 of iqn.2026-11.test:a is not served: no such file\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	st.State = "draining"
	if code, body := get(h, "/readyz"); code != 503 || body != "draining\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	if code, _ := get(h, "/healthz"); code != 200 {
		t.Errorf("/healthz: %d while it drains", code)
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/profile?seconds=1", "/v1/status"} {
		if code, _ := get(h, path); code != 404 {
			t.Errorf("%s: %d at the listener for everybody", path, code)
		}
	}
}

// A server that is stuck is neither, and being asked again and again does not make it worse.
func TestHealthOfAStuckServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		asked := make(chan struct{}, 100)
		h := newHealth(func() target.Status { asked <- struct{}{}; <-stuck; return target.Status{} })
		for range 20 {
			if _, err := h.check(t.Context()); err != errStuck { //nolint:errorlint // this very one
				t.Fatal(err)
			}
		}
		if n := len(asked); n != 8 {
			t.Errorf("the server was asked %d times", n)
		}
		close(stuck)
		synctest.Wait()
		if _, err := h.check(t.Context()); err != nil {
			t.Errorf("after it has come back: %v", err)
		}
	})
}

// TestMetricsOfAStuckServer: who scrapes is told in the end, and keeps none of the few connections from those who ask for the health.
func TestMetricsOfAStuckServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		asked := make(chan struct{}, 100)
		h := observers(func() target.Status { asked <- struct{}{}; <-stuck; return target.Status{} })
		for range 20 {
			if code, body := get(h, "/metrics"); code != http.StatusServiceUnavailable {
				t.Errorf("/metrics: %d %q", code, body)
			}
		}
		if n := len(asked); n > 8 {
			t.Errorf("the server was asked %d times", n)
		}
		close(stuck)
		synctest.Wait()
		if code, body := get(h, "/metrics"); code != http.StatusOK || !strings.Contains(body, "iser_target_build_info{") {
			t.Errorf("/metrics after it has come back: %d %q", code, body)
		}
	})
}

// TestMethodsOfObservers: what is there is only to be read.
func TestMethodsOfObservers(t *testing.T) {
	h := observers(func() target.Status { return target.Status{} })
	for _, path := range []string{"/", "/metrics", "/healthz", "/readyz"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("POST %s: %d, allowed: %q", path, w.Code, w.Header().Get("Allow"))
		}
	}
}

// Sessions beyond the first have no series of their own, and are counted.
func TestSeriesAreBounded(t *testing.T) {
	st := target.Status{Sessions: make([]target.SessionStatus, seriesLimit+5), Controllers: make([]target.ControllerStatus, seriesLimit+7)}
	for i := range st.Sessions {
		st.Sessions[i].TSIH = uint16(i + 1)
	}
	for i := range st.Controllers {
		st.Controllers[i].ID = uint16(i + 1)
	}
	srv := httptest.NewServer(observers(func() target.Status { return st }))
	defer srv.Close()
	text := scrape(t, srv.Listener.Addr().String())
	for line, want := range map[string]int{"iser_target_session_outstanding_commands{": seriesLimit, "iser_target_controller_io_queues{": seriesLimit, "iser_target_sessions_without_series 12": 1} {
		if n := strings.Count(text, line); n != want {
			t.Errorf("%d lines of %s, want %d", n, line, want)
		}
	}
	if !slices.Contains(strings.Split(text, "\n"), `iser_target_controllers{subsystem="",transport=""} 263`) {
		t.Error("the sum leaves controllers out")
	}
}

// TestAlertsFire: every alert fires at what it is for, within twelve minutes, and none without.
func TestAlertsFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool (Debian package prometheus)")
	}
	file, err := filepath.Abs(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	type values struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	var well, ill []values
	for _, s := range []struct{ series, well, ill string }{ // a value each minute
		{`up{job="iser-target"}`, "1x15", "0x15"},
		{`iser_target_lun_up{target="t",lun="0",volume="v"}`, "1x15", "0x15"},
		{`iser_target_namespace_up{subsystem="s",nsid="1",volume="v"}`, "1x15", "0x15"},
		{`iser_target_volume_medium_errors_total{volume="v",kind="write"}`, "2x15", "0x5 1x10"},
		{`iser_target_config_last_reload_successful`, "1x15", "0x15"},
		{`iser_target_logins_refused_total{reason="r"}`, "0+1x15", "0+60x15"},
		{`iser_target_nvme_connects_refused_total{status="r"}`, "0+1x15", "0+60x15"},
		{`iser_target_sessions{transport="iSER"}`, "50x15", "50x15"},
		{`iser_target_sessions{transport="iSCSI/TCP"}`, "30x15", "45x15"},
		{`iser_target_sessions_limit`, "100x15", "100x15"},
		{`iser_target_staging_bytes{kind="sessions"}`, "50x15", "50x15"},
		{`iser_target_staging_bytes{kind="volumes"}`, "30x15", "45x15"},
		{`iser_target_staging_limit_bytes`, "100x15", "100x15"},
		{`iser_target_rdma_crc_errors_total{transport="iSER"}`, "2x15", "0x5 1x10"},
		{`iser_target_roce_repeated_pkts_total{address="a"}`, "0+1x15", "0+10x15"},
		{`iser_target_roce_sent_pkts_total{address="a"}`, "0+200x15", "0+200x15"},
		{`iser_target_volume_latency_seconds_bucket{volume="v",kind="read",le="0.5"}`, "0+200x15", "0+190x15"},
		{`iser_target_volume_latency_seconds_bucket{volume="v",kind="read",le="1"}`, "0+201x15", "0+200x15"},
		{`iser_target_volume_latency_seconds_bucket{volume="v",kind="read",le="+Inf"}`, "0+201x15", "0+200x15"},
		{`iser_target_recovery_events_total{event="connection_lost"}`, "0+1x15", "0+60x15"},
		{`iser_target_snapshots_total{volume="v",result="failed"}`, "2x15", "0x5 1x10"},
	} {
		well, ill = append(well, values{s.series, s.well}), append(ill, values{s.series, s.ill})
	}
	firing := []any{}
	for _, m := range regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllSubmatch(text, -1) {
		firing = append(firing, map[string]any{"labels": `{alertname="` + string(m[1]) + `"}`, "value": 1})
	}
	test := func(series []values, want []any) map[string]any {
		return map[string]any{"interval": "1m", "input_series": series, "promql_expr_test": []any{
			map[string]any{"expr": `count by (alertname) (ALERTS{alertstate="firing"})`, "eval_time": "12m", "exp_samples": want},
		}}
	}
	made, err := yaml.Marshal(map[string]any{"rule_files": []string{file}, "evaluation_interval": "1m", "tests": []any{test(well, nil), test(ill, firing)}})
	if err != nil {
		t.Fatal(err)
	}
	cases := filepath.Join(t.TempDir(), "cases.yaml")
	if err := os.WriteFile(cases, made, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", cases).CombinedOutput(); err != nil || len(firing) < 10 {
		t.Errorf("promtool test rules, of %d alerts: %v\n%s", len(firing), err, out)
	}
}
