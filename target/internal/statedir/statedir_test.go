package statedir

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A new folder has the current version, with all that leads to it, and keeps it.
func TestNewFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := Check(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("Check has made the folder")
	}
	for range 2 {
		if had, err := Open(dir, "9.9"); had != Current() || err != nil {
			t.Errorf("%d, %v", had, err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || string(b) != `{"version":1,"program":"9.9"}`+"\n" {
		t.Errorf("%q, %v", b, err)
	}
	if err := Check(dir); err != nil {
		t.Error(err)
	}
}

// A folder from before there were versions is taken to this one, step by step; what a
// step that fails has reached stays, and the next attempt begins there.
func TestMigration(t *testing.T) {
	was := migrations
	t.Cleanup(func() { migrations = was })
	var steps []string
	var fails error
	step := func(name string) func(string) error {
		return func(string) error {
			if fails != nil && name == "b" {
				return fails
			}
			steps = append(steps, name)
			return nil
		}
	}
	migrations = []func(string) error{step("a"), step("b"), step("c")}
	dir := t.TempDir()
	put(t, dir, "lu-x.json", "{}")
	fails = errors.New("a full disk")
	if had, err := Open(dir, "1"); had != 0 || !errors.Is(err, fails) || !strings.Contains(err.Error(), "from version 1 to 2") {
		t.Errorf("%d, %v", had, err)
	}
	fails = nil
	if had, err := Open(dir, "2"); had != 1 || err != nil {
		t.Errorf("%d, %v", had, err)
	}
	if got := strings.Join(steps, ""); got != "abc" {
		t.Errorf("steps %s", got)
	}
	if had, err := Open(dir, "2"); had != 3 || err != nil || len(steps) != 3 {
		t.Errorf("%d, %v, %s", had, err, steps)
	}
	if _, err := os.Stat(filepath.Join(dir, "lu-x.json")); err != nil {
		t.Error(err)
	}
	if had, err := Open(t.TempDir(), "2"); had != 3 || err != nil || len(steps) != 3 {
		t.Errorf("a new folder was migrated: %d, %v, %s", had, err, steps)
	}
}

// What cannot be used is refused with the file's name, and left as it is.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{"version":2,"program":"7.1"}`, `has version 2, written by iser-target "7.1", and this program knows versions up to 1`},
		{`{"version":900,"else":[1]}`, "has version 900"},
		{`{"version":0}`, "version 0"},
		{`{"version":-1}`, "version -1"},
		{`{"version":"x"}`, "cannot unmarshal"},
		{"", "unexpected end"},
		{strings.Repeat(" ", maxFile+1), "bytes"},
	} {
		dir := t.TempDir()
		put(t, dir, name, c.text)
		_, err := Open(dir, "1")
		for _, err := range []error{err, Check(dir)} {
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
				t.Errorf("%.40q: %v", c.text, err)
			}
		}
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != c.text {
			t.Errorf("%.40q has become %.40q, %v", c.text, b, err)
		}
	}
	file := filepath.Join(t.TempDir(), "f")
	put(t, filepath.Dir(file), "f", "")
	if _, err := Open(file, "1"); err == nil {
		t.Error("a file is a folder")
	}
}

// TestWritable: a folder that is there or can be made is fine, and nothing is made; what cannot be
// one is not.
func TestWritable(t *testing.T) {
	dir := t.TempDir()
	for _, at := range []string{dir, filepath.Join(dir, "a", "b")} {
		if err := Writable(at); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Fatal(left, err)
	}
	put(t, dir, "file", "x")
	for _, at := range []string{filepath.Join(dir, "file"), filepath.Join(dir, "file", "a")} {
		if Writable(at) == nil {
			t.Errorf("%s can be written", at)
		}
	}
	if err := os.Symlink("nothing", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{filepath.Join(dir, "link"), filepath.Join(dir, "link", "a")} {
		if Writable(at) == nil {
			t.Errorf("%s can be written, or made", at)
		}
	}
}

// TestProbe: of a folder that this user may not write, Probe knows what Open does.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	asNobody(t, func() {
		for _, c := range []struct{ name, version string }{{"new", ""}, {"current", `{"version":1}`}, {"later", `{"version":2}`}} {
			at := filepath.Join(dir, c.name)
			if err := os.Mkdir(at, 0o700); err != nil {
				t.Error(err)
				return
			}
			if c.version != "" {
				put(t, at, name, c.version)
			}
			if err := os.Chmod(at, 0o500); err != nil {
				t.Error(err)
			}
			start, save := Probe(at)
			if _, err := Open(at, "1"); (err == nil) != (start == nil) || start == nil && save == nil {
				t.Errorf("%s: Open %v; Probe %v, %v", c.name, err, start, save)
			}
		}
		below := filepath.Join(dir, "new", "below")
		start, _ := Probe(below)
		if _, err := Open(below, "1"); err == nil || start == nil {
			t.Errorf("below a folder that cannot be written: Open %v; Probe %v", err, start)
		}
	})
	made := filepath.Join(t.TempDir(), "a", "b")
	if start, save := Probe(made); start != nil || save != nil {
		t.Errorf("a folder that can be made: %v, %v", start, save)
	}
}

// asNobody runs f on a thread that may not write everywhere, which root's may.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	const nobody = 65534
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			t.Error(errno)
			return
		}
		f()
	}()
	<-done
}
