package rows

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
	"softiser/initiator"
	"softiser/initiator/bench"
	"softiser/rdma"
)

// resourceRows: what the product needs, and what it leaves alone.
func resourceRows() []Row {
	return []Row{memoryRow(), registerRow(), allocRow(), slowRow(), idleRow(), syscallRow(1), syscallRow(32)}
}

// single is a row with one contender whose figure has a limit of its own.
func single(id, title, metric string, want float64, c Contender) Row {
	return Row{
		Row: result.Row{ID: id, Title: title, Metrics: []string{metric},
			Ratios: []result.Ratio{{Name: title, Num: c.Name, Metric: metric, Op: "<=", Want: want}}},
		Contenders: []Contender{c},
	}
}

// memoryRow: resident memory of the target per session.
func memoryRow() Row {
	return Row{
		Row: result.Row{
			ID: "memory", Title: "target memory per session", Metrics: []string{result.Bytes},
			Ratios: []result.Ratio{
				{Name: "memory of each of 1024 idle sessions", Num: "idle", Metric: result.Bytes, Op: "<=", Want: 128 << 10},
				{Name: "memory per session at queue depth 128, without data in flight", Num: "queue depth 128", Metric: result.Bytes, Op: "<=", Want: 2 << 20},
			},
		},
		Contenders: []Contender{{Name: "idle", Measure: idleMemory}, {Name: "queue depth 128", Measure: busyMemory}},
		Place:      proc.Free, Reps: 3, More: 2 * time.Second,
	}
}

// idleMemory is the memory of each of many sessions that do nothing.
func idleMemory(ctx context.Context, st *Stage) (result.Values, error) {
	const sessions = 1024
	s, before, err := freshTarget(ctx, st)
	if s != nil {
		defer s.Close()
	}
	if err != nil {
		return nil, err
	}
	for range sessions {
		l, err := dial(ctx, s.URL, nil)
		if err != nil {
			return nil, err
		}
		defer l.Close()
	}
	time.Sleep(time.Second)
	after, err := anonymous(s)
	return result.Values{result.Bytes: max(0, after-before) / sessions}, err
}

// busyMemory is the most memory of each of a few sessions that read, less what they have in flight.
func busyMemory(ctx context.Context, st *Stage) (result.Values, error) {
	const sessions, depth = 16, 128
	s, before, err := freshTarget(ctx, st)
	if s != nil {
		defer s.Close()
	}
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		_, err := st.Bench(ctx, s, s.URL, peers.Load{RW: "randread", BS: "4k", Depth: depth, Jobs: sessions})
		done <- err
	}()
	peak := before
	for {
		select {
		case err := <-done:
			return result.Values{result.Bytes: max(0, (peak-before)/sessions-depth*4096)}, err
		case <-time.After(50 * time.Millisecond):
			now, err := anonymous(s)
			if err != nil {
				return nil, err
			}
			peak = max(peak, now)
		}
	}
}

// freshTarget is a target of its own, and its memory: what an earlier load has left in pools
// would hide what this one needs. With an error too there may be one.
func freshTarget(ctx context.Context, st *Stage) (*peers.Server, float64, error) {
	s, err := st.newTarget(peers.TargetConfig{})
	if err != nil {
		return nil, 0, err
	}
	// One session comes and goes first: what is made once is not counted.
	l, err := dial(ctx, s.URL, nil)
	if err != nil {
		return s, 0, err
	}
	l.Close()
	time.Sleep(200 * time.Millisecond)
	n, err := anonymous(s)
	return s, n, err
}

// anonymous is the resident memory of a target that is no file's, bytes.
func anonymous(s *peers.Server) (float64, error) {
	n, err := proc.Status(s.PIDs()[0], "RssAnon")
	return float64(n), err
}

// dial opens a session from this process; mod may change its configuration.
func dial(ctx context.Context, url string, mod func(*initiator.Config)) (*initiator.LUN, error) {
	cfg, err := initiator.ParseURL(url)
	if err != nil {
		return nil, err
	}
	if mod != nil {
		mod(&cfg)
	}
	return initiator.Open(ctx, cfg)
}

// registerRow: registration of a sparse volume of 8 TiB.
func registerRow() Row {
	const size = 8 << 40
	r := single("register-8t", "registering an 8 TiB sparse volume", result.Seconds, 1e-3, Contender{Name: "RegMR", Measure: func(context.Context, *Stage) (result.Values, error) {
		f, err := os.CreateTemp("", "softiser-8t-")
		if err != nil {
			return nil, err
		}
		defer os.Remove(f.Name())
		defer f.Close()
		if err := f.Truncate(size); err != nil {
			return nil, err
		}
		mem, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_NORESERVE)
		if err != nil {
			return nil, err
		}
		defer syscall.Munmap(mem)
		dev, err := rdma.Open(nil)
		if err != nil {
			return nil, err
		}
		defer dev.Close()
		pd, err := dev.AllocPD()
		if err != nil {
			return nil, err
		}
		defer pd.Dealloc()
		before, err := proc.Status(os.Getpid(), "VmRSS")
		if err != nil {
			return nil, err
		}
		began := time.Now()
		mr, err := pd.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
		took := time.Since(began)
		if err != nil {
			return nil, err
		}
		defer mr.Dereg()
		after, err := proc.Status(os.Getpid(), "VmRSS")
		return result.Values{result.Seconds: took.Seconds(), result.Bytes: max(0, float64(after-before))}, err
	}})
	r.Metrics = append(r.Metrics, result.Bytes)
	r.Ratios = append(r.Ratios, result.Ratio{Name: "resident growth by registering 8 TiB", Num: "RegMR", Metric: result.Bytes, Op: "<=", Want: 1 << 20})
	return r
}

// allocRow: heap allocations per 4 KiB command on each side.
func allocRow() Row {
	r := Row{Row: result.Row{ID: "allocations", Title: "allocations per 4 KiB command", Metrics: []string{result.Count}}, Reps: 3, More: time.Second}
	for _, rw := range []string{"randread", "randwrite"} {
		name := func(side string) string { return rw + ", " + side }
		r.Ratios = append(r.Ratios,
			result.Ratio{Name: "allocations per 4 KiB " + rw + ", target", Num: name("target"), Metric: result.Count, Op: "<=", Want: 0.01},
			result.Ratio{Name: "allocations per 4 KiB " + rw + ", initiator", Num: name("initiator"), Metric: result.Count, Op: "<=", Want: 0.01})
		r.Contenders = append(r.Contenders,
			allocContender(name("target"), rw, "ours, metrics", openISER, targetMallocs),
			allocContender(name("initiator"), rw, "ours, metrics", openISER, ownMallocs))
	}
	return r
}

// opener opens the volume of a server from this process; counter reads how many objects
// were allocated so far, by the server or by this process.
type (
	opener  func(context.Context, *peers.Server) (bench.LUN, error)
	counter func(context.Context, *peers.Server) (float64, error)
)

// targetMallocs is how many objects a target has allocated, by its metrics.
func targetMallocs(ctx context.Context, s *peers.Server) (float64, error) {
	return s.Metric(ctx, "go_memstats_mallocs_total")
}

// ownMallocs is how many objects this process has allocated.
func ownMallocs(context.Context, *peers.Server) (float64, error) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Mallocs), nil
}

// openISER opens the volume of a server over iSER from this process.
func openISER(ctx context.Context, s *peers.Server) (bench.LUN, error) {
	l, err := dial(ctx, s.URL, nil)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// allocContender reads a counter around a short and a long run from this
// process: the difference is free of what each session costs.
func allocContender(name, rw, target string, open opener, count counter) Contender {
	return Contender{Name: name, Prepare: fill(target), Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
		s := st.started(target)
		var used [2]float64
		most := max(int(220_000*min(1, st.Dur.Seconds())), 11_000)
		for i, n := range [2]int{most / 11, most} {
			before, err := count(ctx, s)
			if err != nil {
				return nil, err
			}
			if err := operations(ctx, s, rw, n, open); err != nil {
				return nil, err
			}
			after, err := count(ctx, s)
			if err != nil {
				return nil, err
			}
			used[i] = after - before
		}
		return result.Values{result.Count: max(0, used[1]-used[0]) / float64(most-most/11)}, nil
	}}
}

// operations runs n operations from this process.
func operations(ctx context.Context, s *peers.Server, rw string, n int, open opener) error {
	_, err := inProcess(ctx, fmt.Sprintf("[j]\nrw=%s\nbs=4k\niodepth=32\nnumber_ios=%d", rw, n), func(ctx context.Context, _ string, _ bench.OpenOptions) (bench.LUN, error) {
		return open(ctx, s)
	})
	return err
}

// inProcess runs a job file's text by our generator in this process.
func inProcess(ctx context.Context, text string, open bench.Opener) (*bench.Report, error) {
	s, err := bench.ParseJobText(strings.NewReader(text), "row")
	if err != nil {
		return nil, err
	}
	jobs, _, err := bench.ParseJobs(s)
	if err != nil {
		return nil, err
	}
	r, err := bench.Run(ctx, jobs, bench.Config{Open: open, URL: "row"})
	if err != nil {
		return nil, err
	}
	return r, r.Err()
}

// URLs of slowRow's jobs, which stand for the LUNs of its one session.
const fastURL, slowURL = "row://fast", "row://slow"

// Job files of slowRow; the time is filled in.
const (
	fastJob = "[fast]\nuri=" + fastURL + "\nrw=randread\nbs=4k\niodepth=16\ntime_based\nruntime=%dms\n"
	slowJob = "[slow]\nuri=" + slowURL + "\nrw=randread\nbs=4k\niodepth=16\nsize=64m\ntime_based\nruntime=%dms\n"
)

// slowRow: a volume that takes 50 ms per read beside a fast one, on one
// connection.
func slowRow() Row {
	return Row{
		Row: result.Row{
			ID: "slow-volume", Title: "a volume of 50 ms per read beside a fast one, same connection", Metrics: []string{result.IOPS},
			Ratios: []result.Ratio{{Name: "IOPS of the fast volume beside the slow one over alone", Num: "beside the slow volume", Den: "alone", Metric: result.IOPS, Op: ">=", Want: 0.9}},
		},
		Place: proc.Free,
		Contenders: []Contender{
			{Name: "alone", Prepare: fill("ours, slow volume"), Measure: jobsOnOneSession(fastJob)},
			{Name: "beside the slow volume", Prepare: fill("ours, slow volume"), Measure: jobsOnOneSession(fastJob + slowJob)},
		},
	}
}

// jobsOnOneSession measures the first of some jobs, which all run on one session from this process.
func jobsOnOneSession(jobs string) func(context.Context, *Stage) (result.Values, error) {
	return func(ctx context.Context, st *Stage) (result.Values, error) {
		cfg, err := initiator.ParseURL(st.started("ours, slow volume").URL)
		if err != nil {
			return nil, err
		}
		cfg.QueueDepth = 64
		sess, err := initiator.Dial(ctx, cfg)
		if err != nil {
			return nil, err
		}
		defer sess.Close()
		open := func(ctx context.Context, url string, _ bench.OpenOptions) (bench.LUN, error) {
			l, err := sess.LUN(ctx, map[string]uint64{fastURL: 0, slowURL: 1}[url])
			if err != nil {
				return nil, err
			}
			return l, nil
		}
		r, err := inProcess(ctx, strings.ReplaceAll(jobs, "%d", fmt.Sprint(st.Dur.Milliseconds())), open)
		if err != nil {
			return nil, err
		}
		d := &r.Clones[0].Dir[0]
		return result.Values{result.IOPS: float64(d.IOs) / d.Runtime.Seconds(), result.P99: float64(d.Clat.Mean)}, nil
	}
}

// idleRow: CPU of target and initiator after a second of silence.
func idleRow() Row {
	r := Row{
		Row:   result.Row{ID: "idle", Title: "CPU of both sides after a second of silence", Metrics: []string{result.CPUShare}},
		Place: proc.Free, Reps: 3, More: 4500 * time.Millisecond,
	}
	for _, x := range []struct {
		name, target string
		spin         time.Duration
	}{{"waiting", "ours, waiting", rdma.BusyPollOff}, {"busy_poll auto", "ours", rdma.BusyPollAuto}, {"busy_poll", "ours, polling", 50 * time.Microsecond}} {
		r.Ratios = append(r.Ratios, result.Ratio{Name: "idle CPU, " + x.name, Num: x.name, Metric: result.CPUShare, Op: "<=", Want: 0.005})
		r.Contenders = append(r.Contenders, Contender{Name: x.name, Prepare: fill(x.target), Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			return idleCPU(ctx, st.started(x.target), x.spin)
		}})
	}
	return r
}

// idleCPU is the share of a processor that target and initiator take together while a session that has
// just been in use is silent.
func idleCPU(ctx context.Context, s *peers.Server, spin time.Duration) (result.Values, error) {
	const settle, silence = 1500 * time.Millisecond, 3 * time.Second
	l, err := dial(ctx, s.URL, func(c *initiator.Config) { c.BusyPoll = spin })
	if err != nil {
		return nil, err
	}
	defer l.Close()
	buf := make([]byte, 4096)
	for i := range int64(100) {
		if _, err := l.ReadAt(buf, i*4096); err != nil {
			return nil, err
		}
	}
	time.Sleep(settle)
	before, err := cpuOf(s)
	if err != nil {
		return nil, err
	}
	time.Sleep(silence)
	after, err := cpuOf(s)
	return result.Values{result.CPUShare: (after - before).Seconds() / silence.Seconds()}, err
}

// cpuOf is the processor time that a server and this process have used.
func cpuOf(s *peers.Server) (time.Duration, error) {
	theirs, err := proc.CPU(s.PIDs()[0])
	if err != nil {
		return 0, err
	}
	ours, err := proc.CPU(os.Getpid())
	return theirs + ours, err
}

const callsOnce = 0.01

// syscallRow: system calls of both sides per command, counted by perf. The
// limit is on what the sides do per command; the naps of the Go runtime's
// monitor thread come by the clock and are reported apart. The login and, on the side
// of the initiator, the start of its program are in the count: some 60 calls that are
// made once. The limits leave room for them, callsOnce per command.
func syscallRow(depth int) Row {
	name := fmt.Sprintf("system calls per 4 KiB randread QD%d, waiting", depth) // a poll is many of them
	r := Row{
		Row: result.Row{
			ID: fmt.Sprintf("syscalls-qd%d", depth), Title: name,
			Metrics: []string{result.Count, result.DataCalls, result.WaitCalls, result.FutexCall, result.Naps, result.OwnCalls, result.Instructions},
		},
		Reps: 3, More: time.Second / 2,
	}
	for _, side := range []string{"target", "initiator"} {
		limit := func(what, metric string, want float64) {
			q := result.Ratio{Name: fmt.Sprintf("%s, %s, %s", name, side, what), Num: side, Metric: metric}
			if want > 0 {
				q.Op, q.Want = "<=", want
			}
			r.Ratios = append(r.Ratios, q)
		}
		if depth == 1 {
			limit("that move data", result.DataCalls, 2+callsOnce)
			limit("all but the runtime's naps", result.OwnCalls, 5+callsOnce)
			limit("with the runtime's naps", result.Count, 0)
		} else {
			limit("all", result.Count, 0.5)
		}
		r.Contenders = append(r.Contenders, callsOf(side, "ours, waiting", nil, peers.Load{RW: "randread", BS: "4k", Depth: depth, Extra: []string{"--busy-poll=0"}}))
	}
	return r
}

// callsOf counts the system calls of one side, "target" or "initiator", under load l.
func callsOf(side, target string, url func(string) string, l peers.Load) Contender {
	return Contender{Name: side, Needs: []string{"perf"}, Prepare: fill(target), Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
		return st.Syscalls(ctx, st.started(target), st.urlOf(target, url), l, side == "target")
	}}
}
