package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"softiser/initiator/connflags"
)

// Config is how a set of jobs is run.
type Config struct {
	Open Opener
	URL  string // the volume of jobs that name none
	// Tick, when set, is called every TickEvery while jobs run.
	Tick      func(*Snapshot)
	TickEvery time.Duration // default 500 ms, fio's sampling interval
	// Status, when set, is called every StatusEvery with what was done until then,
	// and by nobody any more when Run returns.
	Status      func(*Report)
	StatusEvery time.Duration
	// Live, when set, is called every second with what the jobs do, until the context ends.
	Live func(*Look)
	// Plot, when set, is given an SVG when the jobs have run: latency percentiles, bandwidth and
	// operations per second over time.
	Plot io.Writer
}

// Snapshot is the state of a run at one moment, for the progress line.
type Snapshot struct {
	Elapsed  time.Duration
	Interval time.Duration // since the snapshot before
	Running  int
	Verify   bool
	Done     float64        // 0 … 1; <0: unknown
	Bytes    [datas]float64 // per second, over Interval
	IOs      [datas]float64
}

// Look is what a run has done until a moment, for a view that is left open.
type Look struct {
	Report   *Report
	Snapshot Snapshot      // the last one
	Elapsed  time.Duration // since the run began
	Since    time.Duration // since the look before, or the start of the jobs that now run
}

const (
	sampleEvery   = 500 * time.Millisecond
	liveEvery     = time.Second
	maxOpenAtOnce = 16 // logins under way at the same time
	// stopPatience is what operations in flight have to end after an interrupt.
	stopPatience = 3 * time.Second
)

// Run runs jobs, stage by stage, and returns what they did. Failed operations
// are in the report; an error means that a job could not start. When ctx ends
// the jobs stop as if their time were up.
func Run(ctx context.Context, jobs []*Job, cfg Config) (*Report, error) {
	rep := &Report{Started: time.Now()}
	var drawn *timeline
	if cfg.Plot != nil {
		drawn = newTimeline(rep.Started)
	}
	var stage []*Job
	var all []*clone
	over := false // exitall
	flush := func() error {
		if over {
			return nil
		}
		if len(all) > 0 && ctx.Err() != nil { // what has run is reported
			rep.Interrupted = true
			return nil
		}
		run := stageRun{jobs: stage, cfg: cfg, before: all, started: rep.Started, drawn: drawn}
		last, err := run.do(ctx)
		clones := run.clones
		over = last
		if err != nil && len(all) > 0 && ctx.Err() != nil && len(clones) == 0 {
			rep.Interrupted, err = true, nil
		}
		all = append(all, clones...)
		stage = nil
		return err
	}
	thread, threads := 0, 0
	for _, j := range jobs {
		threads += j.NumJobs
	}
	for i, j := range jobs {
		if i > 0 && j.Stonewall {
			if err := flush(); err != nil {
				return nil, err
			}
		}
		for n := range j.NumJobs {
			c := *j
			thread++
			c.clone, c.thread, c.threads = n, thread, threads
			c.URL = cmp.Or(c.URL, cfg.URL)
			stage = append(stage, &c)
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	rep.collect(all, ctx.Err() != nil)
	if drawn != nil {
		if err := rep.writePlot(cfg.Plot, drawn); err != nil {
			return nil, fmt.Errorf("plot: %w", err)
		}
	}
	return rep, nil
}

// stageRun is the run of jobs that start together.
type stageRun struct {
	jobs    []*Job
	cfg     Config
	before  []*clone // of earlier stages
	started time.Time
	drawn   *timeline // nil: nobody draws it
	clones  []*clone
	luns    [][]LUN // of each clone
	cut     bool    // the sessions have been closed under operations that did not end
}

// do runs the stage; over: no later one is to run.
func (w *stageRun) do(ctx context.Context) (over bool, err error) {
	luns, closeAll, err := openAll(ctx, w.jobs, w.cfg)
	w.luns = luns
	defer func() {
		for _, c := range w.clones {
			err = errors.Join(err, c.close())
		}
		if !w.cut { // else the operations have their errors in the report
			err = errors.Join(err, closeAll())
		}
	}()
	if err != nil {
		return false, err
	}
	epoch := time.Now()
	for i, j := range w.jobs {
		c, err := newClone(j, luns[i], luns[i][0].Info(), epoch)
		if err != nil {
			return false, err
		}
		if w.drawn != nil {
			c.ticker = w.drawn.ticker(epoch)
		}
		w.clones = append(w.clones, c)
	}
	clones := w.clones
	if err := checkOverlap(clones); err != nil {
		return false, err
	}
	in := flows{}
	for _, c := range clones {
		in.add(c)
	}
	var ends exits
	ends.follow(clones)
	runtime.GC() // so that what logins leave behind is not collected beside the first commands
	for _, c := range clones {
		before := c.waitsFor(clones)
		go func() {
			for _, b := range before {
				<-b.done
			}
			c.start()
		}()
	}
	w.watch(ctx, epoch, closeAll)
	over = ends.wait()
	seen := map[LUN]bool{}
	for i, c := range clones {
		for _, l := range luns[i] {
			if !seen[l] { // clones may share a session: it counts once
				seen[l] = true
				c.stats.addSession(l.Stats())
			}
		}
	}
	return over, nil
}

// checkOverlap refuses runs whose verification could not be trusted.
func checkOverlap(clones []*clone) error {
	for i, a := range clones {
		if a.ledger == nil {
			continue
		}
		for k, b := range clones {
			if i == k || !b.job.writes() && !b.job.Dirs[dirTrim] || b.job.VerifyOnly || !a.sameVolume(b) || a.after(b, clones) || b.after(a, clones) {
				continue
			}
			if a.work.offsets.base < b.work.offsets.end() && b.work.offsets.base < a.work.offsets.end() {
				return fmt.Errorf("%s: job %s verifies blocks that job %s (%s) overwrites at the same time: give them separate ranges with offset, offset_increment and size, or add stonewall",
					a.job.Pos, a.job.Name, b.job.Name, b.job.Pos)
			}
		}
	}
	return nil
}

// sameVolume reports whether two clones use one volume, however their URLs name it.
func (c *clone) sameVolume(o *clone) bool {
	if c.job.URL == o.job.URL {
		return true
	}
	ours, others := uniqueNames(c.luns[0]), uniqueNames(o.luns[0])
	if len(ours) > 0 && len(others) > 0 {
		return slices.ContainsFunc(ours, func(name string) bool { return slices.Contains(others, name) })
	}
	return strings.EqualFold(connflags.Names(c.job.URL), connflags.Names(o.job.URL))
}

// uniqueNames are the names of a volume that no other one has: one after T10 is as unique as a vendor has made it.
func uniqueNames(l LUN) []string {
	return slices.DeleteFunc(slices.Clone(l.Names()), func(name string) bool { return strings.HasPrefix(name, "t10.") })
}

// want is one session to open and the clones that will use it.
type want struct {
	job *Job
	url string
	dst []*LUN
}

// plan distributes sessions over clones: result[i] are those of jobs[i]. The
// clones of one job share its sessions= connections; where there are more
// sessions than clones, a clone spreads its slots over several.
func plan(jobs []*Job, url string) (luns [][]LUN, wants []want, err error) {
	luns = make([][]LUN, len(jobs))
	for first := 0; first < len(jobs); first += jobs[first].NumJobs {
		j := jobs[first]
		n, sessions := j.NumJobs, j.Sessions
		if sessions == 0 {
			sessions = n
		}
		for k := range n {
			luns[first+k] = make([]LUN, max(1, (sessions+n-1-k)/n))
		}
		for s := range sessions {
			w := want{job: j, url: j.URL}
			if w.url == "" {
				w.url = url
			}
			if w.url == "" {
				return nil, nil, noVolume(j)
			}
			for k := range n {
				if sessions >= n && s%n == k {
					w.dst = append(w.dst, &luns[first+k][s/n])
				} else if sessions < n && k%sessions == s {
					w.dst = append(w.dst, &luns[first+k][0])
				}
			}
			wants = append(wants, w)
		}
	}
	return luns, wants, nil
}

func noVolume(j *Job) error {
	return fmt.Errorf("%s: job %s names no volume: give its URL on the command line or as uri= in the job", j.Pos, j.Name)
}

// openAll opens the sessions of every clone. closeAll closes those that were
// opened, also after an error.
func openAll(ctx context.Context, jobs []*Job, cfg Config) (luns [][]LUN, closeAll func() error, err error) {
	luns, wants, err := plan(jobs, cfg.URL)
	opened := make([]LUN, len(wants))
	closeAll = func() (err error) {
		for _, l := range opened {
			if l != nil {
				err = errors.Join(err, l.Close())
			}
		}
		return err
	}
	if err == nil {
		err = afford(jobs, len(wants), descriptorsLeft(), memoryMiB()<<20)
	}
	if err != nil {
		return nil, closeAll, err
	}
	errs := make([]error, len(wants))
	gate := make(chan struct{}, maxOpenAtOnce)
	var wg sync.WaitGroup
	for i, w := range wants {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			o := OpenOptions{Depth: w.job.IODepth * len(w.dst), MaxIO: w.job.maxBS(), BusyPoll: w.job.BusyPoll}
			l, err := cfg.Open(ctx, w.url, o)
			if errors.Is(err, syscall.EMFILE) {
				err = fmt.Errorf("%w: %d sessions, each with at least a connection for every one of --nr-sessions, --nr-queues and its paths, need more descriptors than ulimit -n allows", err, len(wants))
			}
			if err != nil {
				errs[i] = fmt.Errorf("job %s: %w", w.job.Name, err)
				return
			}
			opened[i] = l
			for _, d := range w.dst {
				*d = l
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, closeAll, err // the first says it; the others say the same
		}
	}
	return luns, closeAll, nil
}

// watch waits for all clones, samples them, and stops them when ctx ends.
// Operations that do not end then, because their session waits for a lost
// connection, are ended by closing the sessions; so are those that wait for one
// when the jobs' time is over.
func (w *stageRun) watch(ctx context.Context, epoch time.Time, closeAll func() error) {
	clones, cfg := w.clones, w.cfg
	tick, stopTick := ticks(true, cmp.Or(cfg.TickEvery, sampleEvery))
	defer stopTick()
	live, stopLive := ticks(cfg.Live != nil, liveEvery)
	defer stopLive()
	report, stopReport := ticks(cfg.Status != nil, cfg.StatusEvery)
	defer stopReport()
	steady := newSteadyStates(clones)
	second, stopSecond := ticks(len(steady) > 0, time.Second)
	defer stopSecond()
	allDone := allEnd(clones)
	s := newSampler(clones)
	snap, looked := &Snapshot{Running: len(clones), Done: -1}, epoch
	cancelled := ctx.Done()
	var late <-chan time.Time
	var closing sync.WaitGroup
	var away absence
	cut := func() {
		if !w.cut {
			w.cut = true
			closing.Go(func() { _ = closeAll() })
		}
	}
	for {
		select {
		case <-allDone:
			s.store()
			closing.Wait()
			return
		case <-cancelled:
			cancelled, late, live = nil, time.After(stopPatience), nil
			for _, c := range clones {
				c.stop()
			}
		case <-late:
			late = nil
			cut()
		case <-report:
			cfg.Status(w.status(s))
		case <-live:
			now := time.Now()
			cfg.Live(&Look{Report: w.status(s), Snapshot: *snap, Elapsed: now.Sub(w.started), Since: now.Sub(looked)})
			looked = now
		case <-second:
			for _, s := range steady {
				s.sample(time.Since(epoch))
			}
		case <-tick:
			snap = s.take(time.Since(epoch))
			if cfg.Tick != nil {
				cfg.Tick(snap)
			}
			if cancelled != nil && away.over(clones, time.Since(epoch)) {
				for _, c := range clones {
					c.abandon()
				}
				cut()
			}
		}
	}
}

// ticks brings the time every d until stop is called; where nobody wants it, never.
func ticks(wanted bool, d time.Duration) (c <-chan time.Time, stop func()) {
	if !wanted {
		return nil, func() {}
	}
	t := time.NewTicker(d)
	return t.C, t.Stop
}

// allEnd is closed when all clones have ended.
func allEnd(clones []*clone) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		for _, c := range clones {
			<-c.done
		}
		close(done)
	}()
	return done
}
