package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/initiator/blockio"
	"softiser/initiator/internal/e2e"
	"softiser/internal/terminal/ptytest"
)

// looks are those at three jobs: one that has ended with an earlier stage, one of two clones, one
// that ramps up and whose counters begin anew before the last look.
func looks(t *testing.T) (all []*Look) {
	jobs := parseText(t, "[fill]\nrw=write\n[pair]\nstonewall\nrw=randrw\nnumjobs=2\n[ev\x1bil]\nrw=randread\nramp_time=2\n")
	first, second := *jobs[1], *jobs[1]
	second.clone = 1
	stats := func(j *Job, doing string, per map[dir]int, seconds int) *Stats {
		s := &Stats{Job: j, Jobs: 1, doing: doing}
		for d, n := range per {
			for i := range n * seconds {
				s.Dir[d].add(4096, 100, int64(100_000+i%n*1000), j)
			}
			s.Dir[d].Runtime = time.Duration(seconds) * time.Second
		}
		return s
	}
	for n := 1; n <= 4; n++ {
		ramp, ramped := "ramp", n
		if n > 2 {
			ramp, ramped = "run", n-2
		}
		clones := []*Stats{
			stats(jobs[0], "", map[dir]int{dirWrite: 700}, 3),
			stats(&first, "run", map[dir]int{dirRead: 1000, dirWrite: 10 * n}, n),
			stats(&second, "run", map[dir]int{dirRead: 500}, n),
			stats(jobs[2], ramp, map[dir]int{dirRead: 300}, ramped),
		}
		clones[1].Session = blockio.Stats{Losses: 1, Retries: 2, Replayed: 3}
		if n == 4 {
			clones[2].Errors = 1
			clones[2].first(errors.New("read of 4096 bytes at offset 0: refused\x1b]2;\a"), 5)
		}
		all = append(all, &Look{
			Report:   &Report{Clones: clones},
			Snapshot: Snapshot{Elapsed: time.Duration(n) * time.Second, Running: 3, Done: float64(n) / 10},
			Elapsed:  time.Duration(n+3) * time.Second, Since: time.Second,
		})
	}
	return all
}

// The text of a view from fixed samples; what jobs and errors are called does nothing to a terminal.
func TestGoldenView(t *testing.T) {
	var v viewer
	var w *view
	for _, l := range looks(t) {
		w = v.look(l)
	}
	w.event = "connection lost"
	text := w.text(100)
	path := filepath.Join("testdata", "view")
	if *update {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != string(want) {
		t.Errorf("the view differs from %s (go test -update rewrites it):\n%s", path, text)
	}
	if bytes.ContainsRune(text, '\x1b') {
		t.Errorf("the terminal obeys %q", text)
	}
}

// A view remembers no more than it can draw, and draws what a terminal has room for.
func TestViewRemembers(t *testing.T) {
	l := looks(t)[0]
	var v viewer
	for i := range maxHistory + 50 {
		l.Snapshot.Done = -1
		w := v.look(l)
		if n := len(w.history.ios); n != min(i+1, maxHistory) {
			t.Fatalf("%d are remembered after %d looks", n, i+1)
		}
		if i == maxHistory {
			for _, columns := range []int{0, 20, 60, 4000} {
				if text := w.text(columns); bytes.Contains(text, []byte("eta")) || !bytes.Contains(text, []byte("running 3")) {
					t.Errorf("%d columns:\n%s", columns, text)
				}
			}
		}
	}
}

// Looks come every second with what was done since the one before, by every stage.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, 1<<20)
		f.delay = time.Millisecond
		var v viewer
		var got []string
		cfg := Config{Open: f.open, URL: "fake://", Live: func(l *Look) {
			w := v.look(l)
			line := fmt.Sprint(l.Elapsed.Seconds(), l.Since.Seconds())
			for _, r := range w.rows {
				if n := perSec(r.last.IOs, r.last.Runtime); r.doing == "run" && (n < 998 || n > 1002) {
					t.Errorf("%s: %v operations in a second", r.job, n)
				}
				line += fmt.Sprintf(" %s %v %s", r.job, r.d, r.doing)
			}
			got = append(got, line)
		}}
		r, err := Run(t.Context(), parseText(t, "[global]\nbs=4k\ntime_based\n[a]\nrw=randread\nruntime=1500ms\n[b]\nstonewall\nrw=write\nramp_time=1500ms\nruntime=1s\n"), cfg)
		if err != nil || r.Failed() {
			t.Fatal(err, r.Err())
		}
		want := "1 1 a read run; 2.5 1 a read  b write ramp; 3.5 1 a read  b write run"
		if s := strings.Join(got, "; "); s != want {
			t.Errorf("got  %s\nwant %s", s, want)
		}
	})
}

// While blocks are read back, the reads have a rate.
func TestLooksAtAVerification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, 1<<20)
		f.delay = 30 * time.Millisecond
		seen := 0
		cfg := Config{Open: f.open, URL: "fake://", Live: func(l *Look) {
			if s := l.Report.Clones[0]; s.doing == "verify" && s.Dir[dirRead].Runtime > time.Second {
				seen++
				if rate := perSec(s.Dir[dirRead].IOs, s.Dir[dirRead].Runtime); rate < 30 || rate > 37 {
					t.Errorf("%v reads a second", rate)
				}
			}
		}}
		if r, err := Run(t.Context(), parseText(t, "[j]\nrw=write\nbs=16k\nverify=crc32c\n"), cfg); err != nil || r.Failed() || seen == 0 {
			t.Error(err, seen)
		}
	})
}

// --live on something that is no terminal is refused, and so are reports on the terminal that it has.
func TestLiveRefused(t *testing.T) {
	try := func(stderr any, want string, args ...string) {
		t.Helper()
		cmd := Command()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		if tty, ok := stderr.(*os.File); ok {
			cmd.SetErr(tty)
		}
		cmd.SetArgs(append([]string{"--live", "a://b"}, args...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", args, err)
		}
	}
	try(nil, "--live: stderr is no terminal")
	tty, _, err := ptytest.Open(t)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	try(tty, "does not know its size")
	ptytest.Resize(t, tty, 80, 24)
	try(tty, "the reports need a file of their own", "--status-interval=1")
	t.Setenv("TERM", "dumb")
	try(tty, "TERM=dumb")
}

// An interrupt ends the view, gives the terminal back and is followed by the report.
func TestLiveOnATerminal(t *testing.T) {
	tty, person, err := ptytest.Open(t)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	ptytest.Resize(t, tty, 120, 30)
	url := e2e.StartTarget(t, "4MiB").URL("iser")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(tty)
	cmd.SetArgs([]string{"--live", url, "--rw=randread", "--time-based", "--runtime=60"})
	ended := make(chan error)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	seen := ptytest.Expect(t, person, "SO FAR")
	cancel()
	seen += ptytest.Expect(t, person, "\x1b[?25h\x1b[?1049l")
	if !strings.Contains(seen, "\x1b[?1049h\x1b[?25l") || !strings.Contains(seen, "running 1") {
		t.Errorf("%q", seen)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "Run status group 0") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%s", out.String())
	}
}

// What happens to sessions while a view is shown is in it, and written when it is gone.
func TestLiveKeepsEvents(t *testing.T) {
	var b bytes.Buffer
	l := openLive(&b) // no terminal: nothing is shown
	if l.lastEvent() != "" {
		t.Error("there was no event")
	}
	for i := range maxEvents + 1 {
		fmt.Fprintln(l, "event", i)
	}
	if b.Len() != 0 || l.lastEvent() != fmt.Sprint("event ", maxEvents) {
		t.Errorf("%q, %q", l.lastEvent(), b.String())
	}
	l.close()
	fmt.Fprintln(l, "later")
	l.close()
	if lines := strings.Split(b.String(), "\n"); len(lines) != maxEvents+2 || lines[0] != "event 1" || lines[maxEvents] != "later" {
		t.Errorf("%d lines: %q … %q", len(lines), lines[0], lines[maxEvents])
	}
	(*liveView)(nil).close()
}
