package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"softiser/benchmarks/internal/result"
)

// Syscalls counts the system calls of one side per operation, by perf's
// tracepoint counter, which slows the side down much less than strace.
func (e *Env) Syscalls(ctx context.Context, s *Server, url string, l Load, server bool) (result.Values, error) {
	out := filepath.Join(e.Scratch, fmt.Sprintf("perf-%d", time.Now().UnixNano()))
	perf := []string{"perf", "stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-o", out}
	var v result.Values
	var err error
	if server {
		cmd := exec.CommandContext(ctx, perf[0], append(perf[1:], "-p", strconv.Itoa(s.PIDs()[0]))...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		time.Sleep(300 * time.Millisecond) // until it is attached
		v, err = e.Bench(ctx, s, url, l)
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	} else {
		v, err = e.benchUnder(ctx, perf, s, url, l)
	}
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	n, err := parsePerf(b)
	if err != nil {
		return nil, err
	}
	return result.Values{result.Count: n / (v[result.IOPS] * e.Dur.Seconds()), result.IOPS: v[result.IOPS]}, nil
}

// parsePerf reads "COUNT,,raw_syscalls:sys_enter,…".
func parsePerf(b []byte) (float64, error) {
	for line := range strings.Lines(string(b)) {
		f := strings.Split(line, ",")
		if len(f) > 2 && strings.HasPrefix(f[2], "raw_syscalls") {
			n, err := strconv.ParseFloat(f[0], 64)
			if err != nil {
				return 0, fmt.Errorf("perf counted nothing (%s): is tracefs mounted and perf_event_paranoid low enough?", f[0])
			}
			return n, nil
		}
	}
	return 0, errors.New("perf printed no count")
}

// Metric reads one figure of a target that was started with metrics.
func (s *Server) Metric(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Metrics+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if v, ok := strings.CutPrefix(string(line), name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, fmt.Errorf("the target has no metric %s", name)
}
