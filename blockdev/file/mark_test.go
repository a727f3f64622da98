package file

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"softiser/blockdev"
)

// TestMark: a mark lies with the file, whoever opens it.
func TestMark(t *testing.T) {
	cfg := Config{Path: filepath.Join(t.TempDir(), "v.img"), Size: 1 << 20}
	opened := func() *Device {
		d, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	kind := blockdev.MarkRewrite
	mark := func(d *Device, want string) {
		t.Helper()
		got, err := d.Mark(kind)
		if errors.Is(err, blockdev.ErrNotSupported) {
			d.Close()
			t.Skip("the file system has no attributes for users")
		}
		if err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	d := opened()
	mark(d, "")
	for _, text := range []string{"", "one", "another one", ""} { // "" where there is none is no error
		if err := d.SetMark(kind, text); errors.Is(err, blockdev.ErrNotSupported) {
			d.Close()
			t.Skip("the file system has no attributes for users")
		} else if err != nil {
			t.Fatal(err)
		}
		mark(d, text)
		d.Close()
		d = opened()
		mark(d, text)
	}
	if err := d.SetMark(kind, "of one kind"); err != nil {
		t.Error(err)
	}
	kind = blockdev.MarkState
	mark(d, "")
	if want := "setfattr -x user.softiser.state " + d.Info().ID; d.Unmark(kind) != want {
		t.Errorf("%q, want %q", d.Unmark(kind), want)
	}
	odd := filepath.Join(t.TempDir(), "it's a disk")
	if o, err := Open(Config{Path: odd, Size: 4096}); err != nil {
		t.Error(err)
	} else {
		if got := o.Unmark(kind); !strings.HasPrefix(got, "setfattr -x user.softiser.state '") || !strings.HasSuffix(got, `/it'\''s a disk'`) {
			t.Error(got)
		}
		o.Close()
	}
	d.Close()
	if _, err := d.Mark(kind); !errors.Is(err, blockdev.ErrClosed) {
		t.Error(err)
	}
	if err := d.SetMark(kind, "x"); !errors.Is(err, blockdev.ErrClosed) {
		t.Error(err)
	}
}

// TestUnmarkInAShell: the command is good in a shell whatever the path is.
func TestUnmarkInAShell(t *testing.T) {
	for _, name := range []string{"v.img", "disk of b; rm -r $HOME", "it's", "*", "-x", "grün"} {
		path := filepath.Join(t.TempDir(), name)
		d, err := Open(Config{Path: path, Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		command := d.Unmark(blockdev.MarkState)
		words, err := exec.Command("sh", "-c", "set -- "+command+`; printf '%s|' "$@"`).Output()
		if want := "setfattr|-x|user.softiser.state|" + d.Info().ID + "|"; err != nil || string(words) != want {
			t.Errorf("%s: %q, %v; want %q", command, words, err, want)
		}
		d.Close()
	}
}
