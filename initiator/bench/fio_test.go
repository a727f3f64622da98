package bench

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"softiser/initiator"
)

// fioRun runs the real fio with a job file in dir and returns its output; without
// fio the test is skipped.
func fioRun(t *testing.T, dir, job string, args ...string) []byte {
	t.Helper()
	fio, err := exec.LookPath("fio")
	if err != nil {
		t.Skip("fio is not installed")
	}
	file := filepath.Join(dir, "job.fio")
	if err := os.WriteFile(file, []byte(job), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), fio, append(args, "--allow_file_create=1", file)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("fio: %v\n%s\n%s", err, job, out)
	}
	return out
}

// sparse makes an empty file of size in dir.
func sparse(t *testing.T, dir, name string, size int64) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, name), size); err != nil {
		t.Fatal(err)
	}
}

// fioSequence is what fio's write_iolog says that a job has done to a file of size.
func fioSequence(t *testing.T, size int64, job string) (list []extent) {
	t.Helper()
	dir := t.TempDir()
	sparse(t, dir, "f", size)
	fioRun(t, dir, "[global]\nioengine=psync\nfallocate=none\nfilename=f\nwrite_iolog=log\n"+job)
	f, err := os.Open(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		w := strings.Fields(sc.Text()) // TIME FILE ACTION OFFSET LENGTH
		if len(w) != 5 || w[2] != "read" && w[2] != "write" {
			continue
		}
		e := extent{d: dirRead}
		if w[2] == "write" {
			e.d = dirWrite
		}
		e.off, _ = strconv.ParseInt(w[3], 10, 64)
		e.n, _ = strconv.Atoi(w[4])
		list = append(list, e)
	}
	return list
}

// ourSequence is what we do for the same job.
func ourSequence(t *testing.T, size int64, job string) (list []extent) {
	t.Helper()
	f := newFake(t, size)
	f.inline = true
	f.hook = func(r *initiator.Request) (bool, error) {
		d := dirRead
		if r.Op == initiator.OpWrite {
			d = dirWrite
		}
		list = append(list, extent{d, r.Off, len(r.Buf)})
		return true, nil
	}
	mustRun(t, f, job)
	return list
}
