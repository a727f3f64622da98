package sizeflag

import (
	"strings"
	"testing"
)

func TestSizes(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "4096": 4096, "4KiB": 4096, "1 MiB": 1 << 20, "1.5GiB": 3 << 29, "4kB": 4000, "2GB": 2e9, "512B": 512,
		"0.5 KiB": 512, ".5ki": 512, "1.1TB": 1.1e12, "0.000000001GB": 1, "2.5EiB": 5 << 59, "1_000kB": 1e6,
		// More than a float64 tells apart.
		"9007199254740993B": 9007199254740993, "8796093022208.0009765625KiB": 9007199254740993, "9223372036854775807": 1<<63 - 1, "9223372036854775.807kB": 1<<63 - 1} {
		var v Value
		if err := v.Set(in); err != nil || int64(v) != want {
			t.Errorf("%q: %d, %v", in, v, err)
		}
	}
	for _, in := range []string{"", "4k", "1M", "2g", "x", "-1", "4KiBs", "1e30GiB", "1,5GiB", "1.2.3GiB", "1/2GiB", ".", ".GiB", "1.5", "8EiB", "9223372036854775.808kB",
		// No whole number of bytes.
		"0.1GiB", "1.1TiB", "1.0001kB", "9.007199254740993PiB"} {
		var v Value
		if err := v.Set(in); err == nil {
			t.Errorf("%q was accepted as %d", in, v)
		}
	}
	// What is too large is told from what is no size.
	for in, large := range map[string]bool{"16EiB": true, "8EiB": true, "99999999999999999999": true, "999999999999TiB": true,
		"1.2.3GiB": false, "16EiBs": false, "1.5": false} {
		if _, err := Parse(in); err == nil || strings.Contains(err.Error(), "the largest size") != large {
			t.Errorf("%q: %v", in, err)
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
