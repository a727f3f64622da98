package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReplace: what a new file takes the place of, and what is written in place.
func TestReplace(t *testing.T) {
	for _, c := range []struct {
		what    string
		make    func(dir string) error // of "name"
		at      string                 // whose content it becomes, if not of name
		inPlace bool
	}{
		{what: "nothing", make: func(string) error { return nil }},
		{what: "a file", make: func(dir string) error { return os.WriteFile(dir+"/name", []byte("older and longer"), 0o640) }},
		{what: "a link", make: func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/old", []byte("older and longer"), 0o640), os.Symlink("old", dir+"/name"))
		}, at: "old"},
		{what: "a link to nothing", make: func(dir string) error { return os.Symlink("old", dir+"/name") }, at: "old", inPlace: true},
		{what: "a device", make: func(dir string) error { return os.Symlink("/dev/null", dir+"/name") }, at: "/dev/null", inPlace: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.make(dir); err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(dir, "name")
			before, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			f, err := Replace(name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString("new"); err != nil {
				t.Fatal(err)
			}
			f.Discard()
			left, err := os.ReadDir(dir)
			if err != nil || !c.inPlace && len(left) != len(before) {
				t.Errorf("left behind: %v, %v", left, err)
			}
			if f, err = Replace(name); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString("new"); err != nil {
				t.Fatal(err)
			}
			if err := f.Keep(true); err != nil {
				t.Fatal(err)
			}
			f.Discard()
			want, at := "new", name
			switch {
			case filepath.IsAbs(c.at):
				want, at = "", c.at
			case c.at != "":
				at = filepath.Join(dir, c.at)
			}
			st, err := os.Lstat(at)
			if b, rerr := os.ReadFile(at); err != nil || rerr != nil || string(b) != want {
				t.Fatalf("%q, %v, %v; want %q", b, err, rerr, want)
			}
			if len(before) > 0 && !c.inPlace && st.Mode() != 0o640 {
				t.Errorf("mode %v", st.Mode())
			}
			if l, err := os.Lstat(name); err != nil || c.at != "" && l.Mode()&os.ModeSymlink == 0 {
				t.Errorf("the name: %v, %v", l, err)
			}
		})
	}
}

// TestReplaceWhatIsOpen: /dev/stdout and its like are the file that somebody has open, and goes on
// writing to.
func TestReplaceWhatIsOpen(t *testing.T) {
	theirs, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	f, err := Replace(fmt.Sprintf("/proc/self/fd/%d", theirs.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("new"); err != nil {
		t.Fatal(err)
	}
	if err := f.Keep(true); err != nil {
		t.Fatal(err)
	}
	if st, err := theirs.Stat(); err != nil || st.Size() != 3 || st.Sys().(*syscall.Stat_t).Nlink != 1 {
		t.Errorf("%v, %v", st, err)
	}
}

// TestKeepReplacesNothingUnasked: a file that has appeared meanwhile stays.
func TestKeepReplacesNothingUnasked(t *testing.T) {
	name := filepath.Join(t.TempDir(), strings.Repeat("n", 255)) // as long as a name may be
	f, err := Replace(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("somebody else's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Keep(false); !errors.Is(err, os.ErrExist) {
		t.Errorf("Keep: %v", err)
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != "somebody else's" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestPartsOfKilledRuns: what a killed run has left is removed by the next one with the same name, and nothing
// else is: not what another run is filling, nor files that only have similar names.
func TestPartsOfKilledRuns(t *testing.T) {
	t.Chdir(t.TempDir())
	replace := func(name string) *Replacement {
		t.Helper()
		f, err := Replace(name)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, name := range []string{"name", strings.Repeat("n", 255)} {
		killed := replace(name)
		killed.Close() // as the kernel does, which lets the lock go
		others := []string{"name.part", ".name.notes.part", ".name.0123456789abc.parts", ".name.0123456789ab-.part", ".other.0123456789abc.part"}
		for _, o := range others {
			if err := os.WriteFile(o, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(".name.0000000000000.part", 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		first, second := replace(name), replace(name)
		if _, err := os.Stat(killed.Name()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%.9s: the part of the killed run: %v", name, err)
		}
		for _, n := range append(others, ".name.0000000000000.part", first.Name(), second.Name()) {
			if _, err := os.Stat(n); err != nil {
				t.Errorf("%.9s: %v", name, err)
			}
		}
		if err := errors.Join(first.Keep(false), second.Keep(true)); err != nil {
			t.Errorf("%.9s: %v", name, err)
		}
	}
}

// TestKeptWhileOthersSweep: a part is its run's until it has the name.
func TestKeptWhileOthersSweep(t *testing.T) {
	name := filepath.Join(t.TempDir(), "name")
	stop, swept := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(swept)
		for {
			select {
			case <-stop:
				return
			default:
				sweep(filepath.Dir(name)+"/", ".name.")
			}
		}
	}()
	for range 300 {
		f, err := Replace(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Keep(true); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-swept
}

// TestFolderThatCannotBeSynced: the file is as durable as its file system can make it.
func TestFolderThatCannotBeSynced(t *testing.T) {
	real := SyncDir
	t.Cleanup(func() { SyncDir = real })
	for fails, want := range map[error]error{syscall.EINVAL: nil, syscall.EIO: syscall.EIO} {
		SyncDir = func(name string) error { return &os.PathError{Op: "sync", Path: name, Err: fails} }
		f, err := Replace(filepath.Join(t.TempDir(), "name"))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Keep(true); !errors.Is(err, want) {
			t.Errorf("Keep: %v, want %v", err, want)
		}
	}
}

// TestErrorsNameTheFile: an error is about the file that was asked for, not about the part beside it.
func TestErrorsNameTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "gone", "x")
	if _, err := Replace(name); err == nil || err.Error() != "open "+name+": no such file or directory" {
		t.Errorf("%v", err)
	}
}

// TestNoName: what has no name is no file, whatever the part beside it is called.
func TestNoName(t *testing.T) {
	t.Chdir(t.TempDir())
	if f, err := Replace(""); err == nil {
		t.Errorf("%s is filled for nobody, and Keep says %v", f.Name(), f.Keep(true))
	}
	if left, err := os.ReadDir("."); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
