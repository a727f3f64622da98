package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"softiser/initiator/blockio"
)

// logsIn reads the logs of a directory: name to lines.
func logsIn(t *testing.T, dir string) map[string][]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	logs := map[string][]string{}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		logs[filepath.Base(n)] = slices.Collect(strings.Lines(string(b)))
	}
	return logs
}

var timeAndValue = regexp.MustCompile(`^[0-9]+, [0-9]+,`)

// TestLogFormIsFios compares the files that fio and this package make for the same
// jobs: their names, how many lines they have, and every column that is not
// measured.
func TestLogFormIsFios(t *testing.T) {
	for _, tc := range []struct {
		job    string
		lines  bool // how many is not left to time
		rename string
	}{
		{"[global]\nbs=4k\nwrite_bw_log=w\nwrite_lat_log\nwrite_iops_log=w\nlog_offset=1\n[a]\nrw=write\nsize=64k\n[b]\nrw=read\nsize=64k\nnumjobs=2\n", true, ""},
		{"[a]\nrw=read\nbs=16k\nsize=256k\nwrite_bw_log\nwrite_lat_log=x\nwrite_iops_log\nlog_prio=1\n", true, ""},
		{"[a]\nrw=read\nbs=16k\nsize=256k\nwrite_bw_log\nwrite_iops_log=i\nlog_prio=1\nlog_offset=1\n[b]\nstonewall\nrw=write\nper_job_logs=0\nsize=64k\nwrite_lat_log\n", true, ""},
		{"[a]\nrw=write\nbs=4k\nsize=256k\nwrite_bw_log\nwrite_lat_log\nwrite_iops_log\nlog_avg_msec=100\nlog_offset=1\nrate_iops=50,50\ntime_based\nruntime=850ms\n", false, ""},
	} {
		t.Run("", func(t *testing.T) {
			dir := t.TempDir()
			sparse(t, dir, "f", 1<<20)
			// A synchronous engine of fio's has no submission latency to log.
			engine := "[global]\nioengine=libaio\nthread\nfallocate=none\nfilename=f\n"
			fioRun(t, dir, engine+tc.job)
			want := logsIn(t, dir)
			ours := t.TempDir()
			t.Chdir(ours)
			f := newFake(t, 1<<20)
			mustRun(t, f, tc.job)
			got := logsIn(t, ours)
			for name, lines := range want {
				mine := got[name]
				if len(mine) == 0 || tc.lines && len(mine) != len(lines) {
					t.Errorf("%s has %d lines, fio's %d", name, len(mine), len(lines))
					continue
				}
				for i := range mine {
					a, b := mine[i], lines[min(i, len(lines)-1)]
					if !timeAndValue.MatchString(a) || timeAndValue.ReplaceAllString(a, "") != timeAndValue.ReplaceAllString(b, "") {
						t.Errorf("%s:%d: %q, fio's %q", name, i+1, a, b)
					}
				}
			}
			if len(got) != len(want) || len(want) == 0 {
				t.Errorf("%d files, fio makes %d", len(got), len(want))
			}
		})
	}
}

// TestLogValues has operations of 2 ms, of which every tenth takes 12.
func TestLogValues(t *testing.T) {
	run := func(t *testing.T, text string) map[string][]string {
		t.Helper()
		var logs map[string][]string
		dir := t.TempDir()
		t.Chdir(dir)
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, 1<<20)
			n := 0
			f.delay = 2 * time.Millisecond
			f.hook = func(*blockio.Request) (bool, error) {
				if n++; n%10 == 0 {
					time.Sleep(10 * time.Millisecond)
				}
				return true, nil
			}
			mustRun(t, f, "[j]\nbs=4k\n"+text)
			logs = logsIn(t, dir)
		})
		return logs
	}
	one := run(t, "rw=write\nnumber_ios=20\nstartdelay=7ms\nwrite_bw_log\nwrite_lat_log\nwrite_iops_log\nlog_offset=1\n")
	for name, value := range map[string][2]int{"j_bw.1.log": {2048, 341}, "j_iops.1.log": {1, 1}, "j_clat.1.log": {2e6, 12e6}, "j_slat.1.log": {0, 0}, "j_lat.1.log": {2e6, 12e6}} {
		at := 0
		for i := range 20 {
			v := value[0]
			if at += 2; i%10 == 9 {
				v = value[1]
				at += 10
			}
			if want := fmt.Sprintf("%d, %d, 1, 4096, %d, 0\n", at, v, i*4096); len(one[name]) != 20 || one[name][i] != want {
				t.Fatalf("%s:%d: %q, want %q", name, i+1, one[name], want)
			}
		}
	}
	// Operations end at 2, 4, … 18 and 30 ms of each 30 ms: 34 in the first window of
	// 100 ms, then 35 and 30, as the one at 300 ms is the next one's, which has 21 at
	// the end. Three of each take 12 ms.
	avg := run(t, "rw=read\ntime_based\nruntime=350ms\nwrite_bw_log\nwrite_lat_log\nwrite_iops_log\nlog_avg_msec=100\n")
	for name, want := range map[string]string{
		"j_bw.1.log":   "100, 1360, 0, 0, 0\n200, 1400, 0, 0, 0\n300, 1200, 0, 0, 0\n",
		"j_iops.1.log": "100, 340, 0, 0, 0\n200, 350, 0, 0, 0\n300, 300, 0, 0, 0\n",
		"j_clat.1.log": "100, 2882353, 0, 0, 0\n200, 2857143, 0, 0, 0\n300, 3000000, 0, 0, 0\n360, 3428571, 0, 0, 0\n",
	} {
		if got := strings.Join(avg[name], ""); got != want {
			t.Errorf("%s:\n%swant\n%s", name, got, want)
		}
	}
	top := run(t, "rw=read\ntime_based\nruntime=100ms\nramp_time=1s\nwrite_lat_log\nlog_avg_msec=50\nlog_max_value=1\n")
	if got := strings.Join(top["j_clat.1.log"], ""); got != "50, 12000000, 0, 0, 0\n100, 12000000, 0, 0, 0\n110, 12000000, 0, 0, 0\n" {
		t.Errorf("greatest values after the ramp:\n%s", got)
	}
	// As in fio time counts from the end of the ramp, and so the first window is whole.
	whole := run(t, "rw=read\ntime_based\nruntime=300ms\nramp_time=150ms\nwrite_iops_log\nlog_avg_msec=100\n")
	if got := strings.Join(whole["j_iops.1.log"], ""); got != "100, 340, 0, 0, 0\n200, 350, 0, 0, 0\n300, 300, 0, 0, 0\n" {
		t.Errorf("operations per second after the ramp:\n%s", got)
	}
	unix := run(t, "rw=read\nnumber_ios=1\nwrite_bw_log\nlog_unix_epoch=1\n")
	epoch := time.Date(2000, 1, 1, 0, 0, 0, 2_000_000, time.UTC).UnixMilli() // where synctest's clock starts, and 2 ms
	if want := fmt.Sprintf("%d, 2048, 0, 4096, 0\n", epoch); unix["j_bw.1.log"][0] != want {
		t.Errorf("%q, want %q", unix["j_bw.1.log"], want)
	}
}

// A log that cannot be written fails the run, and says why; so does one that
// cannot be made, before anything runs.
func TestLogErrors(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full")
	}
	t.Chdir(t.TempDir())
	if err := os.Symlink("/dev/full", "full_bw.log"); err != nil {
		t.Fatal(err)
	}
	f := newFake(t, 1<<20)
	r, err := runText(t, f, "[j]\nsize=64k\nwrite_bw_log=full\nper_job_logs=0\n")
	if err != nil || r.Err() == nil || !strings.Contains(r.Err().Error(), "log: write full_bw.log: no space left on device") || strings.Contains(r.Err().Error(), "failed") || r.Clones[0].Code != int(syscall.ENOSPC) {
		t.Errorf("%v, %v", err, r.Err())
	}
	if _, err := runText(t, f, "[j]\nsize=64k\nwrite_lat_log=no/such/dir\n"); err == nil || !strings.Contains(err.Error(), "job j: log: open no/such/dir_slat.1.log: no such file") {
		t.Errorf("%v", err)
	}
}

// More lines than the buffer holds.
func TestLongLog(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	f := newFake(t, 1<<20)
	f.inline = true
	mustRun(t, f, "[j]\nbs=4k\nloops=40\nwrite_iops_log\n")
	lines := logsIn(t, dir)["j_iops.1.log"]
	if len(lines) != 40*256 {
		t.Errorf("%d lines", len(lines))
	}
	for _, l := range lines {
		if !strings.HasSuffix(l, ", 1, 0, 4096, 0\n") {
			t.Fatalf("%q", l)
		}
	}
}
