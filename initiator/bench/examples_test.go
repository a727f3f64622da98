package bench

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/usage"
)

// exampleDir is where Debian's package fio-examples keeps fio's own job files.
const exampleDir = "/usr/share/doc/fio/examples"

// TestFioExamples runs fio's example files through --parse-only as a user would,
// with the outcome that testdata/fio-examples names for each: accepted, or refused
// at this line because of this key. A machine that leaves out documentation
// (path-exclude) has none of the files; a newer fio may lack some.
func TestFioExamples(t *testing.T) {
	if _, err := os.Stat(exampleDir); errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%s is not there: Debian's fio-examples is not installed, or without its documentation", exampleDir)
	}
	for _, name := range []string{"POOL", "CONT", "S3_KEY", "S3_ID", "SSE_KEY", "STORAGE_CLASS", "SWIFT_id", "FIO_DIR", "GPU_DEV_IDS", "unixsocket"} {
		t.Setenv(name, "x") // so that it is not the environment that is refused
	}
	t.Setenv("FIO_RW", "") // the first one of the xnvme files
	table, err := os.Open("testdata/fio-examples")
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	accepted, absent := 0, 0
	sc := bufio.NewScanner(table)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		path := filepath.Join(exampleDir, f[0])
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			absent++
			continue
		}
		cmd := Command()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		args := []string{"--parse-only", "iser://h/iqn.2026-11.x:y/0", path}
		for _, a := range f[2:] { // which the file's own comments ask for
			if strings.HasPrefix(a, "--") {
				args = append(args, a)
			}
		}
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		if f[1] == "accepted" {
			if accepted++; err != nil {
				t.Errorf("%s: %v, want it accepted", f[0], err)
			}
			continue
		}
		at := path + ":" + f[2] + ": " // "refused LINE KEY"
		if err == nil {
			t.Errorf("%s: accepted, want line %s refused because of %s", f[0], f[2], f[3])
		} else if !strings.HasPrefix(err.Error(), at) || !strings.Contains(err.Error(), f[3]) || !usage.Is(err) {
			t.Errorf("%s: %v, want a usage error: %s… because of %s", f[0], err, at, f[3])
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d accepted, %d absent", accepted, absent)
}

// docs/FIO.md names every option, and the outcome of every example.
func TestDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/FIO.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, o := range options {
		if !strings.Contains(page, "`"+o.name+"`") {
			t.Errorf("docs/FIO.md does not name %s", o.name)
		}
	}
	table, err := os.ReadFile("testdata/fio-examples")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		want := "| " + f[0] + " | runs |"
		if f[1] == "refused" {
			want = "| " + f[0] + " | line " + f[2] + " |"
		}
		if rows++; !strings.Contains(page, want) {
			t.Errorf("docs/FIO.md has no row %q", want)
		}
	}
	if n := strings.Count(page, ".fio |"); n != rows {
		t.Errorf("docs/FIO.md has %d rows of %d", n, rows)
	}
}
