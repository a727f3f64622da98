package bench

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"softiser/initiator/blockio"
)

const writeVerify = "[j]\nrw=randwrite\nbs=4k\nsize=1m\niodepth=8\nverify=crc32c\n"

func TestVerifyDetects(t *testing.T) {
	block := func(f *fakeLUN, n int) []byte { return f.data[n*4096 : (n+1)*4096] }
	for _, tc := range []struct {
		name   string
		damage func(f *fakeLUN)
		want   []string
	}{
		{"data bit", func(f *fakeLUN) { block(f, 7)[1000] ^= 1 }, []string{"corrupt data", "offset 28672", "crc32c"}},
		{"header bit", func(f *fakeLUN) { block(f, 7)[20] ^= 1 }, []string{"corrupt header", "offset 28672"}},
		{"zeroes", func(f *fakeLUN) { clear(block(f, 7)) }, []string{"unwritten or corrupt", "offset 28672", "generation 1"}},
		{"misplaced", func(f *fakeLUN) { copy(block(f, 7), block(f, 9)) }, []string{"misplaced", "offset 28672", "the block of offset 36864"}},
		{"other seed", func(f *fakeLUN) { fillBlock(block(f, 7), 99, 7*4096, 1, 1, &Payload{}) }, []string{"foreign", "another run"}},
		{"other size", func(f *fakeLUN) { fillBlock(f.data[7*4096:7*4096+8192], defaultSeed, 7*4096, 1, 1, &Payload{}) }, []string{"wrong-sized", "8192 bytes"}},
		{"future", func(f *fakeLUN) { fillBlock(block(f, 7), defaultSeed, 7*4096, 5, 1, &Payload{}) }, []string{"unexpected", "generation 1", "generation 5"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFake(t, 1<<20)
			// The damage is done when the first verify read arrives.
			done := false
			f.hook = func(r *blockio.Request) (bool, error) {
				if r.Op == blockio.OpRead && !done {
					done = true
					tc.damage(f)
				}
				return false, nil
			}
			r, err := runText(t, f, writeVerify)
			if err != nil {
				t.Fatal(err)
			}
			s := r.Groups[0]
			if s.Bad == 0 || s.Verified != 256 || s.Code != 84 || !r.Failed() {
				t.Fatalf("bad %d of %d, code %d", s.Bad, s.Verified, s.Code)
			}
			msg := s.Mismatches[0].Error()
			for _, w := range tc.want {
				if !strings.Contains(msg, w) {
					t.Errorf("message %q lacks %q", msg, w)
				}
			}
		})
	}
}

func TestVerifyDetectsStale(t *testing.T) {
	f := newFake(t, 1<<20)
	var old []byte
	writes := 0
	f.hook = func(r *blockio.Request) (bool, error) {
		if r.Op != blockio.OpWrite {
			return false, nil
		}
		if writes++; r.Off == 81920 && writes > 256 && old == nil {
			old = r.Buf
			return true, nil // the second pass's write of this block is lost
		}
		return false, nil
	}
	r, err := runText(t, f, writeVerify+"loops=2")
	if err != nil {
		t.Fatal(err)
	}
	s := r.Groups[0]
	if s.Bad != 1 || s.Mismatches[0].Kind != "stale" || s.Mismatches[0].Off != 81920 ||
		s.Mismatches[0].Expected != "generation 2" || s.Mismatches[0].Got != "generation 1" {
		t.Fatalf("bad %d: %v", s.Bad, s.Mismatches)
	}
}

func TestVerifyFatalStopsEarly(t *testing.T) {
	f := newFake(t, 1<<20)
	f.hook = func(r *blockio.Request) (bool, error) { return r.Op == blockio.OpRead, nil }
	r, _ := runText(t, f, writeVerify+"verify_fatal=1")
	if s := r.Groups[0]; s.Bad == 0 || s.Bad > 16 {
		t.Errorf("bad %d", s.Bad)
	}
}

func TestVerifyRanges(t *testing.T) {
	f := newFake(t, 4<<20)
	r := mustRun(t, f, "[j]\nrw=randwrite\nbsrange=4k-64k\nsize=4m\niodepth=8\nverify=crc32c\nloops=2")
	if s := r.Groups[0]; s.Verified != 1024 || s.Dir[dirWrite].Bytes != 8<<20 {
		t.Errorf("verified %d blocks, wrote %d bytes", s.Verified, s.Dir[dirWrite].Bytes)
	}
	// The whole range reads back as blocks of 4 KiB, whatever sizes were written.
	mustRun(t, f, "[j]\nrw=read\nbs=4k\nsize=4m\nverify=crc32c")
}

func TestVerifyOnlyReplaysTheSequence(t *testing.T) {
	f := newFake(t, 1<<20)
	job := "[j]\nrw=randrw\nbs=4k\nsize=1m\niodepth=8\nverify=crc32c\nseed=5\n"
	mustRun(t, f, job+"do_verify=0")
	s := mustRun(t, f, job+"verify_only").Groups[0]
	if s.Dir[dirWrite].IOs != 0 || s.Verified < 80 || s.Verified > 180 {
		t.Errorf("verified %d, wrote %d", s.Verified, s.Dir[dirWrite].IOs)
	}
	f.data[12345] ^= 1
	for i := range 256 {
		f.data[i*4096+100] ^= 1
	}
	if r, _ := runText(t, f, job+"verify_only"); r.Groups[0].Bad != s.Verified {
		t.Errorf("bad %d of %d", r.Groups[0].Bad, s.Verified)
	}
}

// How often a time_based job has gone over its blocks is not in its options: any whole block of its own is right.
func TestVerifyOnlyOfTimeBased(t *testing.T) {
	f := newFake(t, 1<<20)
	const job = writeVerify + "size=64k\ntime_based\n"
	mustRun(t, f, writeVerify+"size=64k\nloops=3\ndo_verify=0") // as many as a time may have allowed
	r := mustRun(t, f, job+"runtime=1\nverify_only")
	if r.Clones[0].Verified != 16 {
		t.Errorf("%d blocks verified", r.Clones[0].Verified)
	}
	f.data[4096+100] ^= 1
	r, err := runText(t, f, job+"runtime=1\nverify_only")
	if err != nil || r.Clones[0].Bad != 1 {
		t.Errorf("a damaged block: %d bad, %v", r.Clones[0].Bad, err)
	}
}

func TestLedgerSurvives(t *testing.T) {
	f := newFake(t, 1<<20)
	state := "\nverify_state=" + filepath.Join(t.TempDir(), "ledger")
	mustRun(t, f, writeVerify+"do_verify=0\nfsync=32\nend_fsync=1\nnumber_ios=100"+state)
	if s := mustRun(t, f, writeVerify+"verify_only"+state).Groups[0]; s.Verified != 100 {
		t.Errorf("verified %d", s.Verified)
	}
	snapshot := append([]byte(nil), f.data...)
	mustRun(t, f, writeVerify+"do_verify=0"+state) // generation 2 of some, acknowledged, not flushed
	copy(f.data, snapshot)                         // the power failed
	if s := mustRun(t, f, writeVerify+"verify_only\nverify_durable"+state).Groups[0]; s.Verified != 100 {
		t.Errorf("durable: verified %d", s.Verified)
	}
	r, err := runText(t, f, writeVerify+"verify_only"+state)
	if err != nil || r.Groups[0].Bad != 256 {
		t.Errorf("acknowledged: bad %d, %v", r.Groups[0].Bad, err)
	}
	for text, want := range map[string]string{
		"[j]\nrw=write\nbs=8k\nsize=1m\nverify=crc32c" + state:             "another bs",
		"[j]\nrw=write\nbs=4k\nsize=512k\nverify=crc32c" + state:           "another bs",
		writeVerify + "verify_only\nverify_state=" + t.TempDir() + "/none": "no such file",
	} {
		if _, err := runText(t, f, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A ledger for which there is no space is an error before the run, not a fault in the middle of it.
func TestLedgerWithoutSpace(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(dir, "ledger")
	for range 2 { // the second finds what the first one has left
		l, err := openLedger(path, 1, 0, 4096, 1<<14, false)
		if err == nil {
			l.Close()
		}
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v, want one about the space for %s", err, path)
		}
	}
	l, err := openLedger(path, 1, 0, 4096, 1<<10, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A flush makes durable what is in the target's cache: not what an earlier run has left there, which a loss of
// power may have taken meanwhile, nor what was there before a flush that has failed.
func TestFlushCoversNothingLost(t *testing.T) {
	t.Run("earlier run", func(t *testing.T) {
		f := newFake(t, 1<<20)
		state := "\nverify_state=" + filepath.Join(t.TempDir(), "ledger")
		mustRun(t, f, writeVerify+"do_verify=0\nend_fsync=1"+state)
		flushed := append([]byte(nil), f.data...)
		mustRun(t, f, writeVerify+"do_verify=0"+state)
		copy(f.data, flushed) // the power failed
		mustRun(t, f, writeVerify+"do_verify=0\nend_fsync=1\nnumber_ios=10"+state)
		if s := mustRun(t, f, writeVerify+"verify_only\nverify_durable"+state).Groups[0]; s.Verified != 256 {
			t.Errorf("verified %d", s.Verified)
		}
	})
	t.Run("failed flush", func(t *testing.T) {
		f := newFake(t, 1<<20)
		state := "\nverify_state=" + filepath.Join(t.TempDir(), "ledger")
		var flushed []byte
		flushes := 0
		f.hook = func(r *blockio.Request) (bool, error) {
			if r.Op != blockio.OpFlush {
				return false, nil
			}
			if flushes++; flushes == 40 {
				copy(f.data, flushed)
				return false, blockio.ErrCacheLost
			}
			flushed = append(flushed[:0], f.data...)
			return false, nil
		}
		r, err := runText(t, f, writeVerify+"do_verify=0\nfsync=10\nend_fsync=1\nloops=2\ncontinue_on_error=all"+state)
		if err != nil || !errors.Is(r.Err(), blockio.ErrCacheLost) || r.Groups[0].Dir[dirWrite].IOs != 512 {
			t.Fatalf("%v, %v", err, r.Err())
		}
		if s := mustRun(t, f, writeVerify+"verify_only\nverify_durable"+state).Groups[0]; s.Verified != 256 {
			t.Errorf("verified %d", s.Verified)
		}
	})
}

// Clones that share a session are told of a lost cache each: what one of them has flushed says nothing to another.
func TestClonesFlushForThemselves(t *testing.T) {
	f := newFake(t, 1<<20)
	users := map[*blockio.Flusher]bool{}
	f.hook = func(r *blockio.Request) (bool, error) {
		if r.Op == blockio.OpFlush {
			users[r.Flusher] = true
		}
		return false, nil
	}
	mustRun(t, f, "[j]\nrw=write\nbs=4k\nnumjobs=3\nsessions=1\noffset_increment=256k\nsize=256k\nverify=crc32c\ndo_verify=0\nend_fsync=1")
	if len(users) != 3 || users[nil] {
		t.Errorf("%d users flushed for 3 clones", len(users))
	}
}

// A verification that had nothing to go by says so, and is no error.
func TestNothingWasVerified(t *testing.T) {
	f := newFake(t, 1<<20)
	state := "\nverify_state=" + filepath.Join(t.TempDir(), "ledger")
	mustRun(t, f, writeVerify+"do_verify=0\nnumber_ios=100\nend_fsync=0"+state) // killed before its first flush
	for text, want := range map[string]string{
		"verify_only" + state:                 "",
		"verify_only\nverify_durable" + state: "nothing was verified: of the blocks that were read none is known to have been flushed",
		"do_verify=0\nnumber_ios=1":           "",
	} {
		r := mustRun(t, f, writeVerify+text)
		var report, js strings.Builder
		r.WriteText(&report)
		if err := r.WriteJSON(&js, nil, false); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Jobs []struct {
				Verify struct {
					Blocks uint64
					Note   string
				}
			}
		}
		if err := json.Unmarshal([]byte(js.String()), &got); err != nil {
			t.Fatal(err)
		}
		if v := got.Jobs[0].Verify; v.Note != want || want != "" && v.Blocks != 0 {
			t.Errorf("%q: %+v, want %q", text, v, want)
		}
		if said := strings.Contains(report.String(), "nothing was verified"); said != (want != "") {
			t.Errorf("%q: %s", text, &report)
		}
	}
}

// A job that only reads goes by a ledger that is there: with a new one it would find every block right.
func TestReadersNeedALedger(t *testing.T) {
	f := newFake(t, 1<<20)
	path := filepath.Join(t.TempDir(), "mistyped")
	reader := "[j]\nrw=read\nbs=4k\nsize=1m\nverify=crc32c\nverify_state=" + path
	if _, err := runText(t, f, reader); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want an error: there is no ledger", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a ledger has been made")
	}
	mustRun(t, f, writeVerify+"number_ios=1\nend_fsync=0\nverify_state="+path)
	if r := mustRun(t, f, reader); r.Clones[0].Verified != 1 {
		t.Errorf("%d blocks verified, want that of the ledger", r.Clones[0].Verified)
	}
	mustRun(t, f, writeVerify+"do_verify=0\nnumber_ios=1\nend_fsync=0\noffset=512k\nsize=64k\nverify_state="+path+"2")
	r := mustRun(t, f, "[j]\nrw=read\nbs=4k\noffset=512k\nsize=64k\nnumber_ios=1\nverify=crc32c\nrandrepeat=1\nverify_state="+path+"2")
	if s := r.Clones[0]; s.Verified == 0 && s.verifiedNothing() == "" {
		t.Error("a reader that knew of no block that it read does not say so")
	}
}

// A write that was never acknowledged may be torn; it may not be older than
// what was acknowledged.
func TestWindow(t *testing.T) {
	l, err := newLedger(7, 0, 4096, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := make([]byte, 4096)
	l.issue(4096)
	l.ack(4096, false)
	l.issue(4096)
	l.ack(4096, false)
	l.issue(4096) // generation 3, not acknowledged
	w, known := l.window(4096, false)
	if !known || w.lo != 2 || w.hi != 3 || !w.torn {
		t.Fatalf("window %+v", w)
	}
	for gen := uint32(1); gen <= 4; gen++ {
		fillBlock(p, 7, 4096, gen, 1, &Payload{})
		if m := checkBlock(p, 7, 4096, w); (m == nil) != (gen == 2 || gen == 3) {
			t.Errorf("generation %d: %v", gen, m)
		}
	}
	fillBlock(p, 7, 4096, 3, 1, &Payload{})
	p[4000] ^= 1
	if m := checkBlock(p, 7, 4096, w); m != nil {
		t.Errorf("torn: %v", m)
	}
	if _, known := l.window(0, false); known {
		t.Error("a block never written is known")
	}
}

func FuzzCheckBlock(f *testing.F) {
	p := make([]byte, 512)
	fillBlock(p, 1, 512, 1, 1, &Payload{})
	f.Add(p, int64(512))
	f.Add(make([]byte, 512), int64(0))
	f.Fuzz(func(t *testing.T, p []byte, off int64) {
		if len(p) < 512 || len(p) > 8192 {
			return
		}
		if m := checkBlock(p, 1, off, window{lo: 1, hi: 1}); m == nil {
			q := make([]byte, len(p))
			fillBlock(q, 1, off, 1, int(p[32])|int(p[33])<<8, &Payload{})
			if string(p[:16]) != string(q[:16]) {
				t.Errorf("accepted a foreign block")
			}
		}
	})
}

func needFio(t *testing.T) string {
	path, err := exec.LookPath("fio")
	if err != nil {
		t.Skip("fio is not installed (apt-get install fio)")
	}
	return path
}

// fio accepts what we wrote, and we accept what fio wrote.
func TestFioVerifiesOurBlocks(t *testing.T) {
	fio := needFio(t)
	f := newFake(t, 1<<20)
	mustRun(t, f, writeVerify)
	img := filepath.Join(t.TempDir(), "img")
	check := func(rw string, extra ...string) (string, error) {
		args := append([]string{"--name=v", "--verify_state_save=0", "--filename=" + img, "--size=1m", "--bs=4k", "--verify=crc32c", "--rw=" + rw}, extra...)
		out, err := exec.Command(fio, args...).CombinedOutput()
		return string(out), err
	}
	if err := os.WriteFile(img, f.data, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := check("read"); err != nil {
		t.Fatalf("fio does not accept our blocks: %v\n%s", err, out)
	}
	f.data[5000] ^= 1
	if err := os.WriteFile(img, f.data, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := check("read"); err == nil {
		t.Fatalf("fio accepts a damaged block:\n%s", out)
	}
	if out, err := check("randwrite", "--do_verify=0"); err != nil {
		t.Fatalf("fio write: %v\n%s", err, out)
	}
	b, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	copy(f.data, b)
	mustRun(t, f, "[j]\nrw=read\nbs=4k\nsize=1m\nverify=crc32c")
}

// Every key of fio's JSON is in ours, at the same place, and ours has only the
// additions that are documented.
func TestJSONKeysAreFios(t *testing.T) {
	fio := needFio(t)
	img := filepath.Join(t.TempDir(), "img")
	for _, extra := range [][]string{nil, {"lat_percentiles=1"}, {"fsync=4"}} {
		args := []string{"--name=j", "--filename=" + img, "--size=1m", "--bs=4k", "--rw=randrw", "--iodepth=4", "--ioengine=libaio", "--output-format=json"}
		job := "[j]\nrw=randrw\nbs=4k\nsize=1m\niodepth=4\n"
		for _, x := range extra {
			args = append(args, "--"+x)
			job += x + "\n"
		}
		out, err := exec.Command(fio, args...).Output()
		if err != nil {
			t.Fatalf("fio: %v", err)
		}
		var theirs, ours any
		if err := json.Unmarshal(out, &theirs); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := mustRun(t, newFake(t, 1<<20), job).WriteJSON(&b, nil, false); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(b.String()), &ours); err != nil {
			t.Fatal(err)
		}
		a, o := map[string]bool{}, map[string]bool{}
		keys("", theirs, a)
		keys("", ours, o)
		for k := range a {
			if !o[k] && !strings.HasPrefix(k, ".disk_util") && !strings.Contains(k, ".job options.") {
				t.Errorf("%v: fio has %s, we have not", extra, k)
			}
		}
		for k := range o {
			if !a[k] && !strings.Contains(k, ".job options.") && !strings.HasPrefix(k, ".jobs[].session") {
				t.Errorf("%v: we have %s, fio has not", extra, k)
			}
		}
	}
}

// keys collects the paths of all keys.
func keys(path string, v any, set map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			set[path+"."+k] = true
			keys(path+"."+k, x, set)
		}
	case []any:
		for _, x := range v {
			keys(path+"[]", x, set)
		}
	}
}

func TestTerseFieldsAreFios(t *testing.T) {
	fio := needFio(t)
	img := filepath.Join(t.TempDir(), "img")
	out, err := exec.Command(fio, "--name=j", "--filename="+img, "--size=1m", "--bs=4k", "--rw=randrw", "--minimal", "--disk_util=0").Output()
	if err != nil {
		t.Fatalf("fio: %v", err)
	}
	var b strings.Builder
	mustRun(t, newFake(t, 1<<20), "[j]\nrw=randrw\nbs=4k\nsize=1m\n").WriteTerse(&b)
	theirs, ours := strings.Split(strings.TrimSpace(string(out)), ";"), strings.Split(strings.TrimSpace(b.String()), ";")
	if len(theirs) != len(ours) {
		t.Errorf("fio has %d fields, we have %d", len(theirs), len(ours))
	}
}
