package cli

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"softiser/lvm"
	"softiser/lvm/vg"
)

// lvm2 is Debian's lvm2 on loop devices over the files of a shell. Nothing is
// activated, so device-mapper is not needed; root is.
type lvm2 struct {
	t       *testing.T
	env     []string
	devices string // section of the configuration: nothing but the shell's disks
}

// config is the whole configuration, with further settings of its section global.
func (l *lvm2) config(global string) string {
	return "global{activation=0 " + global + "} " + l.devices + " backup{archive=0 backup=0}"
}

func newLVM2(t *testing.T, s *shell) *lvm2 {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for loop devices")
	}
	for _, tool := range []string{"losetup", "lvs"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	for i, d := range s.disks {
		out, err := exec.Command("losetup", "-f", "--show", d).CombinedOutput()
		if err != nil {
			t.Skipf("no loop device: %s", out)
		}
		dev := strings.TrimSpace(string(out))
		t.Cleanup(func() { exec.Command("losetup", "-d", dev).Run() })
		s.disks[i] = dev
	}
	// lvm2's own lock directory: both keep to it.
	s.env = Env{Config: lvm.Config{Config: vg.Config{ArchiveDir: "-", BackupDir: "-"}}}
	filter := ""
	for _, d := range s.disks {
		filter += `"a|^` + d + `$|", `
	}
	return &lvm2{t, append(os.Environ(), "LVM_SUPPRESS_FD_WARNINGS=1"), `devices{use_devicesfile=0 hints="none" scan="/dev" filter=[` + filter + `"r|.*|"]}`}
}

func (l *lvm2) run(args ...string) string {
	l.t.Helper()
	c := exec.Command("lvm", append(args, "--config", l.config(""))...)
	c.Env = l.env
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		l.t.Fatalf("lvm %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	for _, line := range strings.Split(stderr.String(), "\n") {
		if strings.Contains(line, "WARNING") && !strings.Contains(line, "Activation disabled") && !strings.Contains(line, "not zeroed") && !strings.Contains(line, "NOT backed up") {
			l.t.Errorf("lvm %s: %s", args[0], line)
		}
	}
	return string(out)
}

// TestAgainstLVM2 has lvm2 and this package work on one group in turns, and
// compares every report.
func TestAgainstLVM2(t *testing.T) {
	if testing.Short() {
		t.Skip("runs lvm2's programs some hundred times")
	}
	s := newShell(t)
	l := newLVM2(t, s)
	group := "vgt" + strings.ReplaceAll(strings.TrimPrefix(s.disks[0], "/dev/"), "/", "")
	vol := func(n string) string { return group + "/" + n }
	s.run("pvcreate", s.disks[0])
	for _, options := range []string{"", "-c", "-s", "-m", "-C", "--units m", "--units H", "--units 4m", "--units s"} {
		cmd := append([]string{"pvdisplay", s.disks[0]}, strings.Fields(options)...)
		if ours, theirs := s.run(cmd...), l.run(cmd...); ours != theirs {
			t.Errorf("pvdisplay %s without a group: the first difference:\n%s", options, firstDifference(ours, theirs))
		}
	}
	s.says("successfully created", append([]string{"vgcreate", group}, s.disks...)...)
	s.run("lvcreate", "-L20m", "-n", "lin", group)
	s.run("lvcreate", "-i2", "-L24m", "-n", "str", group)
	l.run("vgck", group)
	l.run("lvcreate", "-an", "-Zn", "-Wn", "-L12m", "-n", "theirs", group)
	before := t.TempDir() + "/before"
	l.run("vgcfgbackup", "-f", before, group)
	s.run("lvremove", vol("theirs"))
	s.says("Restored volume group "+group, "vgcfgrestore", "-y", "-f", before, group)
	l.run("vgck", group)
	s.run("lvextend", "-L+12m", vol("theirs"))
	s.run("lvcreate", "-s", "-L8m", "-n", "snap", vol("lin"))
	s.run("lvcreate", "-s", "-c16k", "-L8m", "-n", "snap2", vol("lin"))
	s.run("lvcreate", "-T", "-L32m", vol("pool"))
	s.run("lvcreate", "-V1g", "-T", vol("pool"), "-n", "thin")
	s.run("lvcreate", "-s", "-n", "thin2", vol("thin"))
	s.run("lvcreate", "-s", "-n", "thin3", vol("thin2"))
	s.run("lvcreate", "-L9m", "--alloc", "contiguous", "--addtag", "t1", "-pr", "-n", "tagged", group)
	l.run("vgck", group)
	l.run("lvrename", group, "theirs", "renamed")
	l.run("lvextend", "-l+3", vol("renamed"))
	s.run("lvextend", "-l+50%FREE", vol("renamed"))
	l.run("lvchange", "--addtag", "t2", vol("renamed"))
	l.run("lvchange", "-r", "512", vol("renamed"))
	l.run("lvchange", "-r", "none", vol("str"))
	s.run("pvmove", "-n", "lin", s.disks[0]+":0-100")
	l.run("vgck", group)
	s.run("lvcreate", "-L12m", "-n", "sized", group)
	for _, size := range []string{"-L32m", "-l+2", "-L-8m", "-l6"} { // up and down, ours and then lvm2's
		ours := s.run("lvresize", "-y", size, vol("sized"))
		s.run("lvresize", "-y", "-L12m", vol("sized"))
		if theirs := l.run("lvresize", "-y", size, vol("sized")); ours != theirs {
			t.Errorf("lvresize %s: the first difference:\n%s", size, firstDifference(ours, theirs))
		}
		l.run("lvresize", "-y", "-L12m", vol("sized"))
	}

	for _, args := range []string{
		"lvs", "lvs -a", "lvs --segments", "lvs --segments --reportformat json", "lvs --rows", "vgs --rows --noheadings --separator ,", "pvs --rows --nameprefixes", "lvs --rows --reportformat json", "lvs -o seg_type,LVSize,seg_count,SegSize", "lvs --reportformat json", "lvs -a -o lv_name,lv_size,seg_pe_ranges,devices --units m",
		"lvs -o+chunk_size,seg_count,transaction_id,thin_id,discards,stripes,stripe_size", "lvs -o lv_name,lv_uuid,lv_tags,lv_host,lv_when_full,lv_allocation_policy",
		"lvs -a -o lv_name,lv_layout,lv_role,lv_parent,lv_dm_path,lv_skip_activation,lv_autoactivation", "lvs -a -o lv_name,lv_ancestors,lv_descendants,lv_full_ancestors,lv_full_descendants",
		"lvs -a -o lv_name,origin_uuid,pool_lv_uuid,data_lv_uuid,metadata_lv_uuid", "lvs -a -o lv_name,thin_count,zero,data_stripes,data_copies,seg_tags", "lvs -a --reportformat json -o lv_name,lv_layout,lv_role,zero,thin_count",
		"pvs -o pv_name,pv_ba_size --units m", "pvs -o pv_ba_size --units 4K", "lvs --units k --nosuffix --noheadings", "lvs --units G", "lvs --separator , --units s", "lvs --units H", "lvs -O -lv_size -o lv_name,lv_size",
		"lvs -o lv_full_name,lv_path,pool_lv,origin,origin_size,data_lv,metadata_lv,lv_metadata_size", "lvs --nameprefixes -o lv_name,lv_size", "lvs --units 4m -o lv_name,lv_size",
		"vgs", "vgs --reportformat json", "vgs -o+vg_uuid,vg_extent_size,vg_extent_count,vg_free_count,max_lv,max_pv,vg_seqno", "vgs --units b",
		"vgs -o vg_name,vg_permissions,vg_extendable,vg_exported,vg_partial,vg_allocation_policy,vg_clustered,vg_shared,vg_systemid,vg_lock_type,vg_autoactivation", "vgs -o vg_name,vg_mda_count,vg_mda_used_count,vg_mda_free,vg_mda_size",
		"pvs -o pv_name,pv_allocatable,pv_exported,pv_missing,pv_in_use,pv_mda_used_count,pv_ext_vsn",
		"lvs -a --segments -o lv_name,seg_le_ranges,lv_modules,lv_read_ahead", "pvs --segments", "pvs --segments --reportformat json", "pvs -o pv_name,pvseg_start --reportformat json", "pvs -o+pvseg_all",
		"pvs", "pvs --reportformat json --units b", "pvs -o+pv_used,pv_uuid,pe_start,dev_size,pv_pe_count,pv_pe_alloc_count,pv_mda_count,pv_mda_size,pv_mda_free",
	} {
		cmd := strings.Fields(args)
		if cmd[0] == "pvs" {
			cmd = append(cmd, s.disks...)
		} else {
			cmd = append(cmd, group)
		}
		ours, theirs := s.run(cmd...), maskAttributes(l.run(cmd...))
		if ours != theirs {
			t.Errorf("%s: the first difference:\n%s", args, firstDifference(ours, theirs))
		}
	}
	compareColumns(t, s, l, group)
	everyColumn(t, s, l, group)
	displays(t, s, l, group)
	selections(t, s, l, group)
	exitCodes(t, s, l, group)
	locksKeepOut(t, s, l, group)
	file := t.TempDir() + "/ours"
	s.run("vgcfgbackup", "-f", file, group)
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), "thin2 {") {
		t.Error(err)
	}
	file = t.TempDir() + "/backup"
	l.run("vgcfgbackup", "-f", file, group)
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), "thin2 {") {
		t.Fatal(err)
	}
	s.run("vgremove", "-y", group)
	if out := l.run("pvs", "--noheadings", "-o", "pv_name,vg_name", s.disks[0]); strings.TrimSpace(out) != s.disks[0] {
		t.Errorf("after vgremove lvm2 says %q", out)
	}
}

// attributes are those of a volume, a column by itself, where lvm2 can't tell what depends on activation.
var attributes = regexp.MustCompile(`(?m)(^|[^-\w])([-a-zA-Z]{4})XX([-a-z]{4})([^-\w]|$)`)

// maskAttributes makes of what lvm2 can't tell here what is told of an inactive volume.
func maskAttributes(out string) string {
	for range 2 { // neighbours share what separates them
		out = attributes.ReplaceAllString(out, "$1$2--$3$4")
	}
	return out
}

func TestMaskAttributes(t *testing.T) {
	for in, want := range map[string]string{
		"  lin  vg -wi-XX----  20.00m": "  lin  vg -wi-------  20.00m",
		"thin,Vwi-XXtz--,4m":           "thin,Vwi---tz--,4m",
		"-wi-XX---- -wi-XX----":        "-wi------- -wi-------",
		`"lv_attr":"owi-XX----"`:       `"lv_attr":"owi-------"`,
		"  LV UUID                XXwgEZ-sWVp-Vmo8-uIzf-iSvI-MNA0-v8yx7M": "  LV UUID                XXwgEZ-sWVp-Vmo8-uIzf-iSvI-MNA0-v8yx7M",
		"a1wgEZ-sWVp-abcd-XXzf-iSvI-MNA0-v8yx7M":                          "a1wgEZ-sWVp-abcd-XXzf-iSvI-MNA0-v8yx7M",
	} {
		if got := maskAttributes(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

// compareColumns compares every column that is known here, whatever it is.
func compareColumns(t *testing.T, s *shell, l *lvm2, group string) {
	t.Helper()
	for kind, report := range map[string]string{"lv": "lvs -a", "seg": "lvs -a --segments", "vg": "vgs", "pv": "pvs", "pvseg": "pvs --segments"} {
		cmd := append(strings.Fields(report), "--reportformat", "json", "--units", "b", "-o")
		var columns []string
		for _, f := range fields {
			if f.kind == kind && f.name != "lv_active" { // nothing is active in lvm2 here
				columns = append(columns, f.name)
			}
		}
		cmd = append(cmd, strings.Join(columns, ","))
		if strings.HasPrefix(kind, "pv") {
			cmd = append(cmd, s.disks...)
		} else {
			cmd = append(cmd, group)
		}
		rows := func(out string) (rows []map[string]string) {
			var doc struct {
				Report []map[string][]map[string]string
			}
			if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Report) != 1 {
				t.Fatalf("%s: %v\n%s", report, err, out)
			}
			for _, r := range doc.Report[0] {
				rows = append(rows, r...)
			}
			return rows
		}
		// Headings and widths, all columns in one line.
		plain := slices.DeleteFunc(slices.Clone(cmd), func(a string) bool { return a == "--reportformat" || a == "json" })
		if ours, theirs := s.run(plain...), maskAttributes(l.run(plain...)); ours != theirs {
			t.Errorf("%s with every column: the first difference:\n%s", report, firstDifference(ours, theirs))
		}
		ours, theirs := rows(s.run(cmd...)), rows(maskAttributes(l.run(cmd...)))
		if len(ours) != len(theirs) || len(ours) == 0 {
			t.Errorf("%s: %d rows, lvm2 has %d", report, len(ours), len(theirs))
			continue
		}
		for i := range ours {
			for _, c := range columns {
				if ours[i][c] != theirs[i][c] {
					t.Errorf("%s, row %d (%s%s), %s: %q, lvm2 says %q", report, i, theirs[i]["lv_name"], theirs[i]["pv_name"], c, ours[i][c], theirs[i][c])
				}
			}
		}
	}
}

// everyColumn: there is no column of lvm2's that is not known here.
func everyColumn(t *testing.T, s *shell, l *lvm2, group string) {
	t.Helper()
	for report, name := range map[string]string{"lvs": group, "vgs": group, "pvs": s.disks[0]} {
		c := exec.Command("lvm", report, "-o", "help", "--config", l.config(""))
		c.Env = l.env
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, m := range regexp.MustCompile(`(?m)^    ([a-z_]+) +- `).FindAllStringSubmatch(string(out), -1) {
			switch m[1] {
			case "help", "selected": // no column, and one that needs -S
				continue
			}
			if !strings.HasSuffix(m[1], "_all") && findField(m[1], "") == nil {
				t.Errorf("%s: column %s is not known", report, m[1])
			}
			n++
		}
		if n < 100 {
			t.Errorf("lvm2 has only %d columns for %s", n, report)
		}
		s.run(report, "-o", "all", name)
	}
}

// displays compares what is shown of one object after another, in whatever order.
func displays(t *testing.T, s *shell, l *lvm2, group string) {
	t.Helper()
	blocks := func(out string) []string {
		b := strings.Split(out, "   \n")
		slices.Sort(b)
		return b
	}
	lines := func(out string) []string {
		b := strings.SplitAfter(out, "\n")
		slices.Sort(b)
		return b
	}
	same := func(cut func(string) []string, commands ...string) {
		t.Helper()
		for _, c := range commands {
			cmd := strings.Fields(strings.NewReplacer("VG", group, "DISKS", strings.Join(s.disks, " "), "DISK", s.disks[1]).Replace(c))
			ours, theirs := cut(s.run(cmd...)), cut(maskAttributes(l.run(cmd...)))
			if !slices.Equal(ours, theirs) {
				t.Errorf("%s: the first difference:\n%s", strings.Join(cmd, " "), firstDifference(strings.Join(ours, ""), strings.Join(theirs, "")))
			}
		}
	}
	same(blocks, "lvdisplay VG", "lvdisplay -a VG", "lvdisplay VG/snap VG/thin2", "vgdisplay", "vgdisplay VG", "pvdisplay DISKS", "pvdisplay DISK",
		"lvdisplay VG -S lv_size=20m", "lvdisplay VG -S seg_size>=8m", "vgdisplay VG -S vg_name=none", "pvdisplay DISKS -S pvseg_size>2", "lvdisplay VG/lin --units b", "lvdisplay --nosuffix --units k VG/pool", "vgdisplay VG --units S")
	// Maps: a volume's segments belong to it.
	for _, lv := range []string{"lin", "str", "renamed", "snap", "snap2", "pool", "thin", "thin3", "tagged", "pool_tdata", "lvol0_pmspare"} {
		cmd := "lvdisplay -m VG/" + lv
		if lv[len(lv)-1] == 'e' || strings.HasSuffix(lv, "_tdata") {
			cmd += " -a"
		}
		same(func(out string) []string { return []string{out} }, cmd)
	}
	same(blocks, "pvdisplay -m DISK", "pvdisplay -m DISKS", "pvdisplay -m DISK -S pv_name=none")
	same(lines, "lvdisplay -c VG", "lvdisplay -ac VG", "lvdisplay -c VG/tagged", "vgdisplay -c", "vgdisplay --colon VG", "pvdisplay -c DISKS", "pvdisplay -s DISK", "pvdisplay -s -m DISKS", "lvdisplay -c VG -S lv_size=20m", "lvdisplay -c --segments VG")
	for _, units := range strings.Split("r R h H b B s S k K m M g G t T 4m 3s", " ") {
		same(lines, "vgdisplay -s VG --units "+units, "pvdisplay --short --units "+units+" DISKS", "vgdisplay -s --nosuffix --units "+units)
	}
	same(lines, "lvdisplay -C VG", "lvdisplay -a --columns VG", "vgdisplay -C", "pvdisplay -C DISKS", "pvdisplay -C -a DISK", "lvdisplay -C --segments VG", "lvdisplay -C -O -lv_size -o lv_name,lv_size VG",
		"vgdisplay -C -o vg_name,vg_uuid --noheadings --separator ,", "lvdisplay -C -S lv_name=~^t VG", "lvdisplay -C --units b --nosuffix VG", "lvdisplay -C --separator , --aligned VG")

	l.run("vgexport", group)
	same(blocks, "vgdisplay VG", "pvdisplay DISKS")
	same(lines, "vgdisplay -c VG", "vgdisplay -s", "pvdisplay -c DISKS", "pvdisplay -s DISKS")
	l.run("vgimport", group)
	l.run("vgchange", "-x", "n", group)
	l.run("pvchange", "-x", "n", s.disks[1])
	same(lines, "vgdisplay -c VG", "pvdisplay -c DISKS")
	l.run("pvchange", "-x", "y", s.disks[1])
	l.run("vgchange", "-x", "y", group)
}

// selections compares what -S shows.
func selections(t *testing.T, s *shell, l *lvm2, group string) {
	t.Helper()
	made, err := time.Parse("2006-01-02 15:04:05 -0700", strings.TrimSpace(s.run("lvs", "--noheadings", "-o", "lv_time", group+"/lin")))
	if err != nil {
		t.Fatal(err)
	}
	ofFlags := []string{"lv_skip_activation!=skip", "lv_skip_activation=no", "lv_skip_activation!=unknown", "lv_skip_activation>0", "lv_skip_activation=2", "lv_skip_activation=x", "lv_skip_activation=", "lv_autoactivation=enabled", "lv_autoactivation=yes", "lv_autoactivation=0", "lv_suspended>=0", "zero!=-1", "zero=-1"}
	for name, words := range flagWords {
		if f := findField(name, ""); f.kind != "lv" && f.kind != "seg" || name == "lv_active_locally" || name == "lv_active_exclusively" || name == "lv_active_remotely" {
			continue // of these lvm2 knows that nothing is active
		}
		for _, w := range words {
			ofFlags = append(ofFlags, name+"='"+w+"'")
		}
		ofFlags = append(ofFlags, name+"!=0", name+"=undef")
	}
	at := func(layout string) string { return "'" + made.Local().Format(layout) + "'" }
	var ofTimes []string
	for _, value := range []string{at("2006"), at("2006-01"), at("200601"), at("2006-01-02"), at("20060102"), at("2006-01-02 15"), at("2006-01-02 15:04"), at("2006-01-02 1504"), at("2006-01-02 15:04:05"), at("2006-01-02 15:04:05 -0700"), at("2006-01-02 15:04-07:00"),
		at("2006-01-02 15:04:05 +07:00"), "@" + strconv.FormatInt(made.Unix(), 10), "'3 days ago'", "'100 hours ago'", "'9999 minutes ago'", "2001-02-30", "x", "''", "2026-13"} {
		ofTimes = append(ofTimes, "lv_time="+value)
		if strings.HasSuffix(value, "days ago'") || len(value) == len(at("2006-01-02")) || len(value) == len(at("2006-01-02 15:04:05")) {
			for _, op := range []string{">", ">=", "<", "<=", " since ", " after ", " until ", " before "} {
				ofTimes = append(ofTimes, "lv_time"+op+value)
			}
		}
	}
	ofTimes = append(ofTimes, "lv_time!="+at("2006-01-02"), "lv_time!="+at("2006-01-02 15:04:05"))
	ofPercents := []string{"data_percent>5", "data_percent!=5%", "copy_percent<=100", "metadata_percent=0", "snap_percent<5.5", "data_percent=x", "data_percent=101", "data_percent=-1", "data_percent="}
	for report, conditions := range map[string][]string{
		"vgs -o vg_name": {"vg_name=VG && vg_free>0.5m", "pv_count=2", "pv_count!=2", "pv_name=DISK", "lv_name=lin", "vg_tags=none", "vg_extendable=1", "vg_extendable=no", "vg_exported=exported", "vg_partial=0", "vg_permissions=rw", "vg_permissions=r", "vg_autoactivation=1"},
		"pvs -o pv_name": {"pv_name=DISK", "pv_size>=1m", "pv_size<1m", "pv_pe_count>100", "vg_name=VG", "pvseg_size>=3", "pv_allocatable=allocatable", "pv_allocatable=0", "pv_in_use='in use'", "pv_missing!=1", "pv_duplicate=0", "pv_exported=no"},
		"lvs -a -o lv_name": {
			"lv_tags=t1", "lv_tags!=t1", "lv_name=lin", "name=pool_tdata", "data_lv=pool_tdata", "lv_name=~^th", "lv_name!~'s|n$'", "lv_size>=12m&&lv_name!~th", "lv_name=lin||lv_name=thin", "lv_name=lin#lv_name=str",
			"lv_name=lin,lv_size=20m", "!(lv_name=lin)", "lv_size=20.00m", "LVSize=20", "lv_size<20M", "origin=''", "origin=", "seg_count=1 && (lv_name=lin || lv_name = pool)", "lv_layout=thin", "seg_size>=8m", "lv_name=LIN",
			"lv_role=snapshot", "lv_size=20971520b", "lv_size>20971519b", "stripes=2", "stripes>=1", "vg_name=VG", "lv_metadata_size!=8m", "lv_metadata_size<1g", "origin_size>1m", "chunk_size<1m", "thin_count=0", "thin_id!=1", "transaction_id>=0", "lv_attr=~^V", "pool_lv=pool",
			"nonsense=1", "lv_name>b", "lv_size=x", "! lv_name=lin", "(lv_name=lin", "lv_name", "lv_name=lin)", "seg_count=~1",
			"thin_id=undefined", "thin_id=-1", "thin_id!=unknown", "thin_id>undef", "thin_id<5", "lv_minor=undefined", "lv_minor>=0", "lv_size=undefined", "lv_permissions=ro", "lv_permissions=rw", "lv_permissions=unknown", "lv_read_ahead=0", "lv_read_ahead>1k", "lv_when_full=queue",
		},
	} {
		if report == "lvs -a -o lv_name" {
			conditions = slices.Concat(conditions, ofFlags, ofTimes, ofPercents)
		}
		for _, selection := range conditions {
			selection = strings.NewReplacer("VG", group, "DISK", s.disks[0]).Replace(selection)
			cmd := append(strings.Fields(report), "-S", selection)
			of := group
			if report[0] == 'p' {
				of = s.disks[0]
			}
			cmd = append(cmd, of)
			c := exec.Command("lvm", append([]string{cmd[0], "--config", l.config("")}, cmd[1:]...)...)
			c.Env = l.env
			theirs, failed := c.Output()
			ours, err := s.try(nil, cmd...)
			if (err == nil) != (failed == nil) || err == nil && ours != string(theirs) {
				t.Errorf("%s -S %q: %v, lvm2 %v; ours\n%slvm2\n%s", report, selection, err, failed, ours, theirs)
			}
		}
	}
	for _, report := range []string{"lvs", "pvs"} {
		c := exec.Command("lvm", report, "-S", "help", "--config", l.config(""))
		c.Env = l.env
		help, err := c.CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^    ([a-z_]+) +- .*\[([a-z ]+)\]$`).FindAllStringSubmatch(string(help), -1) {
			if f := findField(m[1], ""); f != nil && f.selectedAs() != m[2] && f.selectedAs() != "" {
				t.Errorf("selection by %s: as a %s, in lvm2 as a %s", f.name, f.selectedAs(), m[2])
			}
		}
	}
	for _, refused := range []string{"lv_tags=~t1", "devices=x", "lv_name=~a{2}", "lv_time_removed=2026", "lv_kernel_read_ahead=0"} {
		s.fails("not done here", "lvs", "-S", refused, group)
	}
	s.fails("only one word", "lvs", "-S", "lv_tags={t1}", group)
}

// exitCodes: what is refused here and by lvm2 ends with the same code.
func exitCodes(t *testing.T, s *shell, l *lvm2, group string) {
	t.Helper()
	for _, line := range []string{
		"lvs VG", "lvs nope", "lvs VG/nope", "lvs -o nonsense", "lvs -O nonsense", "lvs --nosuch", "lvs --units x", "lvs --reportformat x", "lvs -o lv_name,pv_name",
		"vgs nope", "pvs /dev/nope", "pvcreate", "vgcreate", "vgcreate VG DISK", "pvcreate DISK", "vgremove", "vgremove VG", "vgrename one", "vgrename nope other", "vgextend VG",
		"lvcreate VG", "lvcreate -L4x VG", "lvcreate -L4m -l4 VG", "lvcreate -L9g VG", "lvcreate -L4m -n lin VG", "lvremove", "lvremove VG/nope", "lvrename VG lin", "lvrename VG lin lin",
		"lvextend -L+4m", "lvextend VG/str", "lvextend -L24m VG/str", "lvextend -L4m VG/str", "lvextend -Lx VG/str", "lvextend -l0 VG/str",
		"lvreduce VG/str", "lvreduce -L400m VG/str", "lvreduce -L-400m VG/str", "lvresize VG/str", "lvresize -L-400m VG/str", "lvresize -Lx VG/str", "lvresize -l0 VG/str", "lvresize -L24m VG/str", "lvchange VG/str", "lvchange -px VG/str", "lvchange --addtag", "lvconvert VG/str", "lvdisplay nope", "vgdisplay nope", "pvdisplay /dev/nope", "lvdisplay --nosuch", "vgcfgbackup nope", "vgcfgbackup -f /nope/softiser/backup VG",
		"lvdisplay -s", "lvdisplay -c -m", "lvdisplay -C -c", "lvdisplay -m -C", "lvdisplay -o lv_name", "lvdisplay --noheadings", "lvdisplay --aligned", "lvdisplay -c -O lv_name", "lvdisplay -C --rows", "lvdisplay --units x", "lvdisplay --nosuffix VG",
		"lvdisplay -c VG/nope", "vgdisplay -c nope", "pvdisplay -a", "pvdisplay -c -m", "pvdisplay -s -c", "pvdisplay -C -s", "pvdisplay --separator x", "pvdisplay -C --segments", "pvdisplay -s /dev/nope", "vgdisplay -s -c", "vgdisplay -m", "vgdisplay -s -C",
	} {
		args := strings.Fields(strings.NewReplacer("VG", group, "DISK", s.disks[0]).Replace(line))
		c := exec.Command("lvm", append([]string{args[0], "--config", l.config("")}, args[1:]...)...)
		c.Env = l.env
		out, err := c.CombinedOutput()
		var ended *exec.ExitError
		if err != nil && !errors.As(err, &ended) {
			t.Fatal(err)
		}
		_, err = s.try(nil, args...)
		if ours, theirs := ExitCode(err), c.ProcessState.ExitCode(); ours != theirs {
			t.Errorf("%s: code %d (%v), lvm2 has %d: %s", line, ours, err, theirs, out)
		}
	}
}

// locksKeepOut: while one side changes a group, the other waits, or says that it
// is locked.
func locksKeepOut(t *testing.T, s *shell, l *lvm2, group string) {
	t.Helper()
	path := "/run/lock/lvm/V_" + group
	hold, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	if err := syscall.Flock(int(hold.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	s.fails("lock", "lvchange", "--addtag", "ours", group+"/lin")
	theirs := exec.Command("lvm", "lvchange", "--addtag", "theirs", group+"/lin", "--config", l.config("wait_for_locks=0"))
	theirs.Env = l.env
	if out, err := theirs.CombinedOutput(); err == nil || !strings.Contains(string(out), "lock") {
		t.Errorf("lvm2 does not keep to the lock file: %v\n%s", err, out)
	}
	hold.Close()
	// With the lock free both get through, and neither undoes the other.
	s.run("lvchange", "--addtag", "ours", group+"/lin")
	l.run("lvchange", "--addtag", "theirs", group+"/lin")
	if got := strings.TrimSpace(s.run("lvs", "--noheadings", "-o", "lv_tags", group+"/lin")); got != "ours,theirs" {
		t.Errorf("tags %q", got)
	}
}

func firstDifference(ours, theirs string) string {
	a, b := strings.Split(ours, "\n"), strings.Split(theirs, "\n")
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return "ours " + a[i] + "\nlvm2 " + strings.Join(b[min(i, len(b)):min(i+1, len(b))], "")
		}
	}
	return "lvm2 has more lines"
}

// TestPlacementAgainstLVM2 gives two equal groups the same commands, ours and
// lvm2's: the volumes must lie on the same extents.
func TestPlacementAgainstLVM2(t *testing.T) {
	s, other := newShell(t), newShell(t)
	newLVM2(t, s)
	l := newLVM2(t, other)
	name := func(s *shell) string {
		return "vgp" + strings.ReplaceAll(strings.TrimPrefix(s.disks[0], "/dev/"), "/", "")
	}
	s.run(append([]string{"vgcreate", name(s)}, s.disks...)...)
	l.run(append([]string{"vgcreate", name(other)}, other.disks...)...)
	defer l.run("vgremove", "-y", name(other))
	places := func(out string, s *shell) string {
		for i, d := range s.disks {
			out = strings.ReplaceAll(out, d+":", string(rune('A'+i))+":")
		}
		return strings.Join(strings.Fields(out), " ")
	}
	for _, line := range []string{
		"lvcreate -l10 -n a VG", "lvcreate -l8 -n b VG", "lvcreate -l12 -i2 -n s VG", "lvextend -l+6 VG/a", "lvcreate -l20 -n c VG",
		"lvremove -y VG/b", "lvcreate -l6 -n d VG", "lvextend -l+12 VG/a", "lvcreate -l20 --alloc contiguous -n e VG",
		"lvextend -l+2 --alloc contiguous VG/e", "lvextend -l+4 --alloc cling VG/e", "lvremove -y VG/c", "lvcreate -l6 -n g VG",
	} {
		ours := strings.Fields(strings.ReplaceAll(line, "VG", name(s)))
		theirs := strings.Fields(strings.ReplaceAll(line, "VG", name(other)))
		if theirs[0] == "lvcreate" {
			theirs = append(theirs, "-an", "-Zn", "-Wn")
		}
		s.run(ours...)
		l.run(theirs...)
		columns := []string{"--noheadings", "-o", "lv_name,seg_pe_ranges"}
		a := places(s.run(append([]string{"lvs", name(s)}, columns...)...), s)
		b := places(l.run(append([]string{"lvs", name(other)}, columns...)...), other)
		if a != b {
			t.Fatalf("%s:\nours %s\nlvm2 %s", line, a, b)
		}
	}
}
