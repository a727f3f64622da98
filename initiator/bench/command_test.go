package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func parseCommand(t *testing.T, args ...string) (*command, []string, error) {
	t.Helper()
	cmd := Command()
	c := &command{}
	cmd.ResetFlags()
	c.register(cmd.Flags())
	err := cmd.ParseFlags(args)
	return c, cmd.Flags().Args(), err
}

func TestCommandLineJobs(t *testing.T) {
	c, args, err := parseCommand(t, "iser://h/iqn.2026-11.x:y/0", "--rw=randread", "--time_based", "--runtime=30s", "--name=a", "--bs", "8k",
		"--name=b", "--rw", "randwrite", "--iodepth=4", "--group-reporting", "--direct=1")
	if err != nil || len(args) != 1 {
		t.Fatal(err, args)
	}
	jobs, global, notes, err := c.jobs("", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(jobs) != 2 || len(global) != 3 || len(notes) != 1 {
		t.Fatalf("%d jobs, %d global options, notes %q", len(jobs), len(global), notes)
	}
	a, b := jobs[0], jobs[1]
	if a.Name != "a" || !a.Random || !a.Dirs[dirRead] || a.BS[0].Min != 8192 || a.GroupReporting || !a.TimeBased {
		t.Errorf("a: %+v", a)
	}
	if b.Name != "b" || !b.Dirs[dirWrite] || b.IODepth != 4 || !b.GroupReporting || b.BS[0].Min != 4096 {
		t.Errorf("b: %+v", b)
	}
}

func TestCommandLineOverridesJobFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.fio")
	if err := os.WriteFile(path, []byte("[global]\nbs=4k\n[a]\nrw=read\nruntime=60\n[b]\nrw=write\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, _, err := parseCommand(t, path, "--runtime=5")
	if err != nil {
		t.Fatal(err)
	}
	jobs, _, _, err := c.jobs("", []string{path})
	if err != nil || len(jobs) != 2 || jobs[0].Runtime != 5e9 || jobs[1].Runtime != 5e9 || !jobs[1].Dirs[dirWrite] {
		t.Errorf("%+v, %v", jobs, err)
	}
}

func TestURLWinsOverJobFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.fio")
	text := "[global]\nfilename=/dev/sdb\n[a]\n[b]\nfilename=iser\\://h\\:3260/iqn.2026-11.x\\:b/0\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, _, err := parseCommand(t)
	if err != nil {
		t.Fatal(err)
	}
	jobs, _, notes, err := c.jobs("iser://h/iqn.2026-11.x:y/0", []string{path})
	if err != nil || len(jobs) != 2 || jobs[0].URL != "" || jobs[1].URL != "" {
		t.Fatalf("%+v, %v", jobs, err)
	}
	want := []string{path + ":2: filename gives way to the volume on the command line", path + ":5: filename gives way to the volume on the command line"}
	if !slices.Equal(notes, want) {
		t.Errorf("notes %q, want %q", notes, want)
	}
	if _, _, _, err := c.jobs("", []string{path}); err == nil || !strings.Contains(err.Error(), path+":2: filename=/dev/sdb: expected a volume's URL") {
		t.Errorf("without a URL: %v", err)
	}
}

func TestCommandRefuses(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--output-format=xml", "x://y"}, "expected normal, json"},
		{[]string{"--eta=seldom", "x://y"}, "expected auto, always or never"},
		{[]string{"a://b", "c://d"}, "two volumes"},
		{[]string{"--rw=sideways", "a://b"}, "expected read, write"},
		{[]string{"--bogus=1"}, "unknown flag"},
		{[]string{"/nonexistent/job.fio"}, "no such file"},
		{[]string{"--rw=read"}, "names no volume"},
		{[]string{"--section=a", "--rw=read", "iser://127.0.0.1:1/iqn.2026-11.test:a/0"}, "--section says what to read of a job file"},
		{[]string{"http://x/y/0"}, "http"},
	} {
		cmd := Command()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(tc.args)
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: error %v, want %q", tc.args, err, tc.want)
		}
	}
}

// A run that never began leaves the report and the plot of an earlier one.
func TestRefusedRunKeepsTheOldReport(t *testing.T) {
	dir := t.TempDir()
	report, plot := filepath.Join(dir, "report"), filepath.Join(dir, "run.svg")
	for _, name := range []string{report, plot} {
		if err := os.WriteFile(name, []byte("of an earlier run"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cmd := Command()
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"--rw=read", "--eta=never", "--output=" + report, "--plot=" + plot, "iscsi://127.0.0.1:1/iqn.2026-11.x:y/0"})
	if cmd.ExecuteContext(ctx) == nil {
		t.Fatal("success")
	}
	for _, name := range []string{report, plot} {
		if b, err := os.ReadFile(name); err != nil || string(b) != "of an earlier run" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A report that could not be written ends with an error, be it for people, who are told no errors by it, or for
// programs, and be it one of several.
func TestReportThatIsNotWritten(t *testing.T) {
	const full = "/dev/full"
	if _, err := os.Stat(full); err != nil {
		t.Skip(err)
	}
	for _, follow := range []bool{false, true} {
		for _, of := range []error{nil, errors.New("the run failed")} {
			c := &command{output: full}
			out, end, err := c.open(io.Discard, follow)
			if err != nil {
				t.Fatal(err)
			}
			WriteHeader(out, nil)
			switch err := end(of); {
			case of != nil && !errors.Is(err, of):
				t.Errorf("follow %v: %v, want %v", follow, err, of)
			case of == nil && (!errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), full)):
				t.Errorf("follow %v: %v, want one about %s", follow, err, full)
			}
		}
	}
}

func TestParseOnly(t *testing.T) {
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs([]string{"--parse-only", "--rw=randread", "--ioengine=libaio", "a://b"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), "--ioengine: ioengine is ignored") {
		t.Errorf("%v, %q", err, out.String())
	}
}

func TestSeveralFormats(t *testing.T) {
	r := mustRun(t, newFake(t, 1<<20), "[j]\nsize=64k\n")
	var out bytes.Buffer
	if err := r.write(&out, []string{"normal", "json", "terse", "json+"}, nil); err != nil {
		t.Fatal(err)
	}
	for text, times := range map[string]int{"Run status group": 1, `"fio version"`: 1, `"bins"`: 1, "3;iser-initiator-": 1} {
		if n := strings.Count(out.String(), text); n != times {
			t.Errorf("%q stands %d times, want %d", text, n, times)
		}
	}
}

// --section reads what it names: the others may be nonsense.
func TestSection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.fio")
	text := "[global]\nbs=8k\n[a]\nrw=write\n[b]\nrw=${NOT_SET_ANYWHERE}\ninclude /no/such/file\n[global]\nbs=16k\n[c]\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--section=a"}, "a:8192"},
		{[]string{"--section=c"}, "c:16384"},
		{[]string{"--section=c", "--section=a"}, "a:8192 c:16384"},
		{nil, "the environment variable NOT_SET_ANYWHERE is not set"},
		{[]string{"--section=d"}, "no section d; there are a, b, c"},
	} {
		c, _, err := parseCommand(t, tc.args...)
		if err != nil {
			t.Fatal(err)
		}
		jobs, _, _, err := c.jobs("", []string{path})
		var got []string
		for _, j := range jobs {
			got = append(got, fmt.Sprintf("%s:%d", j.Name, j.BS[0].Min))
		}
		if strings.Join(got, " ") != tc.want && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%q: %q, %v, want %q", tc.args, got, err, tc.want)
		}
	}
}

func TestTimeBasedWithoutRuntime(t *testing.T) {
	s, _ := parseJobText(strings.NewReader("[j]\ntime_based\n"), "t.fio", nil)
	jobs, notes, err := ParseJobs(s)
	if err != nil || jobs[0].TimeBased || !slices.Contains(notes, "t.fio:1: job j: time_based has no effect without a runtime, as in fio") {
		t.Errorf("%+v, %q, %v", jobs, notes, err)
	}
}
