package bench

import (
	"encoding/xml"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A long run has longer ticks, not more, and none of its operations is lost.
func TestTimelineFolds(t *testing.T) {
	started := time.Now()
	tl := newTimeline(started)
	shares := []*ticker{tl.ticker(started), tl.ticker(started.Add(3 * time.Second))}
	n := 0
	for at := time.Duration(0); at < 500*time.Second; at += 70 * time.Millisecond {
		for _, s := range shares {
			s.add(at, dirWrite, 4096, int64(at)/100)
			n++
		}
	}
	for _, s := range shares {
		s.flush()
	}
	if len(tl.ticks) > maxTicks || len(tl.ticks) < maxTicks/2 || tl.per != 16 {
		t.Errorf("%d ticks of %v", len(tl.ticks), tl.length())
	}
	sum, bytes := uint64(0), int64(0)
	for _, x := range tl.ticks {
		if x.lat[dirRead] != nil {
			t.Fatal("something was read")
		}
		sum += x.lat[dirWrite].N()
		bytes += x.bytes[dirWrite]
	}
	if sum != uint64(n) || bytes != int64(n)*4096 {
		t.Errorf("%d operations and %d bytes of %d", sum, bytes, n)
	}
	percentiles, bw, ios := tl.series(int(dirWrite))
	rate := float64(2*4096) / 0.07
	for i := 10; i < len(bw)-5; i++ { // past the start of the second clone
		if math.Abs(bw[i].Y-rate) > rate/10 || math.Abs(ios[i].Y-rate/4096) > rate/40960 || bw[i].X < ios[i-1].X {
			t.Fatalf("tick %d: %v, %v", i, bw[i], ios[i])
		}
		if p := percentiles[0][i]; math.Abs(p.Y/1e7-p.X) > 15 { // the latencies are parts of the times; the second clone is 3 s behind, buckets are 1/64 wide
			t.Fatalf("tick %d: %v", i, p)
		}
	}
}

// Ticks without operations are rates of zero and gaps of latencies, and the last one is as long
// as the run.
func TestTimelineSeries(t *testing.T) {
	started := time.Now()
	tl := newTimeline(started)
	s := tl.ticker(started)
	s.add(50*time.Millisecond, dirRead, 1000, 7000)
	s.add(250*time.Millisecond, dirRead, 1000, 9000)
	s.add(280*time.Millisecond, dirRead, 1000, 9000)
	s.flush()
	percentiles, bw, ios := tl.series(int(dirRead))
	if len(bw) != 3 || bw[0].Y != 10000 || bw[1].Y != 0 || ios[1].Y != 0 || math.Abs(bw[2].Y-25000) > 1 || math.Abs(ios[2].Y-25) > 0.1 {
		t.Errorf("%v %v", bw, ios)
	}
	for _, p := range percentiles {
		if math.Abs(p[0].Y-7000) > 100 || !math.IsNaN(p[1].Y) || math.Abs(p[2].Y-9000) > 100 || math.Abs(p[0].X-0.05) > 1e-9 {
			t.Errorf("%v", p)
		}
	}
	s.add(301*time.Millisecond, dirRead, 1, 1)
	s.flush()
	if _, bw, _ = tl.series(int(dirRead)); len(bw) != 3 {
		t.Errorf("a tick of a millisecond has a rate: %v", bw)
	}
}

// --plot writes an image of what the jobs have done, even when they are refused nothing and do
// little.
func TestPlotOption(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "run.svg")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	jobs := parseText(t, "[<a>]\nrw=randrw\nbs=4k\niodepth=4\nnumber_ios=200\n")
	rep, err := Run(t.Context(), jobs, Config{Open: newFake(t, 1<<20).open, URL: "fake://", Plot: f})
	if err != nil || f.Close() != nil || rep.Failed() {
		t.Fatal(err, rep)
	}
	svg, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Completion latency", "Bandwidth", "Operations", "read p99.9", "write p50", "&lt;a&gt;: rw=randrw", "read: "} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("there is no %q in\n%s", want, svg)
		}
	}
	if err := xml.Unmarshal(svg, new(struct{})); err != nil {
		t.Error(err)
	}
	c, args, err := parseCommand(t, "iser://h/iqn.2026-11.x:y/0", "--plot="+filepath.Join(dir, "none", "x.svg"))
	if err != nil || c.plot == "" || len(args) != 1 {
		t.Fatal(err, args)
	}
}
