package loglimit

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestLogLimitOfABurst(t *testing.T) {
	l := Limit{Every: time.Second, Burst: 3}
	now := time.Unix(1e9, 0)
	allow := func(after time.Duration, ok bool, dropped int) {
		t.Helper()
		now = now.Add(after)
		if n, got := l.allow(now); got != ok || n != dropped {
			t.Fatalf("allowed %v after %d dropped, want %v after %d", got, n, ok, dropped)
		}
	}
	for range 3 {
		allow(0, true, 0)
	}
	allow(0, false, 0)
	allow(999*time.Millisecond, false, 0)
	allow(time.Millisecond, true, 2)
	allow(0, false, 0)
	allow(time.Hour, true, 1)
	allow(0, true, 0)
	allow(0, true, 0)
	allow(0, false, 0)
}

// Lines of one kind are limited, and the dropped ones counted.
func TestLogLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		log := zap.New(core)
		l := Limit{Every: time.Second}
		for range 10 {
			l.Warn(log, "bad")
		}
		time.Sleep(time.Second)
		l.Warn(log, "bad")
		if got := logs.All(); len(got) != 2 || got[1].ContextMap()["similar_lines_dropped"] != int64(9) {
			t.Errorf("lines: %v", got)
		}
	})
}
