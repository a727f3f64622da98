package bench

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden reports")

// sampleReport is a run whose every figure is known.
func sampleReport(t *testing.T) *Report {
	jobs := parseText(t, "[mixed]\ndescription=a golden run\nrw=randrw\nbs=4k\niodepth=4\nverify=crc32c\nsize=16m\nnumjobs=1")
	s := &Stats{Job: jobs[0], Jobs: 1, Elapsed: 2 * time.Second, Verified: 1000, Depth: [7]uint64{1, 1, 4094}}
	for _, d := range []dir{dirRead, dirWrite} {
		t := &s.Dir[d]
		t.Runtime = 2 * time.Second
		for i := range int64(2048) {
			t.add(4096, 100+i%50, 20_000+i*100*(1+int64(d)), jobs[0])
		}
		for i := range 4 {
			t.BW.add(float64(4_000_000 + i*100_000))
			t.Rate.add(float64(1000 + i*10))
		}
	}
	for i := range int64(16) {
		s.Dir[dirSync].add(0, 0, 1000+i, jobs[0])
	}
	s.Usage = rusage{user: 100 * time.Millisecond, sys: 300 * time.Millisecond, ctx: 12, majf: 0, minf: 3}
	return &Report{Started: time.Date(2026, 11, 20, 14, 23, 12, 24e6, time.UTC), Groups: []*Stats{s}, Clones: []*Stats{s}}
}

func TestGoldenReports(t *testing.T) {
	r := sampleReport(t)
	for _, format := range []string{"normal", "json", "json+", "terse"} {
		var b strings.Builder
		if err := r.write(&b, []string{format}, []KV{{Key: "bs", Value: "4k"}}); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", "report."+strings.ReplaceAll(format, "+", "plus"))
		if *update {
			if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s differs from %s (go test -update rewrites it):\n%s", format, path, b.String())
		}
	}
}

// The units that readers of fio's JSON rely on.
func TestJSONUnits(t *testing.T) {
	var b strings.Builder
	if err := sampleReport(t).WriteJSON(&b, nil, false); err != nil {
		t.Fatal(err)
	}
	var v struct {
		Jobs []struct {
			Read struct {
				IOBytes int64 `json:"io_bytes"`
				BW      int64 `json:"bw"`
				BWBytes int64 `json:"bw_bytes"`
				IOPS    float64
				Runtime int64
				Clat    struct {
					Min, Max   int64
					Percentile map[string]int64
				} `json:"clat_ns"`
			}
		}
	}
	if err := json.Unmarshal([]byte(b.String()), &v); err != nil {
		t.Fatal(err)
	}
	r := v.Jobs[0].Read
	if r.IOBytes != 2048*4096 || r.BWBytes != 1024*4096 || r.BW != 4096 || r.IOPS != 1024 || r.Runtime != 2000 {
		t.Errorf("read %+v", r)
	}
	if r.Clat.Min != 20_000 || r.Clat.Max != 20_000+204_700 || r.Clat.Percentile["50.000000"] < 120_000 || r.Clat.Percentile["50.000000"] > 124_000 {
		t.Errorf("clat %+v", r.Clat)
	}
}

// A group's figures: counts and bandwidth add up, the runtime is the longest, and
// not more mismatches are kept than are printed.
func TestGroupFigures(t *testing.T) {
	var g Stats
	for i := range 3 {
		s := &Stats{Job: newJob(), Jobs: 1, Elapsed: time.Duration(i+1) * time.Second, Bad: 10}
		s.Dir[dirRead] = DirStats{IOs: 5, Bytes: 100, Runtime: time.Duration(3-i) * time.Second}
		s.Dir[dirRead].BW.add(1000)
		s.Dir[dirRead].BW.add(3000)
		s.Depth[2] = 4
		s.Session.PayloadCopied = 7
		s.Mismatches = make([]*Mismatch, 10)
		g.merge(s)
	}
	d := &g.Dir[dirRead]
	if d.IOs != 15 || d.Bytes != 300 || d.Runtime != 3*time.Second || d.BW.sum != 6000 || d.BW.N != 6 {
		t.Errorf("%+v", d)
	}
	if g.Jobs != 3 || g.Elapsed != 3*time.Second || g.Depth[2] != 12 || g.Session.PayloadCopied != 21 || len(g.Mismatches) != maxMismatches || g.Bad != 30 {
		t.Errorf("%+v", g)
	}
}
