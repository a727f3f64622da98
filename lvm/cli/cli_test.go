package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"weak"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/open"
	"softiser/internal/await"
	"softiser/internal/durable"
	"softiser/internal/namelock"
	"softiser/internal/objects"
	"softiser/lvm"
	"softiser/lvm/snap"
	"softiser/lvm/vg"
)

// shell runs commands on two backing files.
type shell struct {
	t     *testing.T
	env   Env
	disks []string
}

const diskSize = 256 << 20

func newShell(t *testing.T) *shell {
	dir := t.TempDir()
	s := &shell{t: t, env: Env{Config: lvm.Config{Config: vg.Config{LockDir: dir + "/lock", ArchiveDir: dir + "/archive", BackupDir: dir + "/backup"}}}}
	for _, n := range []string{"a.img", "b.img"} {
		p := filepath.Join(dir, n)
		f, err := os.Create(p)
		if err == nil {
			err = errors.Join(f.Truncate(diskSize), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		s.disks = append(s.disks, p)
	}
	return s
}

// outputs are for exports, which are as large as a volume.
var outputs = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (s *shell) try(stdin []byte, args ...string) (string, error) {
	out := outputs.Get().(*bytes.Buffer)
	defer outputs.Put(out)
	out.Reset()
	var stderr bytes.Buffer
	args = append(args, "--devices", strings.Join(s.disks, ","))
	if s.env.Manager != nil {
		args = args[:len(args)-2]
	}
	err := Run(context.Background(), s.env, args, bytes.NewReader(stdin), out, &stderr)
	return out.String(), err
}

func (s *shell) run(args ...string) string {
	s.t.Helper()
	out, err := s.try(nil, args...)
	if err != nil {
		s.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return out
}

func (s *shell) fails(want string, args ...string) {
	s.t.Helper()
	_, err := s.try(nil, args...)
	if err == nil || !strings.Contains(err.Error(), want) {
		s.t.Errorf("%s: %v, want %q", strings.Join(args, " "), err, want)
	}
}

func (s *shell) says(want string, args ...string) {
	s.t.Helper()
	if out := s.run(args...); !strings.Contains(out, want) {
		s.t.Errorf("%s: %q, want %q", strings.Join(args, " "), out, want)
	}
}

// copyMetadata gives the disk to the label and the metadata of from, and its size.
func (s *shell) copyMetadata(to, from string) {
	s.t.Helper()
	src, err := os.Open(from)
	if err != nil {
		s.t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer dst.Close()
	_, err = io.CopyN(dst, src, 1<<20) // where the data begins
	if err == nil {
		err = dst.Truncate(diskSize)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shell) group() {
	s.t.Helper()
	s.says("successfully created", append([]string{"vgcreate", "vg0"}, s.disks...)...)
}

func TestLife(t *testing.T) {
	s := newShell(t)
	s.says(`Physical volume "`+s.disks[0]+`" successfully created.`, "pvcreate", s.disks[0])
	s.group()
	s.says(`Logical volume "lin" created.`, "lvcreate", "-L", "20m", "-n", "lin", "vg0")
	s.says(`Logical volume "lvol0" created.`, "lvcreate", "-l", "10%FREE", "vg0", s.disks[1]+":0-30")
	s.says("Using default stripesize 64.00 KiB.", "lvcreate", "-i2", "-L24m", "-n", "str", "vg0")
	s.says("Rounding size to boundary between physical extents: 8.00m.", "lvcreate", "-L5m", "-n", "odd", "vg0")
	s.says("changed from 20.00 MiB (5 extents) to 40.00 MiB (10 extents).", "lvextend", "-L", "+20m", "vg0/lin")
	s.fails("say --yes", "lvreduce", "-L", "-8m", "vg0/lin")
	s.says("successfully resized", "lvreduce", "-y", "-L", "-8m", "vg0/lin")
	s.says(`Renamed "odd" to "even" in volume group "vg0"`, "lvrename", "vg0", "odd", "even")
	s.says("Logical volume vg0/even changed.", "lvchange", "--addtag", "gold", "-p", "r", "vg0/even")
	if got := s.run("lvs", "--noheadings", "-o", "name,tags,attr,size", "--units", "m", "@gold"); strings.Join(strings.Fields(got), " ") != "even gold -ri------- 8.00m" {
		t.Errorf("%q", got)
	}
	s.says("created", "lvcreate", "-s", "-L8m", "-n", "snap", "vg0/lin")
	s.says("created", "lvcreate", "-T", "-L40m", "vg0/pool")
	s.says("created", "lvcreate", "-V1t", "-T", "vg0/pool", "-n", "thin")
	s.says("created", "lvcreate", "-s", "-n", "thinsnap", "vg0/thin")
	if got := s.run("lvs", "--noheadings", "-o", "lv_name,pool_lv,origin,segtype,chunk_size,lv_attr", "-O", "lv_name"); strings.Join(strings.Fields(got), " ") !=
		"even linear 0 -ri------- lin linear 0 owi---s--- lin linear 0 owi---s--- lvol0 linear 0 -wi------- pool thin-pool 64.00k twi---tz-- snap lin linear 4.00k swi---s--- str striped 0 -wi------- thin pool thin 0 Vwi---tz-- thinsnap pool thin thin 0 Vwi---tz-k" {
		t.Errorf("%q", got)
	}
	s.says("Moved: 100.00%", "pvmove", "-n", "lin", s.disks[0])
	s.fails("still in use", "vgreduce", "vg0", s.disks[0])
	s.says("lin: Merged: 100.00%", "lvconvert", "--merge", "vg0/snap")
	s.says("thin: Merged: 100.00%", "lvconvert", "--merge", "vg0/thinsnap")
	s.fails("say --yes", "lvremove", "vg0/pool")
	s.says(`"pool" successfully removed`, "lvremove", "-y", "vg0/pool")
	s.fails("really remove", "vgremove", "vg0")
	s.says(`Volume group "vg0" successfully removed`, "vgremove", "-y", "vg0")
	s.says("successfully wiped", "pvremove", s.disks[0])
	if got := s.run("pvs", "--noheadings", "-o", "pv_name,vg_name"); strings.TrimSpace(got) != s.disks[1] {
		t.Errorf("%q", got)
	}
}

// A group does not get the name of another one: nothing could be done with either afterwards.
func TestRenameToAnother(t *testing.T) {
	s := newShell(t)
	s.says("successfully created", "vgcreate", "vg0", s.disks[0])
	s.says("successfully created", "vgcreate", "vg1", s.disks[1])
	s.fails("a volume group called vg1 already exists", "vgrename", "vg0", "vg1")
	s.says("vg0", "vgs")
	s.says("successfully renamed", "vgrename", "vg0", "vg2")
}

// lvcreate -p r makes snapshots and thin volumes that are read-only, too.
func TestCreateReadOnly(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "lin", "vg0")
	s.run("lvcreate", "-T", "-L8m", "vg0/pool")
	s.run("lvcreate", "-s", "-pr", "-L8m", "-n", "snap", "vg0/lin")
	s.run("lvcreate", "-pr", "-V8m", "-T", "vg0/pool", "-n", "thin")
	s.run("lvcreate", "-s", "-pr", "-n", "thinsnap", "vg0/thin")
	if got := s.run("lvs", "--noheadings", "-o", "lv_name,lv_attr", "-O", "lv_name"); strings.Join(strings.Fields(got), " ") !=
		"lin owi---s--- pool twi---tz-- snap sri---s--- thin Vri---tz-- thinsnap Vri---tz-k" {
		t.Errorf("%q", got)
	}
}

func TestErrors(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L20m", "-n", "lin", "vg0")
	s.fails("already exists", append([]string{"vgcreate", "vg0"}, s.disks...)...)
	s.fails("belongs to a volume group", "pvcreate", "-ff", s.disks[0])
	s.fails("exists already", "lvcreate", "-L20m", "-n", "lin", "vg0")
	s.fails("insufficient free extents", "lvcreate", "-L20g", "-n", "big", "vg0")
	s.fails("reserved", "lvcreate", "-L20m", "-n", "snapshot1", "vg0")
	s.fails("left to lvm2", "lvcreate", "--type", "raid1", "-L20m", "vg0")
	s.fails("not found", "lvcreate", "-L20m", "nope")
	s.fails("not found", "lvs", "nope")
	s.fails("failed to find", "lvextend", "-L30m", "vg0/nope")
	s.fails("failed to find", "lvcreate", "-s", "-n", "snap", "vg0/nope")
	s.fails("name the origin", "lvcreate", "-s", "-n", "snap", "vg0")
	s.fails("name the pool", "lvcreate", "-T", "-V20m", "-n", "thin", "vg0")
	s.fails("nothing to extend", "lvextend", "-L20m", "vg0/lin")
	s.fails("not both", "lvextend", "-L20m", "-l5", "vg0/lin")
	s.fails("unrecognised field", "lvs", "-o", "nonsense")
	s.fails("units", "lvs", "--units", "x")
	s.fails("cannot be in one report", "lvs", "-o", "lv_name,pv_name")
	s.fails("cannot be in one report", "pvs", "-O", "lv_name")
	s.fails("unrecognised sort field", "lvs", "-O", "nonsense")
	s.fails("is no snapshot", "lvconvert", "--merge", "vg0/lin")
	s.fails("not activated by hand", "lvchange", "-ay", "vg0/lin")
	s.fails("physical volume /dev/null was not found", "pvmove", "/dev/null")
	for _, n := range []string{"0", "-1", "129", "x"} {
		s.fails("1 to 128", "lvcreate", "-i"+n, "-L20m", "-n", "striped", "vg0")
		s.fails("1 to 128", "lvextend", "-i"+n, "-L+20m", "vg0/lin")
	}
	s.fails("no data to move on "+s.disks[1], "pvmove", s.disks[1])
}

// Devices are named in reports as in other commands: by any path that leads to them.
func TestReportByRelativePath(t *testing.T) {
	s := newShell(t)
	s.group()
	t.Chdir(filepath.Dir(s.disks[0]))
	for _, report := range []string{"pvs", "pvdisplay"} {
		for _, name := range []string{"b.img", "./b.img"} {
			if out := s.run(report, name); !strings.Contains(out, s.disks[1]) || strings.Contains(out, s.disks[0]) {
				t.Errorf("%s %s: %q", report, name, out)
			}
		}
		s.fails("c.img not found", report, "c.img")
	}
}

// TestPipeIsNoDevice: nobody waits for what has been named as a device and is a pipe.
func TestPipeIsNoDevice(t *testing.T) {
	s := newShell(t)
	s.group()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	s.disks = append(s.disks, pipe)
	s.fails(pipe, "pvs")
}

// Where nothing names files, what is in files is not found, and the error says how to name them.
func TestFilesAreNamed(t *testing.T) {
	missing := fmt.Errorf("volume group %q %w", "vg0", vg.ErrNotFound)
	const want = "LVM_DEVICES"
	if err := (&app{}).lookedAt(missing); !strings.Contains(err.Error(), want) || !errors.Is(err, vg.ErrNotFound) {
		t.Errorf("%v, want %s in it", err, want)
	}
	for _, a := range []*app{{devices: []string{"a.img"}}, {env: Env{Manager: &lvm.Manager{}}}} {
		if err := a.lookedAt(missing); err != missing {
			t.Errorf("%v, want %v", err, missing)
		}
	}
	if err := (&app{}).lookedAt(nil); err != nil {
		t.Error(err)
	}
}

// TestReportKinds: a report of groups becomes one of volumes or devices, and
// every column of every report can be shown and sorted by.
func TestReportKinds(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L20m", "-n", "b", "vg0")
	s.run("lvcreate", "-L24m", "-n", "a", "vg0")
	s.run("lvcreate", "-T", "-L20m", "vg0/p")
	for args, want := range map[string]string{
		"vgs -o vg_name,lv_name -O lv_name": "vg0 a vg0 b vg0 p",
		"vgs -o vg_name -O lv_size":         "vg0 vg0 vg0",
		"lvs -o lv_size,lv_name":            "24.00m a 20.00m b 20.00m p",
		"lvs -o lv_name -O seg_size":        "b p a",
		"vgs -o pv_name":                    strings.Join(s.disks, " "),
	} {
		if got := strings.Join(strings.Fields(s.run(append(strings.Fields(args), "--noheadings")...)), " "); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	for _, n := range []string{"orphan.img", "blank.img"} {
		p := filepath.Join(t.TempDir(), n)
		if err := errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, 64<<20)); err != nil {
			t.Fatal(err)
		}
		s.disks = append(s.disks, p)
	}
	s.run("pvcreate", s.disks[2])
	for _, f := range fields {
		report := map[string]string{"lv": "lvs", "seg": "lvs", "vg": "vgs", "pv": "pvs", "pvseg": "pvs"}[f.kind]
		s.run(report, "-a", "-o", f.name, "-O", f.name)
		if f.kind == "vg" {
			s.run("lvs", "-o", f.name)
			s.run("pvs", "-a", "-o", f.name, "-O", f.name)
		}
	}
}

// An import of plain content that does not fit says what is wrong with the input, and what it has done to the volume.
func TestImportDoesNotFit(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L4m", "-n", "small", "vg0")
	for n, want := range map[int]string{
		5 << 20:   "the input is longer than vg0/small, which has 4194304 bytes; what came before offset 4194304 has been written",
		4<<20 + 1: "longer than vg0/small",
		2<<20 + 1: "within a block of 512 bytes, after 2097153; what came before offset 2097152 has been written",
	} {
		if _, err := s.try(make([]byte, n), "import", "-y", "--raw", "vg0/small"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %v, want %s", n, err, want)
		}
	}
}

func TestTransfer(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L40m", "-T", "vg0/pool")
	s.run("lvcreate", "-V4m", "-T", "vg0/pool", "-n", "a")
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if _, err := s.try(data, "import", "-y", "--raw", "vg0/a"); err != nil {
		t.Fatal(err)
	}
	s.run("lvcreate", "-s", "-n", "a1", "vg0/a")
	full := s.run("export", "vg0/a1")
	if _, err := s.try(bytes.Repeat([]byte("x"), 4096), "import", "-y", "--raw", "vg0/a"); err != nil {
		t.Fatal(err)
	}
	s.run("lvcreate", "-s", "-n", "a2", "vg0/a")
	s.says("1 range, 64.00k", "diff", "vg0/a1", "vg0/a2")
	if got := s.run("diff", "--json", "vg0/a1", "vg0/a2"); got != "{\"changes\":[{\"offset\":0,\"length\":65536,\"type\":\"data\"}]}\n" {
		t.Errorf("%q", got)
	}
	inc := s.run("export", "--from", "vg0/a1", "vg0/a2")
	if len(inc) > 80000 {
		t.Errorf("an increment of one block has %d bytes", len(inc))
	}
	imp := func(want, stream string, args ...string) {
		t.Helper()
		_, err := s.try([]byte(stream), append([]string{"import"}, args...)...)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("import: %v, want %q", err, want)
		}
	}
	imp("standard input: the input is empty", "", "vg0/copy")
	imp("standard input: not a volume stream", "no stream at all", "vg0/copy")
	imp("/dev/null: the input is empty", "", "--input", "/dev/null", "vg0/copy")
	imp("import the full volume first", inc, "vg0/copy")
	imp("breaks off", full[:len(full)/2], "vg0/copy")
	imp("does not hold", inc, "vg0/copy")
	imp("", full, "vg0/copy") // the same stream again
	s.run("lvchange", "--addtag", "important", "vg0/copy")
	imp("", inc, "vg0/copy")
	s.says("important", "lvs", "-o", "tags", "vg0/copy")
	imp("does not hold", inc, "vg0/copy") // it is a2 now, not a1
	if s.run("export", "--raw", "vg0/copy")[:1<<20] != s.run("export", "--raw", "vg0/a2")[:1<<20] {
		t.Error("the copy differs")
	}
	s.says("created", "clone", "vg0/a2", "a3")
	s.says("created", "clone", "vg0/copy", "copy2")
	if s.run("export", "--raw", "vg0/copy2") != s.run("export", "--raw", "vg0/copy") {
		t.Error("the clone differs")
	}
	out := filepath.Join(t.TempDir(), "stream")
	s.run("export", "--output", out, "vg0/a2")
	s.run("import", "--input", out, "vg0/third")
}

// TestTwoDisksOfOneUUID: a copy of a disk keeps nobody from the groups beside that of the disk.
func TestTwoDisksOfOneUUID(t *testing.T) {
	s := newShell(t)
	all := s.disks
	for i, name := range []string{"vg0", "vg1"} {
		s.disks = all[i : i+1]
		s.run("vgcreate", name, all[i])
		s.run("lvcreate", "-L8m", "-n", "v", name)
	}
	twin := filepath.Join(filepath.Dir(all[0]), "twin.img")
	s.copyMetadata(twin, all[0])
	s.disks = append(slices.Clone(all), twin)
	m := &lvm.Manager{Config: s.env.Config}
	d, err := m.Open(lvm.Spec{VG: "vg1", LV: "v", Devices: s.disks})
	if err == nil {
		err = d.Close()
	}
	if err := errors.Join(err, m.Close()); err != nil {
		t.Errorf("the group beside it: %v", err)
	}
	both := all[0] + " and " + twin + " are both physical volume"
	for _, v := range []string{"v", "w"} {
		if _, err := m.Open(lvm.Spec{VG: "vg0", LV: v, Devices: s.disks, Size: 4 << 20}); err == nil || !strings.Contains(err.Error(), both) {
			t.Errorf("a volume of the disk: %v", err)
		}
	}
	s.run("lvcreate", "-L8m", "-n", "w", "vg1")
	for _, line := range []string{"lvcreate -L8m -n w vg0", "lvremove -y vg0/v", "pvresize " + all[0], "vgextend vg1 " + twin, "pvcreate -ffy " + twin} {
		if _, err := s.try(nil, strings.Fields(line)...); err == nil {
			t.Errorf("%s: done", line)
		}
	}
	if got := strings.Join(strings.Fields(s.run("lvs", "--noheadings", "-o", "vg_name,lv_name", "--sort", "lv_name")), " "); got != "vg1 v vg1 w" {
		t.Errorf("lvs shows %s", got)
	}
}

// TestOtherNamesOfADisk: a link to a disk that is named, too, is no copy, and who names one twice is told so.
func TestOtherNamesOfADisk(t *testing.T) {
	s := newShell(t)
	link := filepath.Join(filepath.Dir(s.disks[0]), "link.img")
	if err := os.Symlink(s.disks[0], link); err != nil {
		t.Fatal(err)
	}
	twice := "that is " + s.disks[0] + ", which is opened already: name each device once"
	s.fails(twice, "vgcreate", "vg0", s.disks[0], link)
	s.fails(twice, "pvcreate", s.disks[0], s.disks[0])
	s.run("vgcreate", "vg0", s.disks[0])
	s.disks = append(s.disks, link)
	s.run("lvcreate", "-L8m", "-n", "v", "vg0")
	if got := strings.Join(strings.Fields(s.run("pvs", "--noheadings", "-o", "pv_name,vg_name")), " "); got != s.disks[0]+" vg0" {
		t.Errorf("pvs shows %s", got)
	}
	for _, name := range []string{s.disks[0], link} {
		s.fails(name+` is in volume group "vg0" already`, "vgextend", "vg0", name)
	}
	m := &lvm.Manager{Config: s.env.Config}
	if _, err := m.Open(lvm.Spec{VG: "vg0", LV: "v", Devices: []string{s.disks[0], link}}); err == nil || !strings.Contains(err.Error(), twice) {
		t.Errorf("a volume whose devices are one: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// TestTwoGroupsOfOneName: neither is taken for the other, and those beside them are used as ever, until one of the
// two has another name.
func TestTwoGroupsOfOneName(t *testing.T) {
	s := newShell(t)
	third := filepath.Join(filepath.Dir(s.disks[0]), "c.img")
	if err := errors.Join(os.WriteFile(third, nil, 0o600), os.Truncate(third, 64<<20)); err != nil {
		t.Fatal(err)
	}
	all := append(s.disks, third)
	for i, name := range []string{"vg0", "vg0", "vg1"} {
		s.disks = all[i : i+1]
		s.run("vgcreate", name, all[i])
		s.run("lvcreate", "-L8m", "-n", fmt.Sprint("v", i), name)
	}
	s.disks = all
	m := &lvm.Manager{Config: s.env.Config}
	d, err := m.Open(lvm.Spec{VG: "vg1", LV: "v2", Devices: all})
	if err == nil {
		err = d.Close()
	}
	if err := errors.Join(err, m.Close()); err != nil {
		t.Errorf("the group beside them: %v", err)
	}
	_, err = m.Open(lvm.Spec{VG: "vg0", LV: "v0", Devices: all, Size: 4 << 20})
	if !errors.Is(err, vg.ErrAmbiguous) || !strings.Contains(err.Error(), all[0]) || !strings.Contains(err.Error(), all[1]) || !strings.Contains(err.Error(), "vgrename") {
		t.Errorf("one of the two: %v", err)
	}
	s.run("lvcreate", "-L8m", "-n", "w", "vg1")
	for _, line := range []string{"lvcreate -L8m -n w vg0", "lvremove -y vg0/v0", "vgrename vg0 vg2", "pvresize " + all[0]} {
		s.fails("is ambiguous", strings.Fields(line)...)
	}
	s.fails("already exists", "vgrename", "vg1", "vg0")
	if got := strings.Join(strings.Fields(s.run("lvs", "--noheadings", "-o", "vg_name,lv_name", "--sort", "lv_name")), " "); got != "vg0 v0 vg0 v1 vg1 v2 vg1 w" {
		t.Errorf("lvs shows %s", got)
	}
	s.disks = all[1:2]
	s.run("vgrename", "vg0", "vg2")
	s.disks = all
	s.says("v1", "lvs", "vg2")
	s.run("lvremove", "-y", "vg0/v0")
}

// TestOutputIsNoDiskOfTheGroup: what is made of a group does not take the place of its own disks.
func TestOutputIsNoDiskOfTheGroup(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(s.disks[1], link); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(s.disks[1])
	if err != nil {
		t.Fatal(err)
	}
	asked := false
	served := Env{
		Remote: func(context.Context, []string, io.Reader, io.Writer, io.Writer) (bool, error) {
			asked = true
			return true, nil
		},
		Disks: func(_ context.Context, group string) ([]string, error) {
			if group != "vg0" {
				t.Errorf("asked for the disks of %q", group)
			}
			return s.disks, nil
		},
	}
	for _, out := range []string{s.disks[1], link} {
		want := out + " is a disk of the volume group"
		s.fails(want, "export", "--output", out, "vg0/a")
		s.fails(want, "export", "--raw", "--output", out, "vg0/a")
		s.fails(want, "vgcfgbackup", "-f", out, "vg0")
		err := Run(t.Context(), served, []string{"export", "--output", out, "/dev/vg0/a"}, nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || asked {
			t.Errorf("of a running target: %v; asked to do it: %v", err, asked)
		}
	}
	if after, err := os.Stat(s.disks[1]); err != nil || !os.SameFile(before, after) {
		t.Errorf("the disk is another file: %v", err)
	}
	s.says("8.00m", "lvs", "vg0/a")
}

// TestExportIsDurable: when an export to a file has succeeded, the file is on its disk.
func TestExportIsDurable(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	out := filepath.Join(t.TempDir(), "stream")
	file, dir := durable.SyncFile, durable.SyncDir
	t.Cleanup(func() { durable.SyncFile, durable.SyncDir = file, dir })
	var synced []string
	durable.SyncFile = func(f *os.File) error { synced = append(synced, f.Name()); return file(f) }
	durable.SyncDir = func(name string) error { synced = append(synced, name); return dir(name) }
	s.run("export", "--output", out, "vg0/a")
	if len(synced) != 2 || filepath.Dir(synced[0]) != filepath.Dir(out) || synced[1] != filepath.Dir(out) {
		t.Errorf("synced %q, want the file that becomes %s and its folder", synced, out)
	}
	durable.SyncFile = func(*os.File) error { return errors.New("the disk has failed") }
	s.fails("the disk has failed", "export", "--output", out, "vg0/a")
	s.run("export", "--output", "/dev/null", "vg0/a")
}

// TestFailedExportKeepsTheOldFile: an export takes the place of an earlier one when it is whole, and
// one that fails leaves nothing.
func TestFailedExportKeepsTheOldFile(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	line := func(out string) []string {
		return []string{"export", "--output", out, "vg0/a", "--devices", strings.Join(s.disks, ",")}
	}
	for what, try := range map[string]func(out string) error{
		"the disk fails": func(out string) error {
			file := durable.SyncFile
			defer func() { durable.SyncFile = file }()
			durable.SyncFile = func(*os.File) error { return errors.New("the disk has failed") }
			return Run(t.Context(), s.env, line(out), nil, io.Discard, io.Discard)
		},
		"it is interrupted": func(out string) error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return Run(ctx, s.env, line(out), nil, io.Discard, io.Discard)
		},
		"the target goes away": func(out string) error {
			env := Env{Remote: func(_ context.Context, _ []string, _ io.Reader, stdout, _ io.Writer) (bool, error) {
				_, err := io.WriteString(stdout, "a part")
				return true, errors.Join(err, io.ErrUnexpectedEOF)
			}}
			return Run(t.Context(), env, line(out), nil, io.Discard, io.Discard)
		},
	} {
		out := filepath.Join(t.TempDir(), "stream")
		if err := os.WriteFile(out, []byte("an earlier one"), 0o600); err != nil {
			t.Fatal(err)
		}
		if try(out) == nil {
			t.Errorf("%s: success", what)
		}
		if b, err := os.ReadFile(out); err != nil || string(b) != "an earlier one" {
			t.Errorf("%s: the earlier file has %d bytes, %v", what, len(b), err)
		}
		if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) != 1 {
			t.Errorf("%s: left %v, %v", what, left, err)
		}
	}
}

// TestNamesOfOneGroup: a name that says another group than the rest of the line is not taken for one of that.
func TestNamesOfOneGroup(t *testing.T) {
	s, _ := filled(t)
	for _, line := range []string{"lvcreate -L4m -n vg1/b vg0", "lvcreate -s -L4m -n vg1/b vg0/a", "lvcreate -T -L8m --thinpool vg1/p vg0", "lvrename vg0/a vg1/b", "lvrename vg0 vg1/a b", "lvrename vg0 a vg1/b"} {
		s.fails("single volume group", strings.Fields(line)...)
	}
	s.run("lvcreate", "-L4m", "-n", "vg0/b", "vg0")
	s.run("lvrename", "vg0", "/dev/vg0/b", "vg0/c")
	s.run("lvrename", "vg0/c", "d")
	s.run("lvcreate", "-T", "-L8m", "--thinpool", "vg0/p", "vg0") // as the shell completes it
	s.run("lvcreate", "-V4m", "--thinpool", "vg0/p", "-n", "thin", "vg0")
	if got := strings.Join(strings.Fields(s.run("lvs", "--noheadings", "-o", "lv_name")), " "); got != "a d p thin" {
		t.Errorf("the group has %s", got)
	}
}

// TestDifferencesWithinAGroup: a volume of another group is not taken for the one that has its name in this.
func TestDifferencesWithinAGroup(t *testing.T) {
	s := newShell(t)
	for i, group := range []string{"vg0", "vg1"} {
		s.says("successfully created", "vgcreate", group, s.disks[i])
		s.run("lvcreate", "-L8m", "-n", "a", group)
		s.run("lvcreate", "-s", "-L4m", "-n", "snap", group+"/a")
	}
	for _, line := range []string{"export --from vg1/snap vg0/a", "diff vg0/snap vg1/a", "diff vg1/snap vg0/a"} {
		s.fails("single volume group", strings.Fields(line)...)
	}
	s.run("export", "--from", "/dev/vg0/snap", "vg0/a")
	s.run("diff", "vg0/snap", "/dev/vg0/a")
}

// TestImportIntoAPart: what a pool is made of is not overwritten by an import.
func TestImportIntoAPart(t *testing.T) {
	s, data := filled(t)
	full := s.run("export", "vg0/a")
	s.run("lvcreate", "-L8m", "-T", "vg0/p")
	for _, part := range []string{"p_tdata", "p_tmeta", "lvol0_pmspare"} {
		if _, err := s.try([]byte(full), "import", "--force", "vg0/"+part); err == nil || !strings.Contains(err.Error(), "is a part of another volume") {
			t.Errorf("%s: %v", part, err)
		}
		if _, err := s.try(data[:512], "import", "-y", "--raw", "vg0/"+part); err == nil || !strings.Contains(err.Error(), "is a part of another volume") {
			t.Errorf("%s, raw: %v", part, err)
		}
	}
	s.run("lvcreate", "-V8m", "--thinpool", "p", "-n", "thin", "vg0")
	s.run("export", "--raw", "vg0/p_tmeta") // for thin_check
}

// TestCloneGoesWhereItIsTold: a copy is made in the group of its origin, or not at all.
func TestCloneGoesWhereItIsTold(t *testing.T) {
	s, _ := filled(t)
	s.run("lvcreate", "-L16m", "-T", "vg0/p")
	s.run("lvcreate", "-V8m", "-T", "-n", "thin", "vg0/p")
	for _, of := range []string{"vg0/a", "vg0/thin"} {
		for to, want := range map[string]string{"vg1/b": "single volume group", "": "VG/LV", "b/": "VG/LV", "/": "VG/LV", "/dev/vg0/": "VG/LV"} {
			s.fails(want, "clone", of, to)
		}
	}
	s.run("clone", "vg0/a", "vg0/b")
	s.run("clone", "vg0/thin", "/dev/vg0/c")
	s.run("clone", "vg0/a", "d")
	if got := strings.Join(strings.Fields(s.run("lvs", "--noheadings", "-o", "lv_name")), " "); got != "a b c d p thin" {
		t.Errorf("the group has %s", got)
	}
}

// TestExportOfALostSnapshot: a snapshot that has lost what its origin held is not exported, nor cloned, as if it
// held zeroes where the origin has holes now.
func TestExportOfALostSnapshot(t *testing.T) {
	s, _ := filled(t)
	s.run("lvcreate", "-s", "-L4m", "-n", "snap", "vg0/a")
	g, err := lvm.Open(s.env.Config, s.disks, "vg0")
	if err != nil {
		t.Fatal(err)
	}
	v, err := g.Volume("a")
	if err == nil {
		err = errors.Join(v.Discard(0, v.Info().Size), v.Close())
	}
	if err := errors.Join(err, g.Close()); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"export vg0/snap", "export --raw vg0/snap", "export --from vg0/a vg0/snap", "clone vg0/snap b"} {
		if out, err := s.try(nil, strings.Fields(line)...); !errors.Is(err, snap.ErrInvalid) {
			t.Errorf("%s: %d bytes, %v", line, len(out), err)
		}
	}
}

// A volume goes to an object and comes back; one that is damaged there is found, and an export
// that cannot be is no object.
func TestTransferByObject(t *testing.T) {
	store := s3mem.New()
	srv := httptest.NewServer(gofakes3.New(store).Server())
	defer srv.Close()
	for k, v := range map[string]string{"AWS_ENDPOINT_URL_S3": srv.URL, "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "us-east-1"} {
		t.Setenv(k, v)
	}
	if err := store.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	if _, err := s.try(data, "import", "-y", "--raw", "vg0/a"); err != nil {
		t.Fatal(err)
	}
	s.run("export", "--output", "s3://backups/vg0/a", "vg0/a")
	s.run("import", "--input", "s3://backups/vg0/a", "vg0/back")
	if s.run("export", "--raw", "vg0/back") != s.run("export", "--raw", "vg0/a") {
		t.Error("what has come back differs")
	}
	text := s.run("export", "vg0/a")
	bad := []byte(text)
	bad[len(bad)/2] ^= 1
	w, err := objects.Create(t.Context(), "s3://backups/bad")
	if err == nil {
		_, err = w.Write(bad)
		err = w.End(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.fails("checksum", "import", "--input", "s3://backups/bad", "vg0/third")
	s.fails("does not exist", "import", "--input", "s3://backups/none", "vg0/fourth")
	s.fails("--resume", "export", "--resume", "99999999", "--output", "s3://backups/never", "vg0/a")
	if _, err := store.HeadObject("backups", "never"); err == nil {
		t.Error("an export that failed is an object")
	}
}

// cutStore answers a GET of an object with the first half of what it has announced.
func cutStore(t *testing.T, body []byte) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Length", strconv.Itoa(len(body)))
		h.Set("ETag", `"1"`)
		h.Set("Last-Modified", "Mon, 02 Nov 2026 15:04:05 GMT")
		if r.Method == http.MethodGet {
			w.Write(body[:len(body)/2])
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(srv.Close)
	for k, v := range map[string]string{"AWS_ENDPOINT_URL_S3": srv.URL, "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "us-east-1"} {
		t.Setenv(k, v)
	}
}

// An import of an object whose body breaks off fails, of plain content too, and says which one it was.
func TestObjectBreaksOff(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	cutStore(t, bytes.Repeat([]byte{5}, 4<<20))
	s.fails("s3://backups/a: ", "import", "-y", "--raw", "--input", "s3://backups/a", "vg0/a")
	text := s.run("export", "vg0/a")
	cutStore(t, []byte(text))
	s.fails("s3://backups/b: ", "import", "--input", "s3://backups/b", "vg0/b")
}

// A stream that is damaged behind its header is named.
func TestDamagedInputIsNamed(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	if _, err := s.try(bytes.Repeat([]byte("0123456789abcdef"), 1<<16), "import", "-y", "--raw", "vg0/a"); err != nil {
		t.Fatal(err)
	}
	bad := []byte(s.run("export", "vg0/a"))
	bad[len(bad)/2] ^= 1
	name := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(name, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails(name, "import", "--input", name, "vg0/b")
	if _, err := s.try(bad, "import", "vg0/c"); err == nil || !strings.Contains(err.Error(), "standard input") {
		t.Error(err)
	}

	// A target has it as its standard input, and its errors come back as text.
	here := s.env
	s.env = Env{Remote: func(ctx context.Context, args []string, in io.Reader, out, stderr io.Writer) (bool, error) {
		return true, errors.New(Run(ctx, here, args, in, out, stderr).Error())
	}}
	s.fails("importing "+name+": ", "import", "--input", name, "vg0/d")
	s.fails("standard input: the input is empty", "import", "--input", "-", "vg0/d")
	if err := os.WriteFile(name, []byte("no stream at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails(name+": not a volume stream", "import", "--input", name, "vg0/d")
}

// halfway calls f when so much of a stream has been read.
type halfway struct {
	io.Reader
	left int
	f    func()
}

func (h *halfway) Read(p []byte) (int, error) {
	if h.left <= 0 && h.f != nil {
		h.f()
		h.f = nil
	}
	n, err := h.Reader.Read(p[:min(len(p), 4096)])
	h.left -= n
	return n, err
}

// TestResume: a volume is marked before the first byte of an import reaches it,
// and goes on only from what is known to be there.
func TestResume(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	data := make([]byte, 8<<20)
	for i := range data {
		data[i] = byte(i>>12) | 1
	}
	if _, err := s.try(data, "import", "-y", "--raw", "vg0/a"); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(s.run("lvs", "--noheadings", "-o", "lv_uuid", "vg0/a"))
	tag := func() string { return strings.TrimSpace(s.run("lvs", "--noheadings", "-o", "lv_tags", "vg0/copy")) }
	full := s.run("export", "vg0/a")
	imp := func(r io.Reader) error {
		return Run(context.Background(), s.env, []string{"import", "vg0/copy", "--devices", strings.Join(s.disks, ",")}, r, io.Discard, io.Discard)
	}
	during := ""
	err := imp(&halfway{strings.NewReader(full[:len(full)/2]), 2 << 20, func() { during = tag() }})
	if want := "importing." + id + "..0"; during != want {
		t.Errorf("while it is imported it has the tag %q, not %q", during, want)
	}
	_, at, ok := strings.Cut(tag(), "..")
	if done, perr := strconv.Atoi(at); err == nil || !strings.Contains(err.Error(), "export --resume "+at) || !ok || perr != nil || done < 2<<20 || done > 4<<20 {
		t.Fatalf("%v; tag %q", err, tag())
	}
	if err := imp(strings.NewReader(s.run("export", "--resume", "6291456", "vg0/a"))); err == nil || !strings.Contains(err.Error(), "--resume "+at) {
		t.Errorf("a gap: %v", err)
	}
	rest := s.run("export", "--resume", at, "vg0/a")
	if len(rest) > len(full)*3/4 {
		t.Errorf("the rest has %d of %d bytes", len(rest), len(full))
	}
	if err := imp(strings.NewReader(rest)); err != nil {
		t.Fatal(err)
	}
	if tag() != "imported."+id || s.run("export", "--raw", "vg0/copy") != string(data) {
		t.Errorf("tag %q, or the content differs", tag())
	}
	want := "none does not exist, but the stream begins at offset " + at + ": import the full volume first"
	if _, err := s.try([]byte(rest), "import", "vg0/none"); err == nil || err.Error() != want {
		t.Errorf("the rest for nobody: %v, want %s", err, want)
	}
	s.fails("has 8388608 bytes", "export", "--resume", "8388609", "vg0/a")
	s.fails("has 8388608 bytes", "export", "--resume", "-1", "--raw", "vg0/a")
	s.run("lvcreate", "-L4m", "-n", "small", "vg0")
	if _, err := s.try([]byte(full), "import", "-y", "vg0/small"); err == nil || !strings.Contains(err.Error(), "extend it first") {
		t.Error(err)
	}
	if got := strings.TrimSpace(s.run("lvs", "--noheadings", "-o", "lv_tags", "vg0/small")); got != "" {
		t.Errorf("a volume that was not touched has the tag %q", got)
	}
}

// TestLive runs commands inside a target: on the groups of its manager, while
// a volume is open.
// A disk that is taken out of a group which a target serves is the target's no more: it can be used otherwise, and
// come back. One that the configuration names, and that is in no group yet, can be added.
func TestLiveGivesDisksBack(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L20m", "-n", "lin", "vg0")
	c := filepath.Join(filepath.Dir(s.disks[0]), "c.img")
	if err := os.WriteFile(c, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(c, 64<<20); err != nil {
		t.Fatal(err)
	}
	local := *s
	m := &lvm.Manager{Config: s.env.Config}
	s.env.Manager = m
	dev, err := m.Open(lvm.Spec{VG: "vg0", LV: "lin", Devices: append(slices.Clone(s.disks), c)})
	if err != nil {
		t.Fatal(err)
	}
	s.run("vgextend", "vg0", c)
	s.run("vgreduce", "vg0", c)
	s.run("pvmove", s.disks[0])
	s.run("vgreduce", "vg0", s.disks[0])
	local.run("pvremove", s.disks[0])
	s.run("vgextend", "vg0", s.disks[0])
	local.fails("in use", "pvremove", s.disks[0])
	if _, err := dev.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
	if err := errors.Join(dev.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	local.run("pvremove", c)
}

// Who renames a volume that is served is told that the configuration has its old name.
func TestRenameOfServed(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L4m", "-n", "served", "vg0")
	s.run("lvcreate", "-L4m", "-n", "idle", "vg0")
	m := &lvm.Manager{Config: s.env.Config}
	s.env.Manager = m
	dev, err := m.Open(lvm.Spec{VG: "vg0", LV: "served", Devices: s.disks})
	if err != nil {
		t.Fatal(err)
	}
	for old, want := range map[string]string{"served": "write lv: served2 before its next start", "idle": ""} {
		var stderr bytes.Buffer
		err := Run(t.Context(), s.env, []string{"lvrename", "vg0", old, old + "2"}, nil, io.Discard, &stderr)
		if err != nil || !strings.Contains(stderr.String(), want) || want == "" && stderr.Len() > 0 {
			t.Errorf("%s: %v, %q, want %q", old, err, &stderr, want)
		}
	}
	if err := errors.Join(dev.Close(), m.Close()); err != nil {
		t.Error(err)
	}
}

func TestLive(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L20m", "-n", "lin", "vg0")
	m := &lvm.Manager{Config: s.env.Config}
	dev, err := m.Open(lvm.Spec{VG: "vg0", LV: "lin", Devices: s.disks})
	if err != nil {
		t.Fatal(err)
	}
	s.fails("", "lvextend", "-L40m", "vg0/lin") // the files are locked
	s.env.Manager = m
	s.run("lvextend", "-L40m", "vg0/lin")
	if dev.Info().Size != 40<<20 {
		t.Error("the open volume has not grown")
	}
	s.run("lvcreate", "-s", "-L8m", "-n", "snap", "vg0/lin")
	if _, err := dev.WriteAt(make([]byte, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(s.run("lvs", "--noheadings", "-o", "lv_name,lv_attr,data_percent")); strings.Join(got, " ") != "lin owi-aos--- snap swi-a-s--- 12.65" {
		t.Errorf("%q", got)
	}
	live := "lv_active_locally,lv_device_open,lv_suspended,lv_live_table,lv_snapshot_invalid,lv_merge_failed,lv_check_needed,lv_health_status,lv_kernel_major"
	if got, want := s.run("lvs", "--noheadings", "--separator", "|", "-o", live, "vg0/snap"), "  active locally|||live table present|||unknown||-1\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := s.run("lvs", "--noheadings", "--separator", "|", "-o", live, "vg0/lin"), "  active locally|open||live table present|unknown|unknown|unknown||-1\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.says("  LV snapshot status     active destination for lin\n  LV Status              available\n  # open                 0\n", "lvdisplay", "vg0/snap")
	s.says("  Allocated to snapshot  12.65%\n", "lvdisplay", "vg0/snap")
	s.says("  Open LV               1\n", "vgdisplay")
	if got, want := s.run("lvdisplay", "-c"), "  /dev/vg0/lin:vg0:3:1:-1:1:81920:10:-1:0:-1:-1:-1\n  /dev/vg0/snap:vg0:3:1:-1:0:16384:2:-1:0:-1:-1:-1\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.says(":-1:0:2:1:-1:0:2:2:", "vgdisplay", "-c")
	for selection, want := range map[string]string{
		"data_percent>12.6": "snap", "data_percent>=12.5%&&data_percent<12.7": "snap", "data_percent>13": "", "data_percent!=50": "snap", "snap_percent<50": "snap", "copy_percent<=100": "",
		"lv_device_open=open": "lin", "lv_device_open=0": "snap", "lv_active_locally=yes": "lin snap", "lv_snapshot_invalid=invalid": "", "lv_snapshot_invalid=0": "snap", "lv_snapshot_invalid=unknown": "lin",
		"lv_permissions=rw": "lin snap", "lv_time>='1 hour ago'": "lin snap", "lv_time before yesterday": "",
	} {
		if got := strings.Join(strings.Fields(s.run("lvs", "--noheadings", "-o", "lv_name", "-S", selection)), " "); got != want {
			t.Errorf("-S %q: %q, want %q", selection, got, want)
		}
	}
	s.fails("served", "lvremove", "-y", "vg0/lin")
	s.fails("is served", "vgremove", "-y", "vg0")
	s.run("lvremove", "vg0/snap")
	s.fails("not open in this target", "lvcreate", "-L4m", "other")
	// A group that the target does not serve, on a device of its own.
	other := filepath.Join(t.TempDir(), "c.img")
	if err := errors.Join(os.WriteFile(other, nil, 0o600), os.Truncate(other, 64<<20)); err != nil {
		t.Fatal(err)
	}
	s.fails("already exists", "vgcreate", "vg0", other)
	s.fails("which is served", "vgcreate", "vg1", s.disks[0])
	s.says("successfully created", "vgcreate", "vg1", other)
	if got := strings.Fields(s.run("vgs", "--devices", other, "--noheadings", "-o", "vg_name,lv_count")); strings.Join(got, " ") != "vg0 1 vg1 0" {
		t.Errorf("%q", got)
	}
	// A pool that nobody uses shows no use, as one that is not active in lvm2.
	s.run("lvcreate", "-T", "-L20m", "vg0/pool")
	if got := strings.Fields(s.run("lvs", "--noheadings", "-o", "lv_attr,data_percent", "vg0/pool")); strings.Join(got, " ") != "twi---tz--" {
		t.Errorf("%q", got)
	}
	s.fails("is served", "vgrename", "vg0", "vg2")
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	s.says("removed", "vgremove", "-y", "vg0")
	if len(m.Groups()) != 0 {
		t.Errorf("%v", m.Groups())
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRenamedWhileOpened: who opens a volume while its group gets another name does not keep the group open
// under the old one.
func TestRenamedWhileOpened(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L20m", "-n", "a", "vg0")
	var changing func()
	cfg := s.env.Config
	cfg.Open = func(path string) (blockdev.Device, error) {
		d, err := open.Open(open.Spec{Path: path})
		return &firstWrite{d, func() {
			if f := changing; f != nil {
				changing = nil
				f()
			}
		}}, err
	}
	m := &lvm.Manager{Config: cfg}
	spec := lvm.Spec{VG: "vg0", LV: "a", Devices: s.disks}
	dev, err := m.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	s.env.Manager = m
	opened := make(chan error)
	changing = func() {
		go func() {
			dev, err := m.Open(spec)
			if err == nil {
				defer dev.Close()
			}
			opened <- err
		}()
		await.True(t, "the other one waits for the change", func() bool {
			return await.Within((*namelock.Turns[string]).BeginWithin, (*lvm.Group).Metadata) > 0
		})
	}
	s.says("successfully renamed", "vgrename", "vg0", "vg1")
	if err := <-opened; !errors.Is(err, vg.ErrNotFound) {
		t.Errorf("opened: %v", err)
	}
	if got := m.Groups(); len(got) != 0 {
		t.Errorf("groups %q are open", got)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// TestRunIsForgotten: a target that has run a command holds nothing of it.
func TestRunIsForgotten(t *testing.T) {
	s := newShell(t)
	s.group()
	run := func(line string) weak.Pointer[bytes.Reader] {
		in := bytes.NewReader(make([]byte, 4096))
		if err := Run(t.Context(), s.env, append(strings.Fields(line), "--devices", s.disks[0]+","+s.disks[1]), in, io.Discard, io.Discard); err != nil {
			t.Fatal(err)
		}
		return weak.Make(in)
	}
	for _, line := range []string{"vgs", "lvcreate -L4m -n a vg0", "pvmove " + s.disks[0] + " " + s.disks[1], "export --raw vg0/a", "import -y --raw vg0/a"} {
		in := run(line)
		await.True(t, line+" is forgotten", func() bool { runtime.GC(); return in.Value() == nil })
	}
}

// TestRemote: what a command line looks like to a target.
func TestRemote(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("LVM_DEVICES", "a.img,/b.img")
	for _, n := range []string{"a.img", "vg0"} {
		if err := os.WriteFile(n, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	env := Env{Remote: func(_ context.Context, args []string, _ io.Reader, _, _ io.Writer) (bool, error) {
		got = args
		return true, nil
	}}
	for line, want := range map[string]string{
		"vgextend vg0 a.img":              "vgextend vg0 DIR/a.img",
		"pvmove a.img:0-9 /b.img":         "pvmove DIR/a.img:0-9 /b.img",
		"lvcreate -L 4m -n x vg0 a.img:3": "lvcreate --name=x --size=4m vg0 DIR/a.img:3",
		"lvs vg0":                         "lvs vg0",
		"vgcfgbackup -f backup vg0":       "vgcfgbackup --file=DIR/backup vg0",
	} {
		if err := Run(context.Background(), env, strings.Fields(line), nil, io.Discard, io.Discard); err != nil {
			t.Fatal(err)
		}
		want += " --devices=DIR/a.img --devices=/b.img"
		if is := strings.ReplaceAll(strings.Join(got, " "), dir, "DIR"); is != want {
			t.Errorf("%s: %s, want %s", line, is, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]uint64{"20": 20 << 20, "20m": 20 << 20, "20M": 20 << 20, "1.5g": 3 << 29, "512b": 512, "8s": 4096, "1k": 1024, "2T": 2 << 40, "20MB": 20 << 20, "+4k": 4096, ".5g": 1 << 29,
		"20MiB": 20 << 20, "1GiB": 1 << 30, "1.5gib": 3 << 29, "2Ti": 2 << 40, "-4KiB": 4096} {
		if a, err := parseSize(in); err != nil || a.bytes != want {
			t.Errorf("%q: %d, %v; want %d", in, a.bytes, err, want)
		}
	}
	for _, in := range []string{"", "m", "x", "1x", "-", "1e3", "99999e", "0", "1/2", "--4", "0x10", "1_0", "1iB", "1i", "GiB", "1 GiB", "1biB", "1siB", "1GiBs"} {
		if a, err := parseSize(in); err == nil {
			t.Errorf("%q accepted as %d", in, a.bytes)
		}
	}
	for _, in := range []string{"", "0", "x", "50%", "50%NONE", "5000000000", "-"} {
		if _, err := parseExtents(in); err == nil {
			t.Errorf("extents %q accepted", in)
		}
	}
}

func TestDisplay(t *testing.T) {
	for _, c := range []struct {
		units string
		n     uint64
		want  string
	}{
		{"r", 0, "0 "}, {"h", 20 << 20, "20.00m"}, {"r", 252<<20 - 1, "<252.00m"}, {"r", 252<<20 + 1, "252.00m"},
		{"H", 20 << 20, "20.97M"}, {"b", 20971520, "20971520B"}, {"s", 20971520, "40960S"}, {"k", 20 << 20, "20480.00k"},
		{"G", 20 << 20, "0.02G"}, {"m", 1 << 40, "1048576.00m"}, {"4m", 40 << 20, "10.00U"}, {"t", 1 << 40, "1.00t"},
	} {
		u, err := parseUnits(c.units)
		if err != nil {
			t.Fatal(err)
		}
		if got := u.format(c.n, true); got != c.want {
			t.Errorf("%s %d: %q, want %q", c.units, c.n, got, c.want)
		}
	}
}

// TestImportAfterWrite: an increment is not imported over a volume that has been
// written since it got the content which the increment is relative to.
func TestImportAfterWrite(t *testing.T) {
	for _, how := range []string{"not at all", "write", "lease", "zeroes", "import --raw", "merge"} {
		s := newShell(t)
		s.group()
		s.run("lvcreate", "-L64m", "-T", "vg0/p")
		s.run("lvcreate", "-V8m", "-T", "-n", "a", "vg0/p")
		s.run("lvcreate", "-s", "-n", "before", "vg0/a")
		s.run("lvcreate", "-L8m", "-n", "copy", "vg0")
		s.run("lvcreate", "-L16m", "-s", "-n", "old", "vg0/copy")
		if _, err := s.try([]byte(s.run("export", "vg0/before")), "import", "-y", "vg0/copy"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.try(bytes.Repeat([]byte{1}, 65536), "import", "-y", "--raw", "vg0/a"); err != nil {
			t.Fatal(err)
		}
		open := func(f func(v *lvm.Volume) error) {
			t.Helper()
			g, err := lvm.Open(s.env.Config, s.disks, "vg0")
			if err != nil {
				t.Fatal(err)
			}
			v, err := g.Volume("copy")
			if err == nil {
				err = errors.Join(f(v), v.Close())
			}
			if err := errors.Join(err, g.Close()); err != nil {
				t.Fatal(err)
			}
		}
		switch how {
		case "not at all":
			open(func(v *lvm.Volume) error { _, err := v.ReadAt(make([]byte, 512), 0); return err })
		case "write":
			open(func(v *lvm.Volume) error { _, err := v.WriteAt(make([]byte, 512), 4<<20); return err })
		case "lease":
			open(func(v *lvm.Volume) error {
				var l blockdev.Lease
				if err := v.LeaseWrite(&l, 4<<20, 512, blockdev.NoWait); !errors.Is(err, blockdev.ErrWouldBlock) {
					return fmt.Errorf("a lease that must not wait: %v", err)
				}
				defer l.Release()
				return v.LeaseWrite(&l, 4<<20, 512, blockdev.Wait)
			})
		case "zeroes":
			open(func(v *lvm.Volume) error { return v.WriteZeroes(4<<20, 512, true) })
		case "import --raw":
			if _, err := s.try(make([]byte, 512), "import", "-y", "--raw", "vg0/copy"); err != nil {
				t.Fatal(err)
			}
		case "merge":
			s.run("lvconvert", "--merge", "vg0/old")
		}
		_, err := s.try([]byte(s.run("export", "--from", "vg0/before", "vg0/a")), "import", "vg0/copy")
		if how == "not at all" {
			if err != nil {
				t.Errorf("not written: %v", err)
			}
		} else if err == nil || !strings.Contains(err.Error(), "was written since") {
			t.Errorf("%s: %v", how, err)
		}
	}
}

// TestPercentInStripes: a percentage of what is free is made down to whole stripes, as lvm2 does, where a size is
// made up to them; a volume that is made larger goes on with those that it has.
func TestPercentInStripes(t *testing.T) {
	s := newShell(t)
	s.group()
	extents := func(lv string) int {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimSpace(s.run("lvs", "--noheadings", "-o", "seg_size_pe", "vg0/"+lv)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	free := func() int {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimSpace(s.run("vgs", "--noheadings", "-o", "vg_free_count", "vg0")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	s.says("created", "lvcreate", "-l", "3", "-i2", "-n", "up", "vg0")
	if n := extents("up"); n != 4 {
		t.Errorf("3 extents in two stripes are %d", n)
	}
	s.says("created", "lvcreate", "-l", "1", "-n", "odd", "vg0", s.disks[0])
	left := free()
	if left%2 != 1 {
		t.Fatalf("%d extents are free", left)
	}
	s.says("created", "lvcreate", "-l", "100%FREE", "-i2", "-n", "all", "vg0")
	if n := extents("all"); n != left-1 {
		t.Errorf("of %d free extents %d have become two stripes", left, n)
	}
	s.says("removed", "lvremove", "-y", "vg0/all")
	s.says("created", "lvcreate", "-l", "4", "-i2", "-n", "half", "vg0")
	s.says("successfully resized", "lvextend", "-l", "+100%FREE", "vg0/half")
	if n := extents("half"); n != left-1 {
		t.Errorf("the volume of two stripes has grown to %d extents of %d", n, left)
	}
}
