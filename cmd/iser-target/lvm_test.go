package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/loopback"
	"softiser/internal/terminal/ptytest"
	"softiser/target/admin"
)

// TestLVMOnARunningTarget makes a logical volume at the first start, and
// changes it through the admin socket while it is served.
func TestLVMOnARunningTarget(t *testing.T) {
	dir := t.TempDir()
	socket, a, b := filepath.Join(dir, "s"), filepath.Join(dir, "a.img"), filepath.Join(dir, "b.img")
	file := filepath.Join(dir, "c.yaml")
	err := os.WriteFile(file, fmt.Appendf(nil, `portals:
  - listen: %s
admin: {socket: %s}
volumes:
  - {name: data, type: lvm, vg: vgtest%d, lv: data, devices: [%s, %s], size: 16MiB, create: true}
targets:
  - iqn: iqn.2026-11.softiser:lvm
    luns: [{lun: 0, volume: data}]
`, loopback.FreeAddr(t), socket, os.Getpid(), a, b), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("vgtest%d", os.Getpid())
	t.Cleanup(func() { // root's own archive and backup
		files, _ := filepath.Glob("/etc/lvm/archive/" + group + "_*")
		for _, f := range append(files, "/etc/lvm/backup/"+group) {
			os.Remove(f)
		}
	})
	_, stop := start(t, "--config", file, "--log-level", "error")
	lvm := func(want string, args ...string) {
		t.Helper()
		code, out := command(t, append([]string{"lvm", "--socket", socket}, args...)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%v: code %d, %q, want %q", args, code, out, want)
		}
	}
	lvm("-wi-ao----", "lvs")
	lvm(`Logical volume "snap" created.`, "lvcreate", "-s", "-L", "8m", "-n", "snap", group+"/data")
	lvm("Moved: 100.00%", "pvmove", a)
	lvm("0 ranges", "diff", group+"/snap", group+"/data")
	for word, want := range map[string]string{"": group + "\n" + group + "/data\n" + group + "/snap\n:4\n", group + "/s": group + "/snap\n:4\n"} {
		if _, out := command(t, "__completeNoDesc", "lvm", "--socket", socket, "lvremove", word); !strings.HasPrefix(out, want) {
			t.Errorf("completion of %q: %q, want %q", word, out, want)
		}
	}
	out := filepath.Join(dir, "stream")
	lvm("", "export", "--output", out, group+"/snap")
	lvm("imported", "import", "--input", out, group+"/copy")
	if code, msg := command(t, "lvm", "--socket", socket, "lvremove", "-y", group+"/data"); code == 0 || !strings.Contains(msg, "served") {
		t.Errorf("removing a served volume: code %d, %s", code, msg)
	}
	for want, args := range map[int][]string{2: {"nonsense"}, 3: {"lvextend", "-L", "4x", group + "/data"}, 5: {"lvextend", "-L", "1t", group + "/data"}} {
		if code, msg := command(t, append([]string{"lvm", "--socket", socket}, args...)...); code != want {
			t.Errorf("%v: code %d, not lvm2's %d: %s", args, code, want, msg)
		}
	}
	if typed, ok := atTerminal(t); ok {
		reduce := []string{"lvm", "--socket", socket, "lvreduce", "-L", "8m", group + "/copy"}
		typed("n\n")
		if code, msg := command(t, reduce...); code != 5 || !strings.Contains(msg, "really reduce it? [y/n]: ") || !strings.Contains(msg, "not agreed to") {
			t.Errorf("no: code %d, %s", code, msg)
		}
		lvm("16.00m", "lvs", group+"/copy")
		typed("y\n")
		if code, msg := command(t, reduce...); code != 0 {
			t.Errorf("yes: code %d, %s", code, msg)
		}
		lvm("8.00m", "lvs", group+"/copy")
		lvm("resized", "lvextend", "-L", "16m", group+"/copy")
	}
	lvm("removed", "lvremove", group+"/snap")
	lvm("successfully resized", "lvextend", "-L", "24m", group+"/data")
	if code, msg := command(t, "lvm", "--socket", filepath.Join(dir, "none"), "--devices", a+","+b, "lvextend", "-L", "32m", group+"/data"); code == 0 || !strings.Contains(msg, "--socket") {
		t.Errorf("locked files: code %d, %s", code, msg)
	}
	if code, msg := command(t, "resize", "--socket", socket, "data", "1GiB"); code != exitUsage || !strings.Contains(msg, "lvm lvextend") {
		t.Errorf("resize of a logical volume: code %d, %s", code, msg)
	}
	if code := stop(); code != 0 {
		t.Errorf("serve ended with %d", code)
	}
	if code, msg := command(t, "lvm", "--socket", socket, "--devices", a+","+b, "lvs", "--noheadings", "-o", "lv_name,lv_size"); code != 0 || strings.Join(strings.Fields(msg), " ") != "copy 16.00m data 24.00m" {
		t.Errorf("after the target has ended: code %d, %q", code, msg)
	}
}

// A configuration names devices from its own folder on, LVM_DEVICES by any path. A report has each volume once,
// as the target knows it.
func TestLVMByOtherPaths(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	group := fmt.Sprintf("vgpaths%d", os.Getpid())
	t.Cleanup(func() { // root's own archive and backup
		files, _ := filepath.Glob("/etc/lvm/archive/" + group + "_*")
		for _, f := range append(files, "/etc/lvm/backup/"+group) {
			os.Remove(f)
		}
	})
	err := os.WriteFile("c.yaml", fmt.Appendf(nil, `portals:
  - listen: %s
admin: {socket: s}
volumes:
  - {name: data, type: lvm, vg: %s, lv: data, devices: [a.img], size: 16MiB, create: true}
targets:
  - iqn: iqn.2026-11.softiser:lvm
    luns: [{lun: 0, volume: data}]
`, loopback.FreeAddr(t), group), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	start(t, "--config", "c.yaml", "--log-level", "error")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(dir, "a.img"), link); err != nil {
		t.Fatal(err)
	}
	for _, devices := range []string{"a.img", filepath.Join(dir, "a.img"), link} {
		t.Setenv("LVM_DEVICES", devices)
		for _, args := range [][]string{{"lvs"}, {"lvs", group}} {
			code, out := command(t, append(append([]string{"lvm", "--socket", "s"}, args...), "--noheadings", "-o", "lv_name,lv_active")...)
			if got := strings.Join(strings.Fields(out), " "); code != 0 || got != "data active" {
				t.Errorf("%v, LVM_DEVICES=%s: code %d, %q", args, devices, code, got)
			}
		}
	}
}

// atTerminal makes standard input a terminal until the test ends, if there can be
// one, and returns a function that types.
func atTerminal(t *testing.T) (typed func(string), ok bool) {
	t.Helper()
	tty, person, err := ptytest.Open(t)
	if err != nil {
		t.Log("no pseudo-terminals here, questions are not tested: ", err)
		return nil, false
	}
	stdin := os.Stdin
	os.Stdin = tty
	t.Cleanup(func() { os.Stdin = stdin })
	return func(s string) {
		if _, err := person.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}, true
}

func TestConcerns(t *testing.T) {
	gs := []admin.VolumeGroup{{Name: "vg0", Devices: []string{"/a/disk"}}}
	for line, want := range map[string]bool{
		"lvs": true, "lvs vg0": true, "lvs vg1": false, "lvextend --size=1g vg0/x": true, "lvextend --size=1g /dev/vg0/x": true,
		"pvmove /a/disk:0-9": true, "pvmove /b/disk": false, "lvs --devices=/b/disk": false, "lvs --devices=/b/disk --devices=/a/disk": true, "vgcreate vg1 /b/disk": false,
	} {
		if got := concerns(gs, strings.Fields(line)); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
	if concerns(nil, []string{"lvs"}) {
		t.Error("a target without groups takes reports")
	}
}
