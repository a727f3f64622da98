package bench

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"softiser/initiator/blockio"
	"softiser/internal/alloctest"
)

func parseText(t testing.TB, text string) []*Job {
	t.Helper()
	s, err := parseJobText(strings.NewReader(text), "test.fio", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	jobs, _, err := ParseJobs(s)
	if err != nil {
		t.Fatal(err)
	}
	return jobs
}

func TestRunDirections(t *testing.T) {
	for _, tc := range []struct {
		text                string
		reads, writes, trim uint64
	}{
		{"[j]\nrw=read\nbs=4k\nsize=1m\niodepth=8", 256, 0, 0},
		{"[j]\nrw=write\nbs=4k\nsize=1m\niodepth=8", 0, 256, 0},
		{"[j]\nrw=randread\nbs=8k\nsize=1m\niodepth=300", 128, 0, 0},
		{"[j]\nrw=randwrite\nbs=4k\nsize=1m\niodepth=8\nverify=crc32c", 256, 256, 0},
		{"[j]\nrw=randwrite\nbs=4k\nsize=1m\niodepth=8\nverify=crc32c\nloops=3", 256, 768, 0},
		{"[j]\nrw=randwrite\nbs=4k\nsize=1m\niodepth=8\nverify=crc32c\ndo_verify=0", 0, 256, 0},
		{"[j]\nrw=trim\nbs=64k\nsize=1m", 0, 0, 16},
		{"[j]\nrw=randtrim\nbs=64k\nsize=1m\niodepth=4", 0, 0, 16},
		{"[j]\nrw=read\nbs=4k\nio_size=100k\nsize=16k", 25, 0, 0},
		{"[j]\nrw=read\nbs=4k\nnumber_ios=7", 7, 0, 0},
		{"[j]\nrw=randread\nnorandommap\nbs=4k\nsize=1m", 256, 0, 0},
		{"[j]\nrw=read\nbs=4k\nsize=50%\nnumjobs=4\ngroup_reporting", 4 * 256, 0, 0},
	} {
		for _, inline := range []bool{false, true} {
			f := newFake(t, 2<<20)
			f.inline = inline
			r := mustRun(t, f, tc.text)
			if len(r.Groups) != 1 {
				t.Fatalf("%q: %d groups", tc.text, len(r.Groups))
			}
			s := r.Groups[0]
			if s.Dir[dirRead].IOs != tc.reads || s.Dir[dirWrite].IOs != tc.writes || s.Dir[dirTrim].IOs != tc.trim {
				t.Errorf("%q inline=%v: %d reads, %d writes, %d trims", tc.text, inline, s.Dir[dirRead].IOs, s.Dir[dirWrite].IOs, s.Dir[dirTrim].IOs)
			}
		}
	}
}

func TestRunMixed(t *testing.T) {
	for _, rw := range []string{"rw", "randrw"} {
		f := newFake(t, 8<<20)
		s := mustRun(t, f, "[j]\nbs=4k\niodepth=16\nrwmixread=70\nverify=crc32c\ndo_verify=0\nrw="+rw).Groups[0]
		reads, writes := s.Dir[dirRead].IOs, s.Dir[dirWrite].IOs
		if reads+writes != 2048 || reads < 1300 || reads > 1560 {
			t.Errorf("%s: %d reads and %d writes of 2048 at 70 %%", rw, reads, writes)
		}
	}
}

func TestRunDepth(t *testing.T) {
	f := newFake(t, 4<<20)
	mustRun(t, f, "[j]\nrw=randread\nbs=4k\niodepth=16")
	if p := f.peak.Load(); p != 16 {
		t.Errorf("peak depth %d, want 16", p)
	}
	if n := f.closed.Load(); n != 1 {
		t.Errorf("closed %d times", n)
	}
}

func TestRunFsync(t *testing.T) {
	f := newFake(t, 1<<20)
	s := mustRun(t, f, "[j]\nrw=write\nbs=4k\niodepth=4\nfsync=8\nend_fsync=1").Groups[0]
	if n := f.counts[blockio.OpFlush].Load(); n < 20 || n > 33 {
		t.Errorf("%d flushes of 256 writes with fsync=8", n)
	}
	if s.Dir[dirSync].IOs == 0 || s.Dir[dirWrite].IOs != 256 {
		t.Errorf("sync %d, writes %d", s.Dir[dirSync].IOs, s.Dir[dirWrite].IOs)
	}
}

func TestRunFUA(t *testing.T) {
	f := newFake(t, 1<<20)
	plain := 0
	f.hook = func(r *blockio.Request) (bool, error) {
		if r.Op == blockio.OpWrite && !r.FUA {
			plain++
		}
		return false, nil
	}
	mustRun(t, f, "[j]\nrw=write\nbs=4k\nsync=1")
	if plain != 0 {
		t.Errorf("%d writes without FUA", plain)
	}
}

func TestRunErrorStops(t *testing.T) {
	f := newFake(t, 1<<20)
	f.hook = func(r *blockio.Request) (bool, error) {
		if r.Off == 40960 {
			return true, syscall.ENOSPC
		}
		return false, nil
	}
	r, err := runText(t, f, "[j]\nrw=write\nbs=4k\niodepth=1")
	if err != nil {
		t.Fatal(err)
	}
	s := r.Groups[0]
	if s.Errors != 1 || s.Code != int(syscall.ENOSPC) || s.Dir[dirWrite].IOs != 10 {
		t.Errorf("errors %d, code %d, writes %d", s.Errors, s.Code, s.Dir[dirWrite].IOs)
	}
	if err := r.Err(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "offset 40960") {
		t.Errorf("result %v", err)
	}
	r, _ = runText(t, f, "[j]\nrw=write\nbs=4k\niodepth=1\ncontinue_on_error=all")
	if s := r.Groups[0]; s.Errors != 1 || s.Dir[dirWrite].IOs != 255 {
		t.Errorf("continue: errors %d, writes %d", s.Errors, s.Dir[dirWrite].IOs)
	}
}

func TestRunRefused(t *testing.T) {
	f := newFake(t, 1<<20)
	ro := newFake(t, 1<<20)
	ro.info.ReadOnly = true
	noTrim := newFake(t, 1<<20)
	noTrim.info.Discard = false
	named := newFake(t, 1<<20)
	named.names = []string{"t10.x", "naa.6001405"}
	const elsewhere = "[a]\nrw=write\nverify=crc32c\nuri=fake://a\n[b]\nrw=write\nuri=fake://b"
	others := map[string]*fakeLUN{"fake://a": newFake(t, 1<<20), "fake://b": newFake(t, 1<<20)}
	for _, o := range others {
		o.names = []string{"t10.x"} // says nothing
	}
	if r, err := Run(t.Context(), parseText(t, elsewhere), Config{Open: func(_ context.Context, url string, _ OpenOptions) (LUN, error) { return others[url], nil }}); err != nil || r.Failed() {
		t.Errorf("two volumes: %v", err)
	}
	for _, tc := range []struct {
		f          *fakeLUN
		text, want string
	}{
		{f, "[j]\nsize=2m", "does not fit"},
		{f, "[j]\noffset=2m", "offset 2097152 lies behind the end"},
		{f, "[j]\noffset=1m", "smaller than one block"},
		{f, "[j]\nbs=4k\noffset=100", "multiples of the volume's block"},
		{ro, "[j]\nrw=write", "read-only"},
		{noTrim, "[j]\nrw=trim", "does not support trim"},
		{f, "[a]\nrw=write\nverify=crc32c\n[b]\nrw=write", "overwrites at the same time"},
		{f, "[a]\nrw=write\nverify=crc32c\n[b]\nrw=write\nuri=fake://", "overwrites at the same time"},
		{named, elsewhere, "overwrites at the same time"},
		{f, "[a]\nrw=write\nverify=crc32c\nuri=iser://Host/iqn.2026-11.x:y/0\n[b]\nrw=write\nuri=iser://host:3260/iqn.2026-11.x:y/0", "overwrites at the same time"},
		{f, "[a]\nrw=write\nverify=crc32c\nverify_only\n[b]\nrw=write", "overwrites at the same time"},
	} {
		_, err := runText(t, tc.f, tc.text)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: error %v, want %q", tc.text, err, tc.want)
		}
	}
}

func TestRunSessions(t *testing.T) {
	for _, tc := range []struct {
		jobs, sessions, want int
	}{{1, 0, 1}, {4, 0, 4}, {1, 3, 3}, {4, 2, 2}, {3, 5, 5}} {
		jobs := parseText(t, "[j]\nrw=read")
		jobs[0].NumJobs, jobs[0].Sessions = tc.jobs, tc.sessions
		var clones []*Job
		for range tc.jobs {
			clones = append(clones, jobs[0])
		}
		luns, wants, err := plan(clones, "fake://")
		if err != nil || len(wants) != tc.want {
			t.Fatalf("%+v: %d sessions, %v", tc, len(wants), err)
		}
		served := map[*LUN]bool{}
		for _, w := range wants {
			for _, d := range w.dst {
				served[d] = true
			}
		}
		for i := range luns {
			for k := range luns[i] {
				if !served[&luns[i][k]] {
					t.Errorf("%+v: clone %d has an unopened session %d", tc, i, k)
				}
			}
		}
	}
}

// A session that clones share counts once.
func TestSessionCounters(t *testing.T) {
	f := newFake(t, 1<<20)
	r := mustRun(t, f, "[j]\nrw=read\nnumjobs=4\nsessions=1\ngroup_reporting")
	if s := r.Groups[0].Session; s.Commands != 7 || s.PayloadCopied != 3 {
		t.Errorf("%+v", s)
	}
}

func TestStages(t *testing.T) {
	f := newFake(t, 1<<20)
	r := mustRun(t, f, "[global]\nbs=4k\ngroup_reporting\n[a]\nrw=write\nnumjobs=2\n[b]\nstonewall\nrw=read")
	if len(r.Groups) != 2 || r.Groups[0].Jobs != 2 || r.Groups[1].Job.Name != "b" || r.Groups[1].Job.group != 1 {
		t.Errorf("groups: %d", len(r.Groups))
	}
}

func TestNoAllocationPerIO(t *testing.T) {
	t.Chdir(t.TempDir())
	f := newFake(t, 1<<20)
	f.inline = true
	for _, text := range []string{
		"verify=crc32c\nfsync=16\ndo_verify=0",
		"dedupe_percentage=30\nbuffer_compress_percentage=50",
		"flow=1\nrate_min=1",
		"zonemode=strided\nzonesize=64k",
		"write_lat_log\nwrite_bw_log\nlog_offset=1",
	} {
		jobs := parseText(t, "[j]\nrw=randwrite\nbs=4k\niodepth=8\nloops=1000\n"+text)
		few := alloctest.PerRun(3, func() { jobs[0].Loops = 2; run1(t, f, jobs) })
		many := alloctest.PerRun(3, func() { jobs[0].Loops = 42; run1(t, f, jobs) })
		if perIO := (many - few) / (40 * 256); perIO > 0.01 {
			t.Errorf("%s: %.3f allocations per operation", text, perIO)
		}
	}
}

func run1(t testing.TB, f *fakeLUN, jobs []*Job) {
	if _, err := Run(t.Context(), jobs, Config{Open: f.open, URL: "fake://"}); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkEngine(b *testing.B) {
	for _, verify := range []string{"none", "crc32c"} {
		b.Run("verify="+verify, func(b *testing.B) {
			f := newFake(b, 64<<20)
			f.inline = true
			f.hook = func(*blockio.Request) (bool, error) { return true, nil }
			jobs := parseText(b, "[j]\nrw=randwrite\nbs=4k\niodepth=32\ndo_verify=0\nloops=100000000\nverify="+verify)
			jobs[0].NumberIOs = int64(b.N)
			b.ReportAllocs()
			b.ResetTimer()
			run1(b, f, jobs)
		})
	}
}
