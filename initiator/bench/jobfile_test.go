package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestJobFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	write("common.fio", "iodepth=32\n")
	t.Setenv("BENCH_SIZE", "16m")
	path := write("job.fio", `
; a comment
# another
[global]
bs = 8k   # inline, as fio allows
time_based ; and so
runtime=2m
ioengine=libaio
include common.fio

[reader]
rw=randread
size=${BENCH_SIZE}
numjobs=$ncpus

[global]
bs=4k,16k
[writer]
rw=randrw
rate=1m,,2m
rate_iops=500
percentile_list=50:99.9
runtime=250ms
seed=0x10
`)
	s, err := ParseJobFile(path)
	if err != nil {
		t.Fatal(err)
	}
	jobs, notes, err := ParseJobs(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "job.fio:8: ioengine is ignored") {
		t.Errorf("notes %q", notes)
	}
	r, w := jobs[0], jobs[1]
	if r.Name != "reader" || !r.Random || r.BS[dirRead].Min != 8192 || r.IODepth != 32 || r.Size.Bytes != 16<<20 || r.Runtime != 2*time.Minute || !r.TimeBased || r.NumJobs < 1 {
		t.Errorf("reader %+v", r)
	}
	if w.BS[dirRead].Min != 4096 || w.BS[dirWrite].Min != 16384 || w.BS[dirTrim].Min != 16384 || w.Runtime != 250*time.Millisecond {
		t.Errorf("writer sizes %+v", w)
	}
	if w.Rate != [3]int64{1 << 20, 0, 2 << 20} || w.RateIOPS != [3]int64{500, 500, 500} || w.Seed != 16 || len(w.Percentiles) != 2 {
		t.Errorf("writer rates %+v", w)
	}
}

// Ranges of block sizes are those that fio 3.33 makes of them.
func TestBSRange(t *testing.T) {
	for v, want := range map[string][datas]MinMax{
		"1k-64k":              {{1 << 10, 64 << 10}, {1 << 10, 64 << 10}, {1 << 10, 64 << 10}},
		"1k-2k,8k-16k":        {{1 << 10, 2 << 10}, {8 << 10, 16 << 10}, {8 << 10, 16 << 10}},
		"1k-64k,8k-8k":        {{1 << 10, 64 << 10}, {8 << 10, 8 << 10}, {8 << 10, 8 << 10}},
		"1k-2k,":              {{1 << 10, 2 << 10}, {4 << 10, 4 << 10}, {4 << 10, 4 << 10}},
		"1k-2k,8k-16k,1k-64k": {{1 << 10, 2 << 10}, {8 << 10, 16 << 10}, {1 << 10, 64 << 10}},
		"64k-1k":              {{1 << 10, 64 << 10}, {1 << 10, 64 << 10}, {1 << 10, 64 << 10}},
		"1k:64k":              {{1 << 10, 64 << 10}, {1 << 10, 64 << 10}, {1 << 10, 64 << 10}},
	} {
		if jobs := parseText(t, "[j]\nrw=randrw\nbsrange="+v); jobs[0].BS != want {
			t.Errorf("%s: %v, want %v", v, jobs[0].BS, want)
		}
	}
}

func TestJobFileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"bs=4k":                                   `t.fio:1: option "bs=4k" before the first [section]`,
		"[j]\nbogus=1":                            `t.fio:2: unknown option "bogus"`,
		"[global]\nfoo_bar=1\n[j]":                `t.fio:2: unknown option "foo_bar"`,
		"[j]\nbs=4x":                              `t.fio:2: bs=4x: size "4x" has the unknown unit`,
		"[j]\nbs":                                 "t.fio:2: bs needs a value",
		"[j\nbs=4k":                               "t.fio:1: bad section header",
		"[j] x":                                   "t.fio:1: bad section header",
		"[j]\nrw=readd":                           "expected read, write",
		"[j]\nsize=${NOPE}":                       "t.fio:2: the environment variable NOPE is not set",
		"[j]\nno equals here":                     "expected key=value",
		"[global]\nbs=4k":                         "no job",
		"[j]\nrw=randtrim\nverify=crc32c":         "cannot be used with trim",
		"[j]\nrw=read\nverify_durable":            "need verify=crc32c",
		"[j]\niodepth=0":                          "iodepth 0",
		"[j]\niodepth=ten":                        "expected a whole number",
		"[j]\nbs=100":                             "between 512",
		"[j]\nbsrange=8k":                         `"8k" is no range: expected MIN-MAX, as in 8k-8k`,
		"[j]\nbsrange=1k-64k,8k":                  `"8k" is no range: expected MIN-MAX, as in 8k-8k`,
		"[j]\nbsrange=256-4k":                     "must lie between",
		"[j]\nrw=trimwrite":                       "t.fio:2: rw=trimwrite: would change the load, and is not offered",
		"[j]\nrw=randtrimwrite":                   "t.fio:2: rw=randtrimwrite: would change the load, and is not offered",
		"[j]\nbs=4k,6000\nrw=rw":                  "must be multiples",
		"[j]\nverify=md5":                         "expected crc32c",
		"[j]\nverify_only=1":                      "need verify=crc32c",
		"[j]\nrw=write\nverify=crc32c\nnumjobs=2": "offset_increment",
		"[j]\nbs=1,2,3,4":                         "at most 3",
		"[j]\npercentile_list=101":                "must lie above 0",
		"[j]\ngroup_reporting=maybe":              "expected 0 or 1",
		"[j]\nrumtime=3":                          "t.fio:2: unknown option \"rumtime\" (did you mean runtime?)",
		"[j]\nwrite_bw_lg=3":                      "t.fio:2: unknown option \"write_bw_lg\" (did you mean write_bw_log?)",
		"[j]\nlatency_taget=3":                    "t.fio:2: unknown option \"latency_taget\" (did you mean latency_target?)",
		"[j]\nquite_another=3":                    "t.fio:2: unknown option \"quite_another\" (see iser-initiator bench --help",
		"[j]\nioengine=cpuio":                     "t.fio:2: ioengine=cpuio: this engine does not read and write a block device",
		"[j]\nioengine=net":                       "t.fio:2: ioengine=net: this engine",
		"[j]\nzonemode=zbd":                       "t.fio:2: zonemode=zbd: would change the load",
		"[j]\nrandom_distribution=normal:5":       "t.fio:2: random_distribution=normal:5: ",
		"[j]\npercentage_random=50":               "t.fio:2: percentage_random would change the load",
		"[j]\ncmdprio_percentage=50":              "t.fio:2: cmdprio_percentage would change the load",
		"[j]\ncontinue_on_error=write":            "t.fio:2: continue_on_error=write: would change the load",
		"[j]\nname=":                              "t.fio:2: name=: cannot be a job's name",
		"[j]\nfilename=iser://a/b/0:iser://c/d/0": "t.fio:2: filename=iser://a/b/0:iser://c/d/0: a job has one volume",
		"[j]\nfilename=/dev/sda":                  "t.fio:2: filename=/dev/sda: expected a volume's URL",
		"[j]\ninclude missing.fio":                "missing.fio",
	} {
		s, err := parseJobText(strings.NewReader(text), "t.fio", func(string) string { return "" })
		if err == nil {
			_, _, err = ParseJobs(s)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// What fio spells in another way, or for another machine, and means the same.
func TestJobFileSpelling(t *testing.T) {
	jobs := parseText(t, `[global]
name=everybody
ioengine=libaio
zonemode=none
random_distribution=random
rate_process=linear
sync=1
[a]
filename=iser\://127.0.0.1\:3260/iqn.2026-11.softiser\:disk0/0
[b]
name=bee
filename=iser://127.0.0.1:3260/iqn.2026-11.softiser:disk0/0
`)
	const url = "iser://127.0.0.1:3260/iqn.2026-11.softiser:disk0/0"
	if jobs[0].Name != "a" || jobs[0].URL != url {
		t.Errorf("a: name %q, volume %q", jobs[0].Name, jobs[0].URL)
	}
	if jobs[1].Name != "bee" || jobs[1].URL != url {
		t.Errorf("b: name %q, volume %q", jobs[1].Name, jobs[1].URL)
	}
}

func TestIncludeLoopEnds(t *testing.T) {
	p := filepath.Join(t.TempDir(), "loop.fio")
	if err := os.WriteFile(p, []byte("[j]\ninclude loop.fio\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseJobFile(p); err == nil || !strings.Contains(err.Error(), "nested deeper") {
		t.Errorf("error %v", err)
	}
}

func TestOptionTable(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range options {
		for _, n := range append([]string{o.name}, o.aliases...) {
			if seen[n] || ignored[n] != "" || refused[n] != "" {
				t.Errorf("%s stands twice", n)
			}
			seen[n] = true
		}
		if o.help == "" || o.set == nil {
			t.Errorf("%s is incomplete", o.name)
		}
	}
	for k := range refused {
		if ignored[k] != "" {
			t.Errorf("%s is both ignored and refused", k)
		}
	}
}

func FuzzJobFile(f *testing.F) {
	f.Add("[global]\nbs=4k\n[a]\nrw=randrw\nbsrange=4k-64k\nrate=1m\n; x\n[b]\nstonewall\nsize=10%\n")
	f.Add("[x]\nverify=crc32c\nrw=write\npercentile_list=1:50:99.9\nruntime=1d\nsize=${A}$ncpus")
	f.Add("[j]\nbs=0x200,8192p\nkb_base=1000\nsize=9223372036854775807")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "include ") {
			return
		}
		s, err := parseJobText(strings.NewReader(text), "f", func(n string) string { return n })
		if err != nil {
			return
		}
		jobs, _, err := ParseJobs(s)
		if err != nil {
			return
		}
		for _, j := range jobs {
			if j.minBS() < 512 || j.maxBS() > maxBlock || j.IODepth < 1 || j.maxBS()%j.minBS() != 0 {
				t.Errorf("accepted %+v", j)
			}
		}
	})
}

// Who asks for a section that is not there is told which are.
func TestSectionThatIsNotThere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.fio")
	if err := os.WriteFile(file, []byte("[global]\nbs=4k\n[one]\nrw=read\n[two]\nrw=write\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseJobFile(file, "three", "four"); err == nil || !strings.Contains(err.Error(), "no section three, four; there are one, two") {
		t.Error(err)
	}
	if s, err := ParseJobFile(file, "two", "three"); err != nil || len(s) != 2 {
		t.Errorf("%v, %v", s, err)
	}
}
