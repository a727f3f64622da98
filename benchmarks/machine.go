package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"softiser/benchmarks/internal/memory"
	"softiser/benchmarks/internal/result"
)

// probed is how much memory is touched to learn how fast it comes, bytes: a third of a second where it comes slowly.
const probed = 64 << 20

// firstTouch is the key of Run.Machine for how fast new memory comes.
const firstTouch = "first touch of memory"

// note keeps how fast new memory came when a run began, and says what it spoils where that is slow.
func note(w io.Writer, run *result.Run, t memory.FirstTouch) {
	if run.Machine[firstTouch] == "" {
		run.Machine[firstTouch] = t.String()
	}
	fmt.Fprintf(w, "%s: %v\n", firstTouch, t)
	if t.Unusual() {
		fmt.Fprintln(w, "warning: that is far more than the usual 0.25 to 0.5 µs. Rows that make the page cache grow measure it and little else: cold-randread-*, durable-randwrite-*, first-randwrite-*. "+
			"In the others what is measured with is touched before, save buffers of a few MiB of 1 MiB rows; LIMITS.md has how to read such a run.")
	}
}

// loadAverage is that of the last minute.
func loadAverage() (v float64) {
	b, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		fmt.Sscan(string(b), &v)
	}
	return v
}

// machine describes where the run took place.
func machine() map[string]string {
	read := func(path string) string {
		b, _ := os.ReadFile(path)
		return strings.TrimSpace(string(b))
	}
	m := map[string]string{
		"kernel":             read("/proc/sys/kernel/osrelease"),
		"cores":              fmt.Sprint(runtime.NumCPU()),
		"kind":               kind(),
		"go":                 runtime.Version(),
		"congestion control": read("/proc/sys/net/ipv4/tcp_congestion_control"),
		"load at start":      read("/proc/loadavg"),
	}
	for line := range strings.Lines(read("/proc/cpuinfo")) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			m["cpu"] = strings.TrimSpace(v)
			break
		}
	}
	for line := range strings.Lines(read("/proc/meminfo")) {
		if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			m["memory"] = strings.TrimSpace(v)
		}
	}
	return m
}
