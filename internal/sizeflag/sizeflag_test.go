package sizeflag

import "testing"

func TestSizes(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "4096": 4096, "4KiB": 4096, "1 MiB": 1 << 20, "1.5GiB": 3 << 29, "4kB": 4000, "2GB": 2e9, "512B": 512} {
		var v Value
		if err := v.Set(in); err != nil || int64(v) != want {
			t.Errorf("%q: %d, %v", in, v, err)
		}
	}
	for _, in := range []string{"", "4k", "1M", "2g", "x", "-1", "4KiBs", "1e30GiB"} {
		var v Value
		if err := v.Set(in); err == nil {
			t.Errorf("%q was accepted as %d", in, v)
		}
	}
	for in, want := range map[string]int64{"4k": 4096, "1M": 1 << 20, "2g": 2 << 30, "4KiB": 4096, "4kB": 4000, "65536": 65536} {
		var b Binary
		if err := b.Set(in); err != nil || int64(b.Value) != want {
			t.Errorf("binary %q: %d, %v", in, b.Value, err)
		}
	}
	for in, want := range map[Value]string{-1: "", 0: "0", 1: "1", 1000: "1000", 4096: "4KiB", 1 << 20: "1MiB", 16776192: "16383KiB"} {
		if got := in.String(); got != want {
			t.Errorf("%d prints as %q, want %q", int64(in), got, want)
		}
	}
}
