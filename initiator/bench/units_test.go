package bench

import (
	"strings"
	"testing"
	"time"
)

func TestParseBytes(t *testing.T) {
	for _, tc := range []struct {
		in   string
		base int
		want int64 // <0: an error
	}{
		{"0", 1024, 0}, {"4096", 1024, 4096}, {"4k", 1024, 4096}, {"4K", 1024, 4096}, {"4kb", 1024, 4096}, {"4KiB", 1024, 4096},
		{"1m", 1024, 1 << 20}, {"2G", 1024, 2 << 30}, {"1t", 1024, 1 << 40}, {"7p", 1024, 7 << 50}, {"512b", 1024, 512},
		{"0x1000", 1024, 4096}, {"0x4k", 1024, 4096}, {" 8k ", 1024, 8192},
		{"4k", 1000, 4000}, {"4kb", 1000, 4000}, {"4kib", 1000, 4096}, {"1g", 1000, 1e9},
		{"", 1024, -1}, {"k", 1024, -1}, {"4x", 1024, -1}, {"-1", 1024, -1}, {"1.5k", 1024, -1},
		{"9223372036854775807", 1024, 9223372036854775807}, {"9223372036854775808", 1024, -1}, {"8192p", 1024, -1}, {"99999999999t", 1024, -1},
	} {
		got, err := parseBytes(tc.in, tc.base)
		if (err != nil) != (tc.want < 0) || err == nil && got != tc.want {
			t.Errorf("parseBytes(%q, %d) = %d, %v; want %d", tc.in, tc.base, got, err, tc.want)
		}
	}
}

func TestSizeShares(t *testing.T) {
	s, err := parseSize("25%", 1024)
	if err != nil || s.Resolve(1000) != 250 || s.Resolve(1<<62) != 1<<60 {
		t.Errorf("25%%: %v, %v", s, err)
	}
	for _, bad := range []string{"0%", "101%", "%", "x%"} {
		if _, err := parseSize(bad, 1024); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"30": 30 * time.Second, "30s": 30 * time.Second, "2m": 2 * time.Minute, "1h": time.Hour, "1d": 24 * time.Hour,
		"250ms": 250 * time.Millisecond, "7us": 7 * time.Microsecond, "0": 0,
	} {
		if got, err := parseDuration(in, time.Second); err != nil || got != want {
			t.Errorf("%q = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "s", "1x", "-1", "99999999999999999d"} {
		if _, err := parseDuration(bad, time.Second); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

// Fractions, which fio does not take either, are called what they are.
func TestFractions(t *testing.T) {
	if _, err := parseBytes("1.5k", 1024); err == nil || !strings.Contains(err.Error(), "smaller") {
		t.Errorf("a size: %v", err)
	}
	if _, err := parseDuration("1.5", time.Second); err == nil || !strings.Contains(err.Error(), "smaller") {
		t.Errorf("a time: %v", err)
	}
}

func TestNum2str(t *testing.T) {
	for _, tc := range []struct {
		n     float64
		width int
		base  float64
		unit  string
		want  string
	}{
		// As real fio printed these.
		{107838, 4, 1000, "", "108k"}, {442_000_000, 4, 1000, "B/s", "442MB/s"}, {441450496, 4, 1024, "B/s", "421MiB/s"},
		{16384000, 4, 1024, "B", "15.6MiB"}, {9961472, 4, 1024, "B", "9728KiB"}, {25128, 4, 1000, "", "25.1k"},
		{1199600, 6, 1000, "", "1199.6k"}, {2680500, 6, 1000, "", "2680.5k"},
		{9999, 4, 1000, "", "9999"}, {0, 4, 1000, "", "0"}, {12, 4, 1024, "B/s", "12B/s"},
	} {
		if got := num2str(tc.n, tc.width, tc.base, tc.unit); got != tc.want {
			t.Errorf("num2str(%v) = %q, want %q", tc.n, got, tc.want)
		}
	}
}
