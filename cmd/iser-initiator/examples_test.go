package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fioExamples is where Debian's package fio keeps fio's own job files.
const fioExamples = "/usr/share/doc/fio/examples"

// shrunk makes a load of any size a short one that does not wait for the clock: so
// many operations of each clone in so large a range.
var shrunk = []string{
	"--size=4m", "--number-ios=24", "--time-based=0", "--rate=0", "--rate-iops=0", "--startdelay=0", "--ramp-time=0", "--thinktime=0",
	"--sessions=2", "--output-format=json", "--eta=never",
}

// TestFioExamplesRun runs every one of fio's example files that bench accepts on a
// target in this process. The only changes are to how much of it is run.
func TestFioExamplesRun(t *testing.T) {
	if testing.Short() {
		t.Skip("runs some hundred clones")
	}
	if _, err := os.Stat(fioExamples); errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%s is not there: Debian's package fio is not installed, or without its documentation", fioExamples)
	}
	table, err := os.ReadFile("../../initiator/bench/testdata/fio-examples")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"POOL", "CONT", "unixsocket"} {
		t.Setenv(name, "x")
	}
	// What a file needs besides: the ranges of this one's clones overlap, and they verify.
	extra := map[string][]string{
		"cross-stripe-verify.fio": {"--offset-increment=4m"},
	}
	addr, _ := serve(t, 256<<20, "")
	t.Chdir(t.TempDir()) // where logs go
	ran := 0
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[1] != "accepted" {
			continue
		}
		path := filepath.Join(fioExamples, f[0])
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		args := append([]string{"bench", "iser://" + addr + "/" + testIQN + "/0", path}, shrunk...)
		args = append(append(args, f[2:]...), extra[f[0]]...)
		out, errs, code := run(t, args...)
		var report struct {
			Jobs []struct {
				Name              string `json:"jobname"`
				Error             int
				Read, Write, Trim struct {
					IOs int `json:"total_ios"`
				}
			}
		}
		if err := json.Unmarshal([]byte(out), &report); err != nil || code != 0 {
			t.Errorf("%s: exit code %d, %v\n%s", f[0], code, err, errs)
			continue
		}
		for _, j := range report.Jobs {
			if n := j.Read.IOs + j.Write.IOs + j.Trim.IOs; n == 0 || j.Error != 0 {
				t.Errorf("%s: job %s has done %d operations, error %d", f[0], j.Name, n, j.Error)
			}
		}
		ran++
	}
	t.Logf("%d files", ran)
}
