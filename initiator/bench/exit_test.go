package bench

import (
	"slices"
	"testing"
)

// TestExitAll has a short job end long ones, which would run until the test's own
// time is over.
func TestExitAll(t *testing.T) {
	const forever = "time_based\nruntime=1d\nrw=read\nbs=4k\n"
	for _, tc := range []struct {
		name, text string
		jobs       []string // those that have run
	}{
		{"group", "[global]\nexitall\nsize=64k\n[long]\n" + forever + "[short]\nbs=4k\n", []string{"long", "short"}},
		{"clones", "[global]\nexitall\nsize=64k\n[long]\n" + forever + "numjobs=3\n[short]\nbs=4k\n", []string{"long", "long", "long", "short"}},
		{"not started", "[short]\nexitall\nsize=64k\n[late]\nstartdelay=1d\nsize=64k\n", []string{"short", "late"}},
		{"next stage", "[short]\nexitall\nsize=64k\n[next]\nstonewall\nsize=64k\n", []string{"short", "next"}},
		{"stonewall", "[short]\nexitall\nexit_what=stonewall\nsize=64k\n[other]\nnew_group\n" + forever + "[next]\nstonewall\nsize=64k\n", []string{"short", "other", "next"}},
		{"all", "[short]\nexitall\nexit_what=all\nsize=64k\n[other]\nnew_group\n" + forever + "[never]\nstonewall\nsize=64k\n", []string{"short", "other"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := mustRun(t, newFake(t, 1<<20), tc.text)
			var names []string
			for _, s := range r.Clones {
				names = append(names, s.Job.Name)
				if s.Job.Name == "next" && s.Dir[dirRead].IOs != 16 {
					t.Errorf("the next stage has read %d blocks", s.Dir[dirRead].IOs)
				}
			}
			if !slices.Equal(names, tc.jobs) {
				t.Errorf("ran %q, want %q", names, tc.jobs)
			}
			if r.Interrupted || r.Unverified {
				t.Error("exitall is reported as an interruption")
			}
		})
	}
}
