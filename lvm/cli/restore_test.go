package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/lvm"
	"softiser/lvm/meta"
)

// TestRestore: a removed volume is back with its data, and what the file does not
// fit is refused.
func TestRestore(t *testing.T) {
	s := newShell(t)
	s.group()
	file := filepath.Join(t.TempDir(), "backup")
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	data := bytes.Repeat([]byte("restored"), 1<<20)
	if _, err := s.try(data, "import", "-y", "--raw", "vg0/a"); err != nil {
		t.Fatal(err)
	}
	s.run("vgcfgbackup", "-f", file, "vg0")
	s.run("lvremove", "vg0/a")
	s.run("lvcreate", "-L4m", "-n", "later", "vg0", s.disks[1])
	s.fails("say --yes", "vgcfgrestore", "-f", file, "vg0")
	s.says("Restored volume group vg0.", "vgcfgrestore", "-y", "-f", file, "vg0")
	if got := strings.Join(strings.Fields(s.run("lvs", "--noheadings", "-o", "lv_name")), " "); got != "a" || s.run("export", "--raw", "vg0/a") != string(data) {
		t.Errorf("volumes %q, or the content differs", got)
	}
	s.fails("no such file", "vgcfgrestore", "-y", "-f", file+"x", "vg0")
	s.run("vgrename", "vg0", "vg1")
	s.fails("not of", "vgcfgrestore", "-y", "-f", file, "vg1")
	s.run("vgrename", "vg1", "vg0")
	s.run("lvcreate", "-T", "-L8m", "vg0/pool")
	s.fails("thin pool pool", "vgcfgrestore", "-y", "-f", file, "vg0")
	s.run("lvremove", "-y", "vg0/pool")
	s.run("vgreduce", "vg0", s.disks[1])
	s.fails("physical volumes", "vgcfgrestore", "-y", "-f", file, "vg0")
}

// TestRestoreKeepsWhatIsKnown: data stays where it is, so that a volume holds what it is known to hold now, and
// not what it held when the file was made.
func TestRestoreKeepsWhatIsKnown(t *testing.T) {
	s, data := filled(t)
	file := filepath.Join(t.TempDir(), "backup")
	full, id := s.run("export", "vg0/a"), s.field("lv_uuid", "vg0/a")
	for _, name := range []string{"same", "raw", "gone", "moved", "part"} {
		if _, err := s.try([]byte(full), "import", "vg0/"+name); err != nil {
			t.Fatal(err)
		}
	}
	s.run("lvcreate", "-L8m", "-n", "later", "vg0")
	s.run("vgcfgbackup", "-f", file, "vg0")
	for name, input := range map[string][]byte{"raw": data[:512], "later": []byte(full), "part": []byte(full[:2<<20])} {
		args := []string{"import", "-y", "vg0/" + name}
		if name == "raw" {
			args = append(args, "--raw")
		}
		if _, err := s.try(input, args...); err != nil != (name == "part") {
			t.Fatal(err)
		}
	}
	s.run("lvremove", "-y", "vg0/gone")
	s.run("pvmove", "-n", "moved", s.disks[0], s.disks[1])
	part := s.field("lv_tags", "vg0/part")
	s.run("vgcfgrestore", "-y", "-f", file, "vg0")
	for name, want := range map[string]string{"same": "imported." + id, "raw": "", "gone": "", "moved": "", "later": "imported." + id, "part": part} {
		if got := s.field("lv_tags", "vg0/"+name); got != want {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
	if !strings.HasPrefix(part, "importing."+id) {
		t.Errorf("the part of an import had the tag %q", part)
	}
}

// TestBackupInPlace: vgcfgbackup to a pipe or what is open (/dev/stdout) writes there, and leaves the name what it is.
func TestBackupInPlace(t *testing.T) {
	s := newShell(t)
	s.group()
	dir := t.TempDir()
	pipe, open, link, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "open"), filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink("backup", link)); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	theirs, err := os.Create(open)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	isBackup := func(name string, text []byte) {
		t.Helper()
		if _, err := meta.Load(text); err != nil {
			t.Errorf("%s: %v, %.60q", name, err, text)
		}
	}
	for _, name := range []string{pipe, fmt.Sprintf("/proc/self/fd/%d", theirs.Fd()), link, file} {
		s.run("vgcfgbackup", "-f", name, "vg0")
	}
	missing := filepath.Join(dir, "missing")
	s.fails(missing+": no such file or directory", "vgcfgbackup", "-f", filepath.Join(missing, "file"), "vg0") // as of lvm2
	if _, err := os.Stat(missing); err == nil {
		t.Error("the folder has been made")
	}
	if st, err := os.Lstat(pipe); err != nil || st.Mode().Type() != fs.ModeNamedPipe {
		t.Errorf("the pipe is %v now, %v", st.Mode(), err)
	} else {
		text := make([]byte, 64<<10)
		n, err := reader.Read(text)
		if err != nil {
			t.Error(err)
		}
		isBackup("pipe", text[:n])
	}
	if st, err := os.Lstat(link); err != nil || st.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the link is %v now, %v", st.Mode(), err)
	}
	for _, name := range []string{open, link, file} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		isBackup(name, text)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("a new file has the mode %v, %v", st.Mode(), err)
	}
}

// TestRestoreThin: a group with a thin pool is restored if forced; a pool of the same
// time works, one of another time is not opened, so that nothing is damaged.
func TestRestoreThin(t *testing.T) {
	s := newShell(t)
	s.group()
	file := filepath.Join(t.TempDir(), "backup")
	s.run("lvcreate", "-T", "-L16m", "vg0/pool")
	s.run("lvcreate", "-V16m", "-T", "vg0/pool", "-n", "thin")
	data := bytes.Repeat([]byte("restored"), 1<<20)
	if _, err := s.try(data, "import", "-y", "--raw", "vg0/thin"); err != nil {
		t.Fatal(err)
	}
	s.run("vgcfgbackup", "-f", file, "vg0")
	s.run("lvcreate", "-L4m", "-n", "later", "vg0")
	s.fails("--force restores it", "vgcfgrestore", "-y", "-f", file, "vg0")
	s.says("Restored volume group vg0.", "vgcfgrestore", "--force", "-f", file, "vg0")
	if got := strings.Join(strings.Fields(s.run("lvs", "--noheadings", "-o", "lv_name")), " "); got != "pool thin" || !strings.HasPrefix(s.run("export", "--raw", "vg0/thin"), string(data)) {
		t.Errorf("volumes %q, or the content differs", got)
	}
	s.run("lvcreate", "-V8m", "-T", "vg0/pool", "-n", "more")
	s.run("vgcfgrestore", "--force", "-f", file, "vg0")
	s.fails("from another time", "export", "--raw", "vg0/thin")
	s.fails("from another time", "lvcreate", "-V8m", "-T", "vg0/pool", "-n", "no")
}

// TestRestoreLive: inside a target, what is served stays as it is, or nothing is
// restored.
func TestRestoreLive(t *testing.T) {
	s := newShell(t)
	s.group()
	file := filepath.Join(t.TempDir(), "backup")
	s.run("lvcreate", "-L8m", "-n", "lin", "vg0")
	m := &lvm.Manager{Config: s.env.Config}
	open := func(name string) blockdev.Device {
		t.Helper()
		dev, err := m.Open(lvm.Spec{VG: "vg0", LV: name, Devices: s.disks})
		if err != nil {
			t.Fatal(err)
		}
		return dev
	}
	lin := open("lin")
	s.env.Manager = m
	s.run("vgcfgbackup", "-f", file, "vg0")
	s.fails("really restore it while 1 of its volumes are in use?", "vgcfgrestore", "-f", file, "vg0")
	s.run("vgcfgrestore", "-y", "-f", file, "vg0")
	s.run("lvcreate", "-T", "-L16m", "vg0/pool")
	s.run("lvcreate", "-V16m", "-T", "vg0/pool", "-n", "thin")
	s.run("lvcreate", "-s", "-L4m", "-n", "snap", "vg0/lin")
	data := bytes.Repeat([]byte("served"), 1<<20)[:1<<20]
	if _, err := lin.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	s.run("vgcfgbackup", "-f", file, "vg0")
	s.run("lvcreate", "-L4m", "-n", "later", "vg0")
	s.run("vgcfgrestore", "--force", "-f", file, "vg0")
	check := func(volumes string) {
		t.Helper()
		got := make([]byte, len(data))
		if _, err := lin.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
			t.Errorf("what is served has changed: %v", err)
		}
		if names := strings.Join(strings.Fields(s.run("lvs", "--noheadings", "-o", "lv_name")), " "); names != volumes {
			t.Errorf("volumes %q, not %q", names, volumes)
		}
	}
	check("lin pool snap thin")
	s.run("lvextend", "-L12m", "vg0/lin")
	s.fails("lin is served", "vgcfgrestore", "--force", "-f", file, "vg0")
	s.run("vgcfgbackup", "-f", file, "vg0")
	s.run("lvextend", "-L8m", "vg0/snap") // its store is a part of what is served
	s.fails("lin is served", "vgcfgrestore", "--force", "-f", file, "vg0")
	s.run("vgcfgbackup", "-f", file, "vg0")
	s.run("lvremove", "-y", "vg0/snap")
	s.fails("lin is served", "vgcfgrestore", "--force", "-f", file, "vg0")
	s.run("vgcfgbackup", "-f", file, "vg0")
	s.run("lvcreate", "-s", "-L4m", "-n", "snap", "vg0/lin")
	s.fails("lin is served", "vgcfgrestore", "--force", "-f", file, "vg0")
	check("lin pool snap thin")

	thin := open("thin")
	s.run("vgcfgbackup", "-f", file, "vg0")
	s.run("vgcfgrestore", "--force", "-f", file, "vg0")
	s.run("lvcreate", "-V8m", "-T", "vg0/pool", "-n", "more")
	s.fails("pool is served", "vgcfgrestore", "--force", "-f", file, "vg0")
	check("lin more pool snap thin")
	for _, d := range []blockdev.Device{lin, thin} {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
