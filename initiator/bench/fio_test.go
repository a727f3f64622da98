package bench

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"softiser/initiator/blockio"
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

// fioSequences is what fio's write_iolog says that each job, run by itself, has
// done to a file of size.
func fioSequences(t *testing.T, size int64, jobs []string) (all [][]extent) {
	t.Helper()
	dir := t.TempDir()
	text := "[global]\nioengine=psync\nthread\nfallocate=none\n"
	for i, job := range jobs {
		sparse(t, dir, fmt.Sprint("f", i), size)
		text += fmt.Sprintf("[j%d]\nfilename=f%d\nwrite_iolog=log%d\n%s\n", i, i, i, job)
	}
	fioRun(t, dir, text)
	for i := range jobs {
		all = append(all, readIolog(t, filepath.Join(dir, fmt.Sprint("log", i))))
	}
	return all
}

func readIolog(t *testing.T, name string) (list []extent) {
	t.Helper()
	f, err := os.Open(name)
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
	f.hook = func(r *blockio.Request) (bool, error) {
		d := dirRead
		if r.Op == blockio.OpWrite {
			d = dirWrite
		}
		list = append(list, extent{d, r.Off, len(r.Buf)})
		return true, nil
	}
	mustRun(t, f, "[j]\n"+job+"\n")
	return list
}
