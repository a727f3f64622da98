package bench

import (
	"slices"
	"strings"
	"testing"
)

// TestSequenceIsFios compares where operations go, and in which order, with fio's
// own log of them.
func TestSequenceIsFios(t *testing.T) {
	const size = 1 << 20
	jobs := []string{
		"rw=read\nbs=4k\nsize=64k",
		"rw=read:8k\nbs=4k",
		"rw=read:8k\nbs=4k\nsize=64k",
		"rw=read:12k\nbs=4k", // leads behind the volume's end and goes on at its start
		"rw=write:8k\nbs=4k\nsize=64k\noffset=64k\nloops=2",
		"rw=read:4k\nbs=4k\nsize=64k\nio_size=96k",
		"rw=read:-8k\nbs=4k\nsize=64k",
		"rw=read:-8k\nbs=4k\nsize=64k\noffset=64k",
		"rw=read:-8k\nbs=4k",
		"rw=read:-4k\nbs=4k\nsize=64k",
		"rw=read\nbs=4k\nsize=64k\nrw_sequencer=identical",
		"rw=read\nbs=4k\nsize=256k\nzonemode=strided\nzonesize=16k\nzoneskip=16k",
		"rw=read\nbs=4k\nsize=256k\nzonemode=strided\nzonesize=16k\nzonerange=32k\nzoneskip=16k",
		"rw=write\nbs=4k\nsize=256k\nzonemode=strided\nzonesize=32k\nzonerange=16k\nzoneskip=16k",
		"rw=write\nbs=16k\nsize=1m\nzonemode=strided\nzonesize=64k\nzoneskip=64k", // around the volume's end
		"rw=read\nbs=4k\noffset=128k\nsize=512k\nzonemode=strided\nzonesize=64k\nzoneskip=448k",
	}
	for i, want := range fioSequences(t, size, jobs) {
		if got := ourSequence(t, size, jobs[i]); !slices.Equal(got, want) || len(want) == 0 {
			t.Errorf("%q:\ngot  %v\nwant %v", jobs[i], got, want)
		}
	}
}

// TestRandomSequenceIsFios compares what is not left to chance: which operations
// follow the one before, and which zone each goes to.
func TestRandomSequenceIsFios(t *testing.T) {
	const size = 1 << 20
	follows := func(list []extent) (out []int64) {
		for i := 1; i < len(list); i++ {
			if step := list[i].off - list[i-1].end(); list[i-1].end() < size {
				out = append(out, min(max(step, -1), 1))
			} else {
				out = append(out, 0) // nothing can follow, and a block is drawn
			}
		}
		return out
	}
	zones := func(list []extent) (out []int64) {
		for _, e := range list {
			out = append(out, e.off/(48<<10))
		}
		return out
	}
	cases := []struct {
		job     string
		compare func([]extent) []int64
		exact   bool // nothing of what is compared is left to chance
		run     int  // operations from one drawn offset
	}{
		{"rw=randread\nbs=4k\nsize=256k\nzonemode=strided\nzonesize=16k\nzonerange=32k\nzoneskip=16k", zones, true, 0},
		{"rw=randwrite\nbs=4k\nsize=256k\nzonemode=strided\nzonesize=64k\nzonerange=32k\nzoneskip=16k\nnorandommap", zones, true, 0},
		{"rw=randread:8\nbs=4k", follows, false, 8},
		{"rw=randwrite:5\nbs=4k", follows, false, 5},
	}
	var jobs []string
	for _, tc := range cases {
		jobs = append(jobs, tc.job)
	}
	for i, list := range fioSequences(t, size, jobs) {
		tc := cases[i]
		want, got := tc.compare(list), tc.compare(ourSequence(t, size, tc.job))
		if tc.exact && !slices.Equal(got, want) || len(got) < 20 {
			t.Errorf("%q:\ngot  %v\nwant %v", tc.job, got, want)
		}
		for _, steps := range [][]int64{got, want} {
			drawn := 0
			for i, s := range steps {
				switch {
				case tc.run == 0 || s == 0:
				case (i+1)%tc.run != 0:
					t.Fatalf("%q: operation %d does not follow the one before", tc.job, i+1)
				default:
					drawn++ // by chance the next block may be drawn
				}
			}
			if tc.run > 0 && drawn < len(steps)/tc.run/2 {
				t.Errorf("%q: only %d of %d operations are elsewhere", tc.job, drawn, len(steps))
			}
		}
	}
	list := ourSequence(t, size, "rw=randread:4\nbs=4k\nsize=128k\nrw_sequencer=identical")
	seen := map[int64]int{}
	for i, e := range list {
		if seen[e.off]++; i%4 != 0 && e.off != list[i-1].off {
			t.Errorf("operation %d is at %d, not at %d as the one before", i, e.off, list[i-1].off)
		}
	}
	if len(list) != 32 || len(seen) != 8 {
		t.Errorf("%d operations at %d offsets, want 32 at 8", len(list), len(seen))
	}
}

// end is the first byte behind the operation.
func (e extent) end() int64 { return e.off + int64(e.n) }

// TestBlockAlign: offsets are multiples of blockalign, blocks of every size lie
// within the range, and the random map is off, as in fio.
func TestBlockAlign(t *testing.T) {
	cases := []struct {
		job   string
		align int64
	}{
		{"rw=randwrite\nbssplit=512/50:4k/25:8k/25\nblockalign=4k\nsize=512k\nnorandommap\nnumber_ios=1000\nio_size=1g", 4096},
		{"rw=randread\nbs=8k\nba=1k\nsize=64k\noffset=8k\nnumber_ios=500\nio_size=1g", 1024},
		{"rw=randread\nbs=4k\nba=64k\nsize=512k\nnumber_ios=500\nio_size=1g", 65536},
	}
	var jobs []string
	for _, tc := range cases {
		jobs = append(jobs, tc.job)
	}
	for i, fios := range fioSequences(t, 1<<20, jobs) {
		tc := cases[i]
		ours := ourSequence(t, 1<<20, tc.job)
		starts := func(list []extent) (n int, least int64) {
			seen, least := map[int64]bool{}, list[0].off
			for _, e := range list {
				seen[e.off], least = true, min(least, e.off)
			}
			for off := range seen {
				if (off-least)%tc.align != 0 {
					t.Errorf("%q: offset %d, others at %d", tc.job, off, least)
				}
			}
			return len(seen), least
		}
		n, least := starts(ours)
		want, fioLeast := starts(fios)
		if n != want || least != fioLeast {
			t.Errorf("%q: %d offsets from %d on, fio has %d from %d", tc.job, n, least, want, fioLeast)
		}
		for _, e := range ours {
			if e.end() > 1<<20 || e.n == 0 {
				t.Errorf("%q: %v", tc.job, e)
			}
		}
	}
}

func TestSequenceRefused(t *testing.T) {
	for text, want := range map[string]string{
		"rw=randread:0":                                                  "expected a number of operations behind randread:",
		"rw=read:x":                                                      "expected bytes to add to each offset behind read:",
		"rw=randread:4\nrw_sequencer=random":                             "expected sequential or identical",
		"zonemode=strided":                                               "needs a zonesize",
		"zonemode=none\nzonesize=1m":                                     "zonesize needs zonemode=strided",
		"zonesize=1m":                                                    "zonesize needs zonemode=strided",
		"zonemode=zbd\nzonesize=1m":                                      "t.fio:2: zonemode=zbd: would change the load, and is not offered",
		"zonemode=strided\nzonesize=1m\nzonerange=2k":                    "smaller than one block",
		"zonemode=strided\nzonesize=1m\nrw=read:4k":                      "together with zonemode=strided is not offered",
		"rw=write\nzonemode=strided\nzonesize=1m\nverify=crc32c":         "cannot be used with zonemode=strided",
		"rw=write:6k\nverify=crc32c":                                     "a multiple of the block size",
		"rw=write:-4k\nverify=crc32c":                                    "two writes of one block could overlap",
		"rw=randwrite:4\nverify=crc32c":                                  "two writes of one block could overlap",
		"rw=randwrite\nblockalign=8k\nverify=crc32c":                     "verify cannot be used with norandommap, blockalign",
		"blockalign=3":                                                   "block size 3 must lie between",
		"rw=randread\nzonemode=strided\nzonesize=10k\nzonerange=12288\n": "must be multiples of the smallest block",
	} {
		s, err := parseJobText(strings.NewReader("[j]\n"+text), "t.fio", nil)
		if err == nil {
			_, _, err = ParseJobs(s)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	f := newFake(t, 1<<20)
	for _, text := range []string{"rw=read:1000", "rw=randread\nba=1000", "zonemode=strided\nzonesize=10000"} {
		if _, err := runText(t, f, "[j]\n"+text+"\n"); err == nil || !strings.Contains(err.Error(), "must be multiples of the volume's block") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
