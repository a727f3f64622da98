package bench

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Reports of a run that goes on say what was done until then, of stages that have
// ended, too; they change nothing in the last one.
func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, 1<<20)
		f.delay = time.Millisecond
		var ios, elapsed []int
		var names []string
		cfg := Config{Open: f.open, URL: "fake://", StatusEvery: time.Second, Status: func(r *Report) {
			last := r.Groups[len(r.Groups)-1]
			d := &last.Dir[dirRead]
			ios, elapsed = append(ios, int(d.IOs)), append(elapsed, int(last.Elapsed/time.Millisecond))
			if d.Runtime != last.Elapsed || d.ClatHist.N() != d.IOs || d.BW.N == 0 || last.Session.Commands != 7 {
				t.Errorf("%+v", last)
			}
			var n []string
			for _, s := range r.Clones {
				n = append(n, s.Job.Name)
			}
			names = append(names, strings.Join(n, "+"))
			var out bytes.Buffer
			if err := r.write(&out, []string{"normal", "json", "terse"}, nil); err != nil || !strings.Contains(out.String(), "Run status group 0") {
				t.Error(err, out.String())
			}
		}}
		r, err := Run(t.Context(), parseText(t, "[global]\nrw=randread\nbs=4k\ntime_based\ngroup_reporting\n[a]\nruntime=3500ms\n[b]\nstonewall\nruntime=2500ms\n"), cfg)
		if err != nil || r.Failed() || len(r.Clones) != 2 {
			t.Fatal(err, r.Err())
		}
		if want := []string{"a", "a", "a", "a+b", "a+b"}; !slices.Equal(names, want) {
			t.Errorf("reports of %q, want %q", names, want)
		}
		for i, want := range []int{1000, 2000, 3000, 1000, 2000} {
			if d := ios[i] - want; d < -2 || d > 2 || elapsed[i] != want {
				t.Errorf("report %d has %d operations in %d ms, want %d", i, ios[i], elapsed[i], want)
			}
		}
		if n := r.Clones[1].Dir[dirRead].IOs; n < 2499 || n > 2501 {
			t.Errorf("%d operations in the end", n)
		}
	})
}

// A clone that never rests, one that has not begun and one that has ended answer.
func TestStatusOfEveryClone(t *testing.T) {
	f := newFake(t, 1<<20)
	f.inline = true
	reports := 0
	cfg := Config{Open: f.open, URL: "fake://", StatusEvery: 5 * time.Millisecond, Status: func(r *Report) {
		if reports++; len(r.Clones) != 3 || r.Clones[1].Dir[dirRead].IOs > 1 || r.Clones[2].Dir[dirRead].IOs > 1 {
			t.Errorf("%d clones", len(r.Clones))
		}
	}}
	r, err := Run(t.Context(), parseText(t, "[busy]\nbs=4k\ntime_based\nruntime=500ms\n[late]\nwait_for=busy\nsize=4k\n[short]\nsize=4k\n"), cfg)
	if err != nil || r.Failed() || r.Clones[1].Dir[dirRead].IOs != 1 {
		t.Errorf("%v, %+v", err, r)
	}
	if reports == 0 {
		t.Error("no report")
	}
}

func TestStatusIntervalRefused(t *testing.T) {
	for _, v := range []string{"0", "x", "-1"} {
		cmd := Command()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs([]string{"--status-interval=" + v, "a://b"})
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "expected a time above 0") {
			t.Errorf("%q: %v", v, err)
		}
	}
}
