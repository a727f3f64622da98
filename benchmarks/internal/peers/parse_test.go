package peers

import (
	"strings"
	"testing"

	"softiser/benchmarks/internal/result"
)

func TestParseFio(t *testing.T) {
	v, n, err := parseFio([]byte(`note: something
{"jobs":[{"error":0,"read":{"io_bytes":4096,"bw_bytes":8192,"iops":2.0,"clat_ns":{"percentile":{"50.000000":900}},"lat_ns":{"percentile":{"50.000000":1000,"99.000000":2000}}},
"write":{"io_bytes":0}}]}`))
	if err != nil || n != 4096 || v[result.IOPS] != 2 || v[result.BW] != 8192 || v[result.P50] != 1000 || v[result.P99] != 2000 {
		t.Errorf("%v, %v, %v", v, n, err)
	}
	for _, bad := range []string{"", "nonsense", `{"jobs":[{"error":5}]}`, `{"jobs":[{"read":{}}]}`} {
		if _, _, err := parseFio([]byte(bad)); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

// Of several jobs the one that is asked for counts, and a failure of any.
func TestParseJob(t *testing.T) {
	const two = `{"jobs":[{"jobname":"few","error":0,"read":{"io_bytes":4096,"lat_ns":{"percentile":{"99.000000":2000}}}},
{"jobname":"deep","error":0,"read":{"io_bytes":8192,"lat_ns":{"percentile":{"99.000000":9000}}}}]}`
	for name, want := range map[string]result.Values{"few": {result.P99: 2000}, "deep": {result.P99: 9000}, "": {result.P99: 9000}} {
		if v, _, err := parseJob([]byte(two), name); err != nil || v[result.P99] != want[result.P99] {
			t.Errorf("%q: %v, %v", name, v, err)
		}
	}
	for name, bad := range map[string]string{"other": two, "few": strings.Replace(two, `"deep","error":0`, `"deep","error":5`, 1)} {
		if _, _, err := parseJob([]byte(bad), name); err == nil {
			t.Errorf("%q: %s accepted", name, bad)
		}
	}
}

func TestParseUCX(t *testing.T) {
	v, n, err := parseUCX([]byte("[thread 0] 5 1.0\nFinal:   300000   0.881   19.112   79.861   204.39   48.91   52323   12522\n"), 4096, 300000)
	if err != nil || v[result.IOPS] != 12522 || v[result.P50] != 881 || n != 4096*300000 {
		t.Errorf("%v, %v, %v", v, n, err)
	}
	if v, _, err := parseUCX([]byte("| ions | 50.0%ile |\n      100000      0.754    62.270    76.126       62.73      51.31       16059       13136\n"), 4096, 1); err != nil || v[result.IOPS] != 13136 {
		t.Errorf("%v, %v", v, err)
	}
	if _, _, err := parseUCX([]byte("Connection refused"), 1, 1); err == nil || !strings.Contains(err.Error(), "no result") {
		t.Errorf("%v", err)
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int{"4k": 4096, "1m": 1 << 20, "100": 100} {
		if n, err := parseSize(in); err != nil || n != want {
			t.Errorf("%s: %d, %v", in, n, err)
		}
	}
}

func TestParsePerf(t *testing.T) {
	got, err := parsePerf([]byte("# started on Fri\n\n600,,raw_syscalls:sys_enter,1000,100.00,,\n90,,syscalls:sys_enter_sendmsg,1000,100.00,,\n<not supported>,,instructions:u,0,100.00,,\n"))
	if _, counted := got[instructions]; counted {
		t.Error("instructions that are not counted")
	}
	if err != nil || got["raw_syscalls:sys_enter"] != 600 || got["syscalls:sys_enter_sendmsg"] != 90 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := parsePerf([]byte("600,,raw_syscalls:sys_enter,1000,100.00,,\n7000,,instructions:u,1000,100.00,,\n")); err != nil || got[instructions] != 7000 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n"} {
		if _, err := parsePerf([]byte(bad)); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}
