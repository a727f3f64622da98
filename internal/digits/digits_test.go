package digits

import (
	"testing"
	"time"
)

func TestRound(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999: "999ns", 1000: "1µs", 1234: "1.23µs", 1235: "1.24µs", 12345: "12.3µs", 1234567: "1.23ms", 999600: "1ms", 61 * time.Second: "1m1s",
	} {
		if got := Round(d).String(); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
}
