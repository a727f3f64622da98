package bench

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// contentOf is how a volume's blocks of 4 KiB look to something that stores
// duplicates once and compresses: shares of all, 0 to 1.
func contentOf(data []byte) (distinct, packed float64) {
	seen := map[[32]byte]bool{}
	var out bytes.Buffer
	w, _ := flate.NewWriter(nil, flate.BestSpeed)
	blocks := 0
	for ; len(data) >= 4096; data = data[4096:] {
		seen[sha256.Sum256(data[:4096])] = true
		w.Reset(&out)
		w.Write(data[:4096])
		w.Close()
		blocks++
	}
	return float64(len(seen)) / float64(blocks), float64(out.Len()) / 4096 / float64(blocks)
}

// TestPayloadIsFios lets fio and this package write the same job, and compares how
// much of it is duplicate and how much can be compressed; where nothing is left to
// chance, every byte.
func TestPayloadIsFios(t *testing.T) {
	if testing.Short() {
		t.Skip("megabytes of data computed by one goroutine, beside fio's")
	}
	const size = 4 << 20
	dir := t.TempDir()
	words := filepath.Join(dir, "words")
	if err := os.WriteFile(words, []byte("some words"), 0o644); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		text  string
		exact bool
	}{
		{"", false},
		{"zero_buffers", true},
		{"zero_buffers\nscramble_buffers=1", false},
		{"scramble_buffers=0", false},
		{"scramble_buffers=0\nrefill_buffers", false},
		{`buffer_pattern="abcd"-12345678`, true},
		{`buffer_pattern=0x01`, true},
		{`buffer_pattern=0xdeadbeef010`, true},
		{`buffer_pattern="x"0xFF0X12"yz"66`, true},
		{`buffer_pattern=-100xab"1""2"`, true},
		{"buffer_pattern='" + words + "'", true},
		{`buffer_pattern=0`, true},
		{"buffer_compress_percentage=50", false},
		{"buffer_compress_percentage=80\nbuffer_compress_chunk=4k", false},
		{"buffer_compress_percentage=100", true},
		{"buffer_compress_percentage=30\nbuffer_pattern=0xff", false},
		{"dedupe_percentage=40", false},
		{"dedupe_percentage=100", false},
		{"dedupe_percentage=60\nbuffer_compress_percentage=50", false},
		{"dedupe_percentage=50\ndedupe_mode=working_set\ndedupe_working_set_percentage=10", false},
	}
	const job = "rw=write\nbs=4k\nsize=4m\n"
	text := "[global]\nthread\nioengine=psync\nfallocate=none\n"
	for i, tc := range cases {
		sparse(t, dir, fmt.Sprint("f", i), size)
		text += fmt.Sprintf("[j%d]\nfilename=f%d\n%s%s\n", i, i, job, tc.text)
	}
	fioRun(t, dir, text)
	for i, tc := range cases {
		want, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("f", i)))
		if err != nil {
			t.Fatal(err)
		}
		f := newFake(t, size)
		f.inline = true
		mustRun(t, f, "[j]\n"+job+tc.text+"\n")
		if tc.exact && !bytes.Equal(f.data, want) {
			t.Errorf("%q: % x…, fio's % x…", tc.text, f.data[:16], want[:16])
		}
		d, p := contentOf(f.data)
		fd, fp := contentOf(want)
		if math.Abs(d-fd) > 0.06 || math.Abs(p-fp) > 0.04 {
			t.Errorf("%q: %.3f of the blocks differ and %.3f is left by compression; fio's %.3f and %.3f", tc.text, d, p, fd, fp)
		}
	}
}

// Every write of the working set of all jobs together can be a duplicate of
// another job's.
func TestDedupeGlobal(t *testing.T) {
	for _, tc := range []struct {
		global string
		common bool
	}{{"dedupe_global=1", true}, {"dedupe_global=0", false}} {
		f := newFake(t, 4<<20)
		f.inline = true
		mustRun(t, f, "[j]\nrw=write\nbs=4k\nsize=2m\nnumjobs=2\noffset_increment=2m\ndedupe_percentage=50\ndedupe_mode=working_set\ndedupe_working_set_percentage=50\n"+tc.global+"\n")
		first := map[[32]byte]bool{}
		for at := 0; at < 2<<20; at += 4096 {
			first[sha256.Sum256(f.data[at:at+4096])] = true
		}
		common := 0
		for at := 2 << 20; at < 4<<20; at += 4096 {
			if first[sha256.Sum256(f.data[at:at+4096])] {
				common++
			}
		}
		if (common > 50) != tc.common || !tc.common && common > 0 {
			t.Errorf("%s: %d blocks of one job are the other's, too", tc.global, common)
		}
	}
}

// A mixed load writes its pattern although its reads use the same buffers, and
// verified blocks are as compressible as they are asked to be.
func TestPayloadBesideReadsAndHeaders(t *testing.T) {
	f := newFake(t, 1<<20)
	f.inline = true
	mustRun(t, f, "[j]\nrw=randrw\nbs=4k\nbuffer_pattern=0x5a\nnorandommap\nio_size=4m\n")
	for at := 0; at < len(f.data); at += 4096 {
		if b := f.data[at]; b != 0 && b != 0x5a || f.data[at+4095] != b {
			t.Fatalf("block at %d begins with %#x", at, b)
		}
	}
	mustRun(t, f, "[j]\nrw=write\nbs=4k\nverify=crc32c\nbuffer_compress_percentage=75\n")
	if d, p := contentOf(f.data); d != 1 || p < 0.24 || p > 0.29 {
		t.Errorf("%.3f differ, %.3f is left by compression", d, p)
	}
}

func TestPatterns(t *testing.T) {
	for text, want := range map[string][]byte{
		`"abcd"`:             []byte("abcd"),
		`-1024`:              {0, 0xfc, 0xff, 0xff},
		`66`:                 {0x42},
		`0xFF0X1`:            {0xff, 1},
		`-100xab"1"`:         {0xf6, 0xff, 0xff, 0xff, 0xab, '1'},
		`0xfefefefefefefefe`: bytes.Repeat([]byte{0xfe}, 8),
		`0x123`:              {0x01, 0x23},
		`0`:                  {0},
		`65536`:              {0, 0, 1},
	} {
		j := newJob()
		if err := setPattern(j, text); err != nil || !slices.Equal(j.Payload.pattern, want) {
			t.Errorf("%s: % x, %v, want % x", text, j.Payload.pattern, err, want)
		}
	}
	for _, text := range []string{``, `"abc`, `0x`, `0xgg`, `%o`, `x`, `99999999999`, `'/no/such/file'`, `"` + strings.Repeat("a", 513) + `"`} {
		if err := setPattern(newJob(), text); err == nil {
			t.Errorf("%s: accepted", text)
		}
	}
	for text, want := range map[string]string{
		"buffer_compress_percentage=101":                        "must lie between 0 and 100",
		"dedupe_percentage=-1":                                  "dedupe_percentage -1 must lie between 0 and 100",
		"dedupe_mode=some":                                      "expected repeat or working_set",
		"dedupe_percentage=50\ndedupe_mode=working_set":         "needs a size",
		"rw=write\nverify=crc32c\ndedupe_percentage=1\nsize=1m": "cannot be used with verify",
		"size=1m\ndedupe_percentage=60\ndedupe_mode=working_set\ndedupe_working_set_percentage=41": "together at most 100",
	} {
		s, err := parseJobText(strings.NewReader("[j]\n"+text), "t.fio", nil)
		if err == nil {
			_, _, err = ParseJobs(s)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
