package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// calls are the groups of system calls that are counted apart. What is in no
// group (locks of the runtime's own threads, signals, memory) is in the sum
// alone.
var calls = []struct {
	metric string
	names  []string
}{
	{result.DataCalls, []string{
		"read", "readv", "pread64", "preadv", "preadv2", "recvfrom", "recvmsg", "recvmmsg",
		"write", "writev", "pwrite64", "pwritev", "pwritev2", "sendto", "sendmsg", "sendmmsg", "sendfile64", "splice",
	}},
	{result.WaitCalls, []string{"epoll_wait", "epoll_pwait", "epoll_pwait2"}},
	{result.FutexCall, []string{"futex"}},
	{result.Naps, []string{"nanosleep", "clock_nanosleep"}},
}

// Syscalls counts the system calls of one side per operation, by perf's
// tracepoint counters, which slow the side down much less than strace does.
//
// Counted is every entry of every thread: those that move data (or find that
// there is none: EAGAIN counts), waiting in epoll, futex, and the naps of the
// Go runtime's monitor thread (sysmon), which come by the clock (every 20 µs to
// 10 ms while something runs), not by operation.
func (e *Env) Syscalls(ctx context.Context, s *Server, url string, l Load, server bool) (result.Values, error) {
	out := filepath.Join(e.Scratch, fmt.Sprintf("perf-%d", time.Now().UnixNano()))
	events := []string{"raw_syscalls:sys_enter", instructions}
	for _, g := range calls {
		for _, n := range g.names {
			events = append(events, "syscalls:sys_enter_"+n)
		}
	}
	perf := []string{"perf", "stat", "-x", ",", "-e", strings.Join(events, ","), "-o", out}
	var v result.Values
	var err error
	if server {
		var p *proc.Process
		spec := proc.Spec{Argv: append(perf, "-p", strconv.Itoa(s.PIDs()[0])), Place: proc.Free}
		e.note(spec)
		if p, err = proc.Start(spec); err != nil {
			return nil, err
		}
		defer p.Stop()
		time.Sleep(300 * time.Millisecond) // until it is attached
		v, err = e.Bench(ctx, s, url, l)
		p.Interrupt()
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
	counts, err := parsePerf(b)
	if err != nil {
		return nil, err
	}
	n := v[result.IOPS] * e.Dur.Seconds()
	per := result.Values{result.Count: counts["raw_syscalls:sys_enter"] / n, result.IOPS: v[result.IOPS]}
	for _, g := range calls {
		for _, name := range g.names {
			per[g.metric] += counts["syscalls:sys_enter_"+name] / n
		}
	}
	if x, ok := counts[instructions]; ok {
		per[result.Instructions] = x / n
	}
	per[result.OwnCalls] = per[result.Count] - per[result.Naps]
	return per, nil
}

// instructions is perf's name of what is executed outside the kernel.
const instructions = "instructions:u"

// parsePerf reads lines of "COUNT,,EVENT,…". Instructions are left out where the processor, or
// whoever emulates it, does not count them.
func parsePerf(b []byte) (map[string]float64, error) {
	counts := map[string]float64{}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(line, ",")
		if len(f) < 3 || !strings.Contains(f[2], "sys_enter") && f[2] != instructions {
			continue
		}
		n, err := strconv.ParseFloat(f[0], 64)
		if err != nil && f[2] == instructions {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("perf counted nothing of %s (%s): is tracefs mounted and perf_event_paranoid low enough?", f[2], f[0])
		}
		counts[f[2]] = n
	}
	if counts["raw_syscalls:sys_enter"] == 0 {
		return nil, errors.New("perf printed no count")
	}
	return counts, nil
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
