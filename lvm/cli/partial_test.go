package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/blockdev/open"
	"softiser/lvm"
)

// filled makes a group with volume a, of 8 MiB.
func filled(t *testing.T) (*shell, []byte) {
	t.Helper()
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	data := bytes.Repeat([]byte("softiser"), 1<<20)
	if _, err := s.try(data, "import", "-y", "--raw", "vg0/a"); err != nil {
		t.Fatal(err)
	}
	return s, data
}

func (s *shell) field(name, of string) string {
	s.t.Helper()
	return strings.TrimSpace(s.run("lvs", "--noheadings", "-o", name, of))
}

// A copy that has broken off does not look whole.
func TestACloneThatBreaksOffIsMarked(t *testing.T) {
	s, data := filled(t)
	broken := errors.New("the disk is broken")
	s.env.Config.Open = func(path string) (blockdev.Device, error) {
		d, err := open.Open(open.Spec{Path: path})
		if err != nil || path != s.disks[0] {
			return d, err
		}
		f := faulty.New(d, 1)
		f.SetRules(faulty.Rule{Op: faulty.Read, Off: 6 << 20, Len: 4096, Err: broken}) // of a
		return f, nil
	}
	s.fails("remove it", "clone", "vg0/a", "b")
	s.env.Config.Open = nil
	if got, want := s.field("lv_tags", "vg0/b"), "importing."+s.field("lv_uuid", "vg0/a")+"..0"; got != want {
		t.Errorf("the part of a copy has the tag %q, not %q", got, want)
	}
	s.run("clone", "vg0/a", "c")
	if got := s.field("lv_tags", "vg0/c"); got != "" || s.run("export", "--raw", "vg0/c") != string(data) {
		t.Errorf("the copy has the tag %q, or other content", got)
	}
}

// What has come of an import that has broken off is not passed on, or served, as if it were whole.
func TestAPartIsNotExported(t *testing.T) {
	s, data := filled(t)
	full := s.run("export", "vg0/a")
	if _, err := s.try([]byte(full[:len(full)/2]), "import", "vg0/copy"); err == nil {
		t.Fatal("half a stream was imported")
	}
	tag := s.field("lv_tags", "vg0/copy")
	serve := func() error {
		m := &lvm.Manager{Config: s.env.Config}
		d, err := m.Open(lvm.Spec{VG: "vg0", LV: "copy", Devices: s.disks})
		if err == nil {
			err = d.Close()
		}
		return errors.Join(err, m.Close())
	}
	for _, line := range []string{"export vg0/copy", "export --raw vg0/copy", "clone vg0/copy b", "lvcreate -s -L4m -n b vg0/copy"} {
		s.fails("vg0/copy is half imported", strings.Fields(line)...)
	}
	s.run("lvcreate", "-L16m", "-T", "vg0/p")
	s.run("lvcreate", "-V8m", "-T", "-n", "thin", "vg0/p")
	if _, err := s.try([]byte(full[:len(full)/2]), "import", "-y", "vg0/thin"); err == nil {
		t.Fatal("half a stream was imported")
	}
	s.fails("vg0/thin is half imported", "lvcreate", "-s", "-n", "b", "vg0/thin")
	if err := serve(); !errors.Is(err, lvm.ErrPartial) || !strings.Contains(err.Error(), "lvremove") || !strings.Contains(err.Error(), "lvchange --deltag "+tag) {
		t.Errorf("served: %v", err)
	}
	if _, err := s.try([]byte(full), "import", "-y", "vg0/copy"); err != nil {
		t.Fatal(err)
	}
	if s.run("export", "--raw", "vg0/copy") != string(data) {
		t.Error("the volume that was imported again has other content")
	}
	if err := serve(); err != nil {
		t.Errorf("served when it is whole: %v", err)
	}
}

// Nobody goes on with an import into a volume that somebody else has written to.
func TestAPartThatWasWrittenIsNotGoneOnWith(t *testing.T) {
	s, _ := filled(t)
	full := s.run("export", "vg0/a")
	if _, err := s.try([]byte(full[:len(full)/2]), "import", "vg0/copy"); err == nil {
		t.Fatal("half a stream was imported")
	}
	_, at, _ := strings.Cut(s.field("lv_tags", "vg0/copy"), "..")
	rest := s.run("export", "--resume", at, "vg0/a")
	g, err := lvm.Open(s.env.Config, s.disks, "vg0")
	if err != nil {
		t.Fatal(err)
	}
	v, err := g.Volume("copy")
	if err == nil {
		_, err = v.WriteAt(make([]byte, 512), 0)
		err = errors.Join(err, v.Close())
	}
	if err := errors.Join(err, g.Close()); err != nil {
		t.Fatal(err)
	}
	if got, want := s.field("lv_tags", "vg0/copy"), "importing."+s.field("lv_uuid", "vg0/a")+"..written"; got != want {
		t.Errorf("the tag is %q, not %q", got, want)
	}
	if _, err := s.try([]byte(rest), "import", "vg0/copy"); err == nil || !strings.Contains(err.Error(), "start again without --resume") {
		t.Errorf("the rest: %v", err)
	}
}

// An import into a volume that somebody else writes to meanwhile does not end as if the volume held
// what was imported.
func TestAWriteDuringAnImportIsTold(t *testing.T) {
	s, _ := filled(t)
	full := s.run("export", "vg0/a")
	s.run("lvcreate", "-L8m", "-n", "copy", "vg0")
	m := &lvm.Manager{Config: s.env.Config}
	dev, err := m.Open(lvm.Spec{VG: "vg0", LV: "copy", Devices: s.disks})
	if err != nil {
		t.Fatal(err)
	}
	s.env.Manager = m
	during := func() {
		if _, err := dev.WriteAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
	}
	err = Run(context.Background(), s.env, []string{"import", "-y", "vg0/copy"}, &halfway{strings.NewReader(full), 2 << 20, during}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "written by somebody else") {
		t.Errorf("the import: %v", err)
	}
	if got := s.field("lv_tags", "vg0/copy"); !strings.HasSuffix(got, "..written") {
		t.Errorf("the tag is %q", got)
	}
	if err := errors.Join(dev.Close(), m.Close()); err != nil {
		t.Error(err)
	}
}

// Two imports into one volume do not take place at the same time: the one that ended first would tell of a
// content that the other goes on to overwrite.
func TestImportsIntoOneVolumeAtOnce(t *testing.T) {
	s, _ := filled(t)
	full := s.run("export", "vg0/a")
	s.run("lvcreate", "-L8m", "-n", "other", "vg0")
	other, id := s.run("export", "vg0/other"), s.field("lv_uuid", "vg0/a")
	s.run("lvcreate", "-L8m", "-n", "copy", "vg0")
	m := &lvm.Manager{Config: s.env.Config}
	dev, err := m.Open(lvm.Spec{VG: "vg0", LV: "copy", Devices: s.disks})
	if err != nil {
		t.Fatal(err)
	}
	s.env.Manager = m
	during := func() {
		for _, stream := range []string{other, full} {
			if _, err := s.try([]byte(stream), "import", "-y", "vg0/copy"); !errors.Is(err, blockdev.ErrInUse) {
				t.Errorf("a second import: %v", err)
			}
		}
	}
	if err := Run(t.Context(), s.env, []string{"import", "-y", "vg0/copy"}, &halfway{strings.NewReader(full), 2 << 20, during}, io.Discard, io.Discard); err != nil {
		t.Errorf("the first import: %v", err)
	}
	if got := s.field("lv_tags", "vg0/copy"); got != "imported."+id || s.run("export", "--raw", "vg0/copy") != s.run("export", "--raw", "vg0/a") {
		t.Errorf("the tag is %q, or the content differs", got)
	}
	if _, err := s.try([]byte(other), "import", "-y", "vg0/copy"); err != nil {
		t.Errorf("an import after the first: %v", err)
	}
	if err := errors.Join(dev.Close(), m.Close()); err != nil {
		t.Error(err)
	}
}

// An import that cannot begin leaves what is known of the volume.
func TestImportIntoAReadOnlyVolume(t *testing.T) {
	s, _ := filled(t)
	full := s.run("export", "vg0/a")
	if _, err := s.try([]byte(full), "import", "vg0/copy"); err != nil {
		t.Fatal(err)
	}
	s.run("lvcreate", "-L8m", "-n", "other", "vg0")
	other, tag := s.run("export", "vg0/other"), s.field("lv_tags", "vg0/copy")
	s.run("lvchange", "-pr", "vg0/copy")
	if _, err := s.try([]byte(other), "import", "-y", "vg0/copy"); !errors.Is(err, blockdev.ErrReadOnly) {
		t.Error(err)
	}
	if got := s.field("lv_tags", "vg0/copy"); got != tag {
		t.Errorf("the tag is %q, not %q any more", got, tag)
	}
}

// A volume that was made smaller does not hold what was imported any more, also when it is as large again.
func TestReducedAfterImport(t *testing.T) {
	s, _ := filled(t)
	full := s.run("export", "vg0/a")
	s.run("lvcreate", "-L16m", "-T", "vg0/p")
	s.run("lvcreate", "-V8m", "-T", "-n", "thin", "vg0/p")
	for _, name := range []string{"linear", "thin"} {
		if _, err := s.try([]byte(full), "import", "-y", "vg0/"+name); err != nil {
			t.Fatal(err)
		}
		s.run("lvextend", "-L12m", "vg0/"+name)
		if got, want := s.field("lv_tags", "vg0/"+name), "imported."+s.field("lv_uuid", "vg0/a"); got != want {
			t.Errorf("%s, extended: %q, not %q", name, got, want)
		}
		s.run("lvreduce", "-y", "-L4m", "vg0/"+name)
		s.run("lvextend", "-L8m", "vg0/"+name)
		if got := s.field("lv_tags", "vg0/"+name); got != "" {
			t.Errorf("%s, reduced and extended: %q", name, got)
		}
	}
}

// A signal ends a transfer where it stands, whatever it reads from and writes to.
func TestTransfersAreInterrupted(t *testing.T) {
	s, data := filled(t)
	full := s.run("export", "vg0/a")
	s.run("lvcreate", "-L8m", "-n", "plain", "vg0")
	for _, line := range [][]string{{"export", "vg0/a"}, {"export", "--raw", "vg0/a"}, {"import", "-y", "vg0/copy"}, {"import", "-y", "--raw", "vg0/plain"}, {"clone", "vg0/a", "b"}} {
		ctx, cancel := context.WithCancel(t.Context())
		input := full
		if slices.Contains(line, "--raw") {
			input = string(data)
		}
		in := &halfway{strings.NewReader(input), 2 << 20, cancel}
		out := writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
		if line[0] == "clone" {
			s.env.Config.Open = func(path string) (blockdev.Device, error) {
				d, err := open.Open(open.Spec{Path: path})
				if err != nil {
					return d, err
				}
				return &firstWrite{d, cancel}, nil
			}
		}
		err := Run(ctx, s.env, append(line, "--devices", strings.Join(s.disks, ",")), in, out, io.Discard)
		cancel()
		s.env.Config.Open = nil
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, not interrupted", strings.Join(line, " "), err)
		}
	}
}

// An input that breaks off is not taken for one that has ended, as the body of a request is for whose
// client has gone.
func TestAnInputThatBreaksOffIsTold(t *testing.T) {
	s, data := filled(t)
	full := s.run("export", "vg0/a")
	for line, input := range map[string]string{
		"import -y --raw vg0/a": string(data[:3<<20]),
		"import vg0/b":          full[:2<<20],
		"import vg0/c":          full[:10],
		"import vg0/d":          full[:60],
		"import vg0/e":          "",
	} {
		in := io.MultiReader(strings.NewReader(input), iotest.ErrReader(io.ErrUnexpectedEOF))
		err := Run(t.Context(), s.env, append(strings.Fields(line), "--devices", strings.Join(s.disks, ",")), in, io.Discard, io.Discard)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s after %d bytes: %v", line, len(input), err)
		}
	}
}

// writerFunc is a function as a writer.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// firstWrite calls then with each write to a device.
type firstWrite struct {
	blockdev.Device
	then func()
}

func (d *firstWrite) WriteAt(p []byte, off int64) (int, error) {
	d.then()
	return d.Device.WriteAt(p, off)
}
