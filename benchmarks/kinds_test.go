package main

import (
	"strings"
	"testing"

	"softiser/benchmarks/internal/result"
)

func TestKindOf(t *testing.T) {
	for _, tc := range []struct{ cpuinfo, arch, want string }{
		{"vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nflags\t\t: avx2 aes vpclmulqdq\n\nvendor_id : x\nmodel : 2\n", "amd64", "amd-25-1-vpclmulqdq-2-cores"},
		{"vendor_id : GenuineIntel\ncpu family : 6\nmodel : 167\nflags : avx512f avx2 vpclmulqdq\n", "amd64", "intel-6-167-avx512f-2-cores"},
		{"CPU implementer\t: 0x41\n", "arm64", "arm64-2-cores"},
		{"", "amd64", "amd64-2-cores"},
	} {
		if got := kindOf(tc.cpuinfo, tc.arch, 2); got != tc.want {
			t.Errorf("%q: %s, want %s", tc.cpuinfo, got, tc.want)
		}
	}
}

func TestKindsText(t *testing.T) {
	run := func(v float64, ratios ...string) *result.Run {
		r := &result.Run{Machine: map[string]string{"cpu": "c"}, Rows: []result.Row{{ID: "r"}},
			Samples: []result.Sample{{Row: "r", Contender: "x", Values: result.Values{result.IOPS: v}}}}
		for _, q := range ratios {
			r.Rows[0].Ratios = append(r.Rows[0].Ratios, result.Ratio{Name: q, Num: "x", Metric: result.IOPS, Op: ">=", Want: 2})
		}
		return r
	}
	got := kindsText(map[string]*result.Run{"b": run(1, "both"), "a": run(3, "both", "one")})
	for _, want := range []string{"| target | wanted | a | b |", "| both | ≥ 2 IOPS | 3 IOPS | **1 IOPS** |", "| one | ≥ 2 IOPS | 3 IOPS |  |"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
}
