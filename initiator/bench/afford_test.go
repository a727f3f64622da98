package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"softiser/internal/usage"
)

// What cannot be had is refused before anybody connects, by the names of the options.
func TestAfford(t *testing.T) {
	job := func(depth, bs int, d dir) *Job {
		j := &Job{Name: "j", IODepth: depth}
		j.Dirs[d] = true
		j.BS[d] = MinMax{Min: bs, Max: bs}
		return j
	}
	large, trims, small := job(1<<16, 64<<20, dirRead), job(1<<16, 64<<20, dirTrim), job(1<<10, 4096, dirWrite)
	for _, c := range []struct {
		jobs                  []*Job
		sessions, descriptors int
		memory                int64
		want                  []string // in the error; none: there is none
	}{
		{[]*Job{small}, 1000, 240, 1 << 30, []string{"numjobs", "1000", "240", "ulimit -n", "sessions="}},
		{[]*Job{small}, 240, 240, 1 << 30, nil},
		{[]*Job{small}, 1000, -1, 1 << 30, nil},
		{[]*Job{large}, 1, 100, 1 << 30, []string{"job j", "iodepth", "bs", "4.0 TiB", "1.0 GiB"}},
		{[]*Job{large}, 1, 100, 0, nil},
		{[]*Job{trims}, 1, 100, 1 << 30, nil},
		{[]*Job{small, small, small}, 3, 100, 12 << 20, nil},
		{[]*Job{small, small, small, small}, 4, 100, 12 << 20, []string{"16 MiB"}},
	} {
		err := afford(c.jobs, c.sessions, c.descriptors, c.memory)
		if (err == nil) != (c.want == nil) || err != nil && !usage.Is(err) {
			t.Errorf("%+v: %v", c, err)
		}
		for _, w := range c.want {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%v: nothing of %q", err, w)
			}
		}
	}
}

// A connection for which there is no descriptor says which options wanted how many.
func TestNoDescriptor(t *testing.T) {
	j := &Job{Name: "j", URL: "u", IODepth: 1, NumJobs: 2}
	j.Dirs[dirRead] = true
	j.BS[dirRead] = MinMax{Min: 512, Max: 512}
	_, err := Run(t.Context(), []*Job{j}, Config{Open: func(context.Context, string, OpenOptions) (LUN, error) {
		return nil, fmt.Errorf("dial: %w", syscall.EMFILE)
	}})
	if !errors.Is(err, syscall.EMFILE) || !strings.Contains(err.Error(), "ulimit -n") || !strings.Contains(err.Error(), "--nr-sessions") {
		t.Error(err)
	}
}
