package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"softiser/blockdev/file"
	"softiser/config"
	"softiser/internal/loopback"
)

// What serve would refuse check refuses, and it creates nothing.
func TestCheckAppliesServesRules(t *testing.T) {
	root := os.Geteuid() == 0
	for _, c := range []struct {
		name, volume string
		make         func(dir string) error
		want         string // "": nothing is wrong
		remark       string
		skip         bool
	}{
		{name: "to be created", volume: "path: d.img, size: 1MiB, create: true"},
		{name: "missing", volume: "path: d.img, size: 1MiB", want: "no such file or directory, and it may not be created (create: true"},
		{name: "missing folder", volume: "path: no/d.img, size: 1MiB, create: true", want: "no/d.img cannot be created"},
		{name: "empty", volume: "path: d.img", make: content("d.img", 0), want: "the file is empty"},
		{name: "less than a block", volume: "path: d.img", make: content("d.img", 100), want: "d.img: the file has 100 bytes"},
		{name: "empty with a size", volume: "path: d.img, size: 1MiB", make: content("d.img", 0), remark: "grown to the configured 1MiB"},
		{name: "smaller", volume: "path: d.img, size: 1MiB", make: content("d.img", 4096), remark: "had 4KiB; it has been grown"},
		{name: "smaller, read-only", volume: "path: d.img, size: 1MiB, read_only: true", make: content("d.img", 4096), want: "less than the configured size"},
		{name: "larger", volume: "path: d.img, size: 1MiB", make: content("d.img", 2<<20), remark: "has 2MiB, more than the configured 1MiB; it is served whole"},
		{name: "odd bytes", volume: "path: d.img", make: content("d.img", 4096+7), remark: "last 7 bytes"},
		{name: "no file", volume: "path: d.img", make: func(dir string) error { return os.Mkdir(filepath.Join(dir, "d.img"), 0o700) }, want: "d.img"},
		{name: "write-protected", volume: "path: d.img", make: func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "d.img"), make([]byte, 4096), 0o400)
		}, want: "permission denied", skip: root},
		{name: "no room", volume: "path: d.img, size: 4EiB, create: true, preallocate: true", want: "d.img", skip: true},
		{name: "a logical volume that is missing", volume: "vg: v, lv: x, devices: [d.img]", make: content("d.img", 1<<20), want: `volume group "v"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.skip {
				t.Skip("root may write everything")
			}
			dir := t.TempDir()
			if c.make != nil {
				if err := c.make(dir); err != nil {
					t.Fatal(err)
				}
			}
			typ := "file"
			if strings.HasPrefix(c.volume, "vg:") {
				typ = "lvm"
			}
			f, _ := configFile(t, dir, fmt.Sprintf(`
portals: [{listen: "ADDR"}]
volumes: [{name: d, type: %s, %s}, {name: ram, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}, {lun: 1, volume: ram}]}]
`, typ, c.volume))
			before := listing(t, dir)
			code, out := command(t, "check", "--config", f)
			switch {
			case c.want == "" && (code != 0 || !strings.Contains(out, c.remark)):
				t.Errorf("check: exit %d, want 0 and %q\n%s", code, c.remark, out)
			case c.want != "" && (code != exitDegraded || !strings.Contains(out, c.want)):
				t.Errorf("check: exit %d, want %d and %q\n%s", code, exitDegraded, c.want, out)
			}
			if after := listing(t, dir); after != before {
				t.Errorf("check has changed\n%s to\n%s", before, after)
			}
			// And serve agrees.
			o, stop := start(t, "--config", f, "--log-level", "warn")
			if served := !strings.Contains(o.String(), "NOT SERVED"); served != (c.want == "") {
				t.Errorf("serve differs:\n%s", o)
			}
			stop()
		})
	}
}

// Volumes that no LUN names are nothing to serve, be they whole or not.
func TestCheckCountsWhatIsServed(t *testing.T) {
	for _, c := range []struct {
		luns, want string
		code       int
	}{
		{"{lun: 0, volume: gone}", "no volume can be opened; serve would not start", exitDegraded},
		{"{lun: 0, volume: gone}, {lun: 1, volume: ram}", "1 of 2 volumes cannot be opened; serve would start without them", exitDegraded},
		{"{lun: 1, volume: ram}", "volume gone: no LUN and no namespace names it", 0},
	} {
		f, _ := configFile(t, t.TempDir(), `
portals: [{listen: "ADDR"}]
volumes: [{name: gone, type: file, path: gone.img}, {name: ram, type: memory, size: 1MiB}, {name: spare, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [`+c.luns+`]}]
`)
		if code, out := command(t, "check", "--config", f); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit %d\n%s", c.luns, code, out)
		}
	}
}

// Paths that lead to one file are one, as for serve; volumes that are only read may share it.
func TestCheckFindsOneFileTwice(t *testing.T) {
	for readOnly, want := range map[bool]int{false: exitDegraded, true: 0} {
		dir := t.TempDir()
		if err := errors.Join(content("a.img", 1<<20)(dir), os.Symlink("a.img", filepath.Join(dir, "b.img"))); err != nil {
			t.Fatal(err)
		}
		f, _ := configFile(t, dir, fmt.Sprintf(`
portals: [{listen: "ADDR"}]
volumes: [{name: a, type: file, path: a.img, read_only: %[1]t}, {name: b, type: file, path: b.img, read_only: %[1]t}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: a}, {lun: 1, volume: b}]}]
`, readOnly))
		if code, out := command(t, "check", "--config", f); code != want || want != 0 && !strings.Contains(out, "volume b: it has a file in common with volume a") || strings.Contains(out, "all is well") {
			t.Errorf("read-only %t: exit %d\n%s", readOnly, code, out)
		}
		o, stop := start(t, "--config", f, "--log-level", "warn")
		if served := !strings.Contains(o.String(), "NOT SERVED"); served != (want == 0) {
			t.Errorf("serve differs:\n%s", o)
		}
		stop()
	}
}

// A disk of a volume group is not served as a file besides; volumes of one group share their disks.
func TestCheckFindsADiskOfAGroup(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "d.img")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	whole := config.Volume{Name: "whole", Type: config.VolumeFile, Path: disk, ReadOnly: true}
	lv := func(vg, name string) config.Volume {
		return config.Volume{Name: vg + name, Type: config.VolumeLVM, VG: vg, LV: name, Devices: []string{disk + ".none", disk}, ReadOnly: true}
	}
	for _, c := range []struct {
		a, b config.Volume
		ok   bool
	}{{lv("v", "x"), lv("v", "y"), true}, {lv("v", "x"), whole, false}, {whole, lv("v", "x"), false}, {lv("v", "x"), lv("w", "x"), false}} {
		if err := alone(c.b, []config.Volume{c.a}); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "in common with volume "+c.a.Name) {
			t.Errorf("%s and %s: %v", c.a.Name, c.b.Name, err)
		}
	}
}

// A file that another process serves is an error; what the target itself has open is not.
func TestCheckBesideTheTarget(t *testing.T) {
	dir := t.TempDir()
	f, socket := configFile(t, dir, `
portals: [{listen: "ADDR"}]
volumes: [{name: d, type: file, path: d.img, size: 1MiB, create: true}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}]
`)
	_, stop := start(t, "--config", f, "--socket", socket, "--log-level", "error")
	if code, out := command(t, "check", "--config", f, "--socket", socket); code != 0 {
		t.Errorf("beside the target: exit %d\n%s", code, out)
	}
	if code, out := command(t, "check", "--config", f); code != exitDegraded || !strings.Contains(out, "if that is the target of this configuration, all is well: --socket names its admin socket") {
		t.Errorf("without the target's socket: exit %d\n%s", code, out)
	}
	stop()
	other, err := file.Open(file.Config{Path: filepath.Join(dir, "d.img")})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if code, out := command(t, "check", "--config", f, "--socket", socket); code != exitDegraded || !strings.Contains(out, "locked by this process") || !strings.Contains(out, "no target answers at "+socket) {
		t.Errorf("beside somebody else: exit %d\n%s", code, out)
	}
}

// What --dry-run promises reload does.
func TestDryRunPromises(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		want           string // in an error of both; "": both do it
	}{
		{"a larger file", "path: file.img, size: 1MiB", "path: file.img, size: 2MiB", ""},
		{"a smaller file", "path: file.img, size: 1MiB", "path: file.img, size: 512KiB", "--shrink"},
		{"an open volume is another", "path: file.img", "path: other.img", "cannot change"},
		{"a file that is missing", "{lun: 1, volume: file}, ", "", "late.img"},
		{"an empty file", "path: late.img}", "path: empty.img}", "the file is empty"},
		{"a group without a portal", "{lun: 0, volume: keep}", "{lun: 0, volume: keep, alua_groups: [{group: 2, state: standby}]}", "group 2"},
		{"a file that another LUN has now", "{lun: 1, volume: file}, {lun: 2, volume: late}]", "{lun: 1, volume: heir}]", ""},
		{"a file that another LUN keeps", "{lun: 2, volume: late}]", "{lun: 2, volume: heir}]", "backing store is in use"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newReloadBed(t)
			if err := content("empty.img", 0)(b.dir); err != nil {
				t.Fatal(err)
			}
			next := strings.Replace(reloadBase, c.old, c.new, 1)
			if strings.Contains(c.new, "group: 2") {
				next = strings.Replace(next, `portals: [{listen: "ADDR"}]`, `portals: [{listen: "ADDR"}, {listen: "127.0.0.2:0", group: 2}]`, 1)
			}
			if strings.Contains(next, "heir") {
				// A second name of the file, which the configuration cannot see.
				if err := os.Link(filepath.Join(b.dir, "file.img"), filepath.Join(b.dir, "heir.img")); err != nil {
					t.Fatal(err)
				}
				next = strings.Replace(next, "targets:\n", "  - {name: heir, type: file, path: heir.img}\ntargets:\n", 1)
			}
			if next == reloadBase {
				t.Fatal("nothing is changed")
			}
			b.write(next)
			_, dry := b.reload("--dry-run")
			_, real := b.reload()
			if got, want := refusals(dry), refusals(real); got != want {
				t.Errorf("the dry run says\n%s\nand reload\n%s", dry, real)
			}
			if c.want != "" && !strings.Contains(dry, c.want) {
				t.Errorf("the dry run says\n%s\nwant %q", dry, c.want)
			}
			for _, r := range strings.Split(refusals(dry), "\n") {
				if c.want == "" && r != "" && !strings.HasSuffix(r, "late") { // whose file is missing
					t.Errorf("the dry run refuses %s", r)
				}
			}
		})
	}
}

// refusals lists the changes that an output says are not done.
func refusals(out string) string {
	var all []string
	lines := strings.Split(out, "\n")
	for i, l := range lines {
		if strings.Contains(l, "not done:") {
			all = append(all, lines[i-1])
		}
	}
	return strings.Join(all, "\n")
}

// content makes a file of n zeroes.
func content(name string, n int) func(dir string) error {
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), make([]byte, n), 0o600) }
}

// listing is what lies in a folder, with sizes and times.
func listing(t *testing.T, dir string) string {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range es {
		fi, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, e.Name(), fi.Size(), fi.ModTime().UnixNano())
	}
	return b.String()
}

// A start that fails because somebody has the port, or the socket, or the metrics'
// port, leaves nothing behind.
func TestFailedStartLeavesNothing(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	busy := other.Addr().String()
	for _, c := range []struct{ name, old, new string }{
		{"portal", `listen: "ADDR"`, fmt.Sprintf("listen: %q", busy)},
		{"second portal", `{listen: "ADDR"}`, fmt.Sprintf(`{listen: "ADDR"}, {listen: %q}`, busy)},
		{"metrics", "admin: {", fmt.Sprintf("admin: {metrics: %q, ", busy)},
		{"socket", "socket: SOCK", "socket: c.yaml"},
		{"target", "alias: x", "portals: [127.0.0.1:1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			const text = `
portals: [{listen: "ADDR"}]
volumes: [{name: d, type: file, path: d.img, size: 1MiB, create: true}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}, {iqn: "iqn.2026-11.test:b", luns: [], alias: x}]
admin: {socket: SOCK, state_dir: state}
logging: {level: error}
`
			f, _ := configFile(t, dir, strings.Replace(text, c.old, c.new, 1))
			before := listing(t, dir)
			if code, out := command(t, "serve", "--config", f); code == 0 {
				t.Errorf("serve has not failed:\n%s", out)
			}
			if after := listing(t, dir); after != before {
				t.Errorf("left behind:\n%sthere was:\n%s", after, before)
			}
		})
	}
}

// A file that grows, and bytes that are not served, are said in the log.
func TestFileSizesAreSaid(t *testing.T) {
	for _, c := range []struct {
		name, size string
		have       int
		want       string
	}{
		{"grown", "1MiB", 4096, "the file had 4KiB; it has been grown to the configured 1MiB"},
		{"whole", "1MiB", 2 << 20, "the file has 2MiB, more than the configured 1MiB; it is served whole"},
		{"odd", "", 4096 + 100, "the last 100 bytes are not served"},
		{"odd behind the size", "4096", 4096 + 100, "the last 100 bytes are not served"},
		{"as it is", "4096", 4096, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := content("d.img", c.have)(dir); err != nil {
				t.Fatal(err)
			}
			spec := "d=" + filepath.Join(dir, "d.img")
			if c.size != "" {
				spec += ",size=" + c.size
			}
			o, stop := start(t, "--listen", loopback.FreeAddr(t), "--log-level", "warn", "--export", spec)
			stop()
			if got := o.String(); !strings.Contains(got, c.want) || c.want == "" && strings.Contains(got, "WARN") {
				t.Errorf("the log lacks %q:\n%s", c.want, got)
			}
		})
	}
}

// A block device with an odd end says so, too.
func TestOddEndOfADevice(t *testing.T) {
	dir := t.TempDir()
	if err := content("d.img", 3*4096+512)(dir); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", filepath.Join(dir, "d.img")).Output()
	if err != nil {
		t.Skip("no loop device can be made here: ", err)
	}
	loop := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", loop).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach: %v\n%s", err, out)
		}
	})
	const want = "the last 512 bytes are not served"
	f, _ := configFile(t, dir, fmt.Sprintf(`
portals: [{listen: "ADDR"}]
volumes: [{name: d, type: raw, path: %s, block_size: 4096}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}]
`, loop))
	if code, out := command(t, "check", "--config", f); code != 0 || !strings.Contains(out, want) {
		t.Errorf("check: exit %d\n%s", code, out)
	}
	if o, stop := start(t, "--config", f); !strings.Contains(o.String(), want) {
		t.Errorf("serve:\n%s", o)
	} else {
		stop()
	}
}

// TestCheckStandardInput: - is standard input for check, which names it and takes relative paths from the current folder; commands
// that would have to read it again refuse it.
func TestCheckStandardInput(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := content("d.img", 1<<20)(dir); err != nil {
		t.Fatal(err)
	}
	const text = "portals: [{listen: 127.0.0.1:3260}]\nvolumes: [{name: d, type: file, path: d.img}]\ntargets: [{iqn: \"iqn.2026-11.test:a\", luns: [{lun: 0, volume: d}]}]\n"
	stdin := os.Stdin
	t.Cleanup(func() { os.Stdin = stdin })
	for _, c := range []struct {
		text, want string
		code       int
	}{
		{text, "path: d.img", 0},
		{strings.Replace(text, "volume: d", "volume: e", 1), "standard input:3: targets[0].luns[0].volume", exitUsage},
	} {
		in := filepath.Join(dir, "in")
		if err := os.WriteFile(in, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(in)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		os.Stdin = f
		if code, out := command(t, "check", "-c", "-"); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("exit %d, no %q in %s", code, c.want, out)
		}
	}
	for _, name := range []string{"serve", "doctor"} {
		if code, out := command(t, name, "-c", "-"); code == 0 || !strings.Contains(out, "- would be standard input") {
			t.Errorf("%s: exit %d, %s", name, code, out)
		}
	}
}
