package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/internal/durable"
)

// TestMarkSets compares the sets with a map of blocks, through their text too.
func TestMarkSets(t *testing.T) {
	const blocks = 40
	r := rand.New(rand.NewPCG(1, 2))
	var m marks
	var want [blocks]bool
	for range 5000 {
		off := r.Int64N(blocks)
		n := 1 + r.Int64N(min(8, blocks-off))
		on := r.IntN(2) == 0
		if on {
			m = m.with(off, off+n)
		} else {
			m = m.without(off, off+n)
		}
		for i := off; i < off+n; i++ {
			want[i] = on
		}
		b, _ := m.MarshalText()
		var again marks
		if err := again.UnmarshalText(b); err != nil || fmt.Sprint(again) != fmt.Sprint(m) {
			t.Fatalf("%s: %v, %v", b, again, err)
		}
		total := int64(0)
		for i := range int64(blocks) {
			first := i
			for first < blocks && !want[first] {
				first++
			}
			at, ok := m.first(i, blocks-i)
			if ok != (first < blocks) || ok && at != first {
				t.Fatalf("%v: behind %d the first is %d, %v; want %d", m, i, at, ok, first)
			}
			if _, ok := m.first(i, 1); ok != want[i] {
				t.Fatalf("%v: %d is marked: %v", m, i, ok)
			} else if ok {
				total++
			}
		}
		if m.bytes() != total {
			t.Fatalf("%v has %d bytes", m, m.bytes())
		}
	}
	for _, bad := range []string{"1", "1-", "-1-2", "2-2", "3-2", "0-1 1-2", "4-5 0-1", "a-b", "0-1x", strings.Repeat("0-1 ", 2)} {
		if err := m.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is taken for %v", bad, m)
		}
	}
}

// unreadable reports whether a read of a block fails, as all ways to read it must agree.
func (j *journalled) unreadable(block int64) bool {
	j.t.Helper()
	var l blockdev.Lease
	leased := j.v.LeaseRead(&l, block*512, 512, blockdev.Wait)
	l.Release()
	_, read := j.v.ReadAt(make([]byte, 512), block*512)
	for _, err := range []error{leased, read} {
		if e, ok := errors.AsType[*MarkedError](err); err != nil && (!ok || e.Off != block*512 || !errors.Is(err, blockdev.ErrMedium)) || (err == nil) != (read == nil) {
			j.t.Fatalf("block %d: %v, %v", block, leased, read)
		}
	}
	return read != nil
}

func (j *journalled) mark(block, n int64) {
	j.t.Helper()
	if err := j.v.MarkBad(block*512, n*512); err != nil {
		j.t.Fatal(err)
	}
}

// stateFile is the saved state as it is on disk.
func (j *journalled) stateFile() string {
	j.t.Helper()
	b, err := os.ReadFile(j.v.state.file(".json"))
	if err != nil {
		j.t.Fatal(err)
	}
	return string(b)
}

// TestMarksAreKept: marks are there after a restart, and every kind of write ends them for
// good, data first.
func TestMarksAreKept(t *testing.T) {
	j := newJournalled(t)
	j.begin()
	ctx := context.Background()
	lend := func(fua bool) func() error {
		return func() error {
			var l blockdev.Lease
			if !j.v.Verified(8*512, 4*512) {
				t.Error("the data would be received into the device")
			}
			if err := j.v.Lender(8*512, 4*512).LeaseWrite(&l, 8*512, 4*512, blockdev.Wait); err != nil {
				return err
			}
			defer l.Release()
			var probe blockdev.Lease
			if !j.v.CommitWaits(&l, &probe, fua) || j.v.WritesAtOnce(&probe, 0, 8192) {
				t.Error("it would be committed without waiting")
			}
			return l.CommitUntil(fua, ctx)
		}
	}
	format := func() error {
		end, err := j.v.Rewriter.Begin(Rewrite{Kind: Format, Passes: 1})
		if err == nil {
			j.wait(end)
			err = end.Err()
		}
		return err
	}
	for name, write := range map[string]func() error{
		"write":      func() error { return j.v.WriteAt(fill(2048, 1), 8*512, ctx) },
		"zeroes":     func() error { return j.v.WriteZeroes(8*512, 2048, false, ctx) },
		"discard":    func() error { return j.v.Discard(8*512, 2048, ctx) },
		"lease":      lend(false),
		"lease, FUA": lend(true),
		"atomic":     func() error { _, err := j.v.Journal.Write(fill(2048, 1), 8*512, ctx); return err },
		"format":     format,
		"sanitize": func() error {
			end, err := j.v.Rewriter.Begin(Rewrite{Kind: Overwrite, Passes: 1})
			j.wait(end)
			return err
		},
		"resize, cut": func() error { return errors.Join(j.disk.Resize(4096), j.disk.Resize(64<<10)) },
	} {
		j.mark(8, 4)
		if j.v.Marked() != 2048 || !strings.Contains(j.stateFile(), `"version": 2,`) {
			t.Fatalf("%s: %s", name, j.stateFile())
		}
		j.end()
		j.begin()
		for b := int64(7); b < 13; b++ {
			if j.unreadable(b) != (b >= 8 && b < 12) {
				t.Fatalf("%s: block %d after a restart", name, b)
			}
		}
		j.steps = nil
		if err := write(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if s := strings.Join(j.steps, ", "); name == "write" && s != "write 4, flush 4, folder" {
			t.Errorf("the steps of a write: %s", s)
		}
		for range 2 {
			if j.v.Marked() != 0 || j.unreadable(9) || !strings.Contains(j.stateFile(), `"version": 1,`) || strings.Contains(j.stateFile(), "uncorrectable") || j.v.state.kept.Done != 0 {
				t.Fatalf("%s: still marked: %s", name, j.stateFile())
			}
			j.end()
			j.begin()
		}
	}
	j.end()
}

// TestMarksEveryFailure lets every step of a mark, and of a write, an atomic one too, over a
// marked block fail, and ends the process there. What was acknowledged holds; a block that is
// readable again never has what it had when it was marked; an atomic write is there as a
// whole or not at all.
func TestMarksEveryFailure(t *testing.T) {
	file := durable.SyncFile
	t.Cleanup(func() { durable.SyncFile = file })
	const block = journalledAt / 512
	old, now := fill(journalledLen, 1), fill(journalledLen, 2)
	ctx := context.Background()
	for name, act := range map[string]func(*journalled) error{
		"mark":   func(j *journalled) error { return j.v.MarkBad((block+1)*512, 512) },
		"write":  func(j *journalled) error { return j.v.WriteAt(now, journalledAt, ctx) },
		"atomic": func(j *journalled) error { _, err := j.v.Journal.Write(now, journalledAt, ctx); return err },
	} {
		for i, over := 0, false; !over; i++ {
			j := newJournalled(t)
			durable.SyncFile = func(f *os.File) error { return errors.Join(j.step("save"), file(f)) }
			j.begin()
			j.set(old)
			if name != "mark" {
				j.mark(block+1, 1)
			}
			j.steps = nil
			j.fails = func(n int) bool { return n >= i } // from here on nothing is durable any more
			err := act(j)
			took := strings.Join(j.steps, ", ")
			over = err == nil && len(j.steps) <= i
			j.fails = nil
			if j.unreadable(block+1) != (name == "mark" && err == nil || name != "mark" && err != nil) && !strings.Contains(took, "folder") {
				t.Errorf("%s, step %d: %v after %s, marked %v", name, i, err, took, j.v.Marked())
			}
			j.again()
			marked, got := j.unreadable(block+1), j.content(journalledLen)
			what := fmt.Sprintf("%s, step %d (%s): %v, then marked %v, %x", name, i, took, err, marked, []byte{got[0], got[512], got[1024]})
			switch {
			case name == "mark" && (err == nil) != marked, name != "mark" && err == nil && (marked || string(got) != string(now)):
				t.Error(what)
			case name != "mark" && !marked && got[512] == 1:
				t.Error("what was marked is back: " + what)
			case name == "atomic" && (got[0] != got[1024] || !marked && string(got) != string(now)):
				t.Error("torn: " + what)
			}
			j.end()
			if i > 40 {
				t.Fatal("it never ends")
			}
		}
	}
}

// TestMarkLimits: so many ranges, twice as many pieces, and then the write fails that would
// make more; marks that meet are one.
func TestMarkLimits(t *testing.T) {
	d, err := mem.Open(mem.Config{Size: 16 << 20, Name: "limits"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	b := serve(t, new(Registry), Config{Device: d, StateDir: t.TempDir()}, "v")
	var m marks
	for i := range int64(MaxMarks) {
		m = append(m, span{i * 4096, i*4096 + 2560})
	}
	b.v.publishMarks(m)
	if err := b.v.MarkBad(3072, 512); !errors.Is(err, ErrTooManyMarks) {
		t.Errorf("one more: %v", err)
	}
	if err := b.v.MarkBad(2560, 512); err != nil {
		t.Errorf("beside another: %v", err)
	}
	if err := b.v.MarkBad(16<<20-512, 1024); !errors.Is(err, blockdev.ErrOutOfRange) {
		t.Errorf("behind the end: %v", err)
	}
	m = nil
	for i := range int64(maxPieces) {
		m = append(m, span{i * 2048, i*2048 + 1536})
	}
	b.v.publishMarks(m)
	if err := b.v.WriteAt(make([]byte, 512), 512, context.Background()); !errors.Is(err, blockdev.ErrNoSpace) || b.v.marksNow().bytes() != maxPieces*1536 {
		t.Errorf("one piece more: %v", err)
	}
	if err := b.v.WriteAt(make([]byte, 512), 0, context.Background()); err != nil || b.v.Marked() != maxPieces*1536-512 {
		t.Errorf("no more pieces: %v", err)
	}
}

// TestWhoMarks: a volume that keeps nothing, and a logical volume, do not offer it.
func TestWhoMarks(t *testing.T) {
	lv := newRewritten(t, 1<<20)
	lv.info = func(i *blockdev.Info) { i.Backend = "lvm" }
	for name, c := range map[string]struct {
		cfg  Config
		want bool
	}{
		"kept":    {Config{Device: newDevice(t, "a"), StateDir: t.TempDir()}, true},
		"nowhere": {Config{Device: newDevice(t, "b")}, false},
		"logical": {Config{Device: lv, StateDir: t.TempDir()}, false},
		"moves":   {Config{Device: newDevice(t, "c"), Store: dirStore(t.TempDir())}, false},
	} {
		if b := serve(t, new(Registry), c.cfg, name); b.v.MayMark() != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
}

// TestMarksOfCopies: a copy fails at what is marked and mends what it writes over; such an
// error counts for nothing.
func TestMarksOfCopies(t *testing.T) {
	b := serve(t, new(Registry), Config{Device: newDevice(t, "copies"), StateDir: t.TempDir()}, "v")
	if err := errors.Join(b.v.MarkBad(0, 512), b.v.MarkBad(8192, 512)); err != nil {
		t.Fatal(err)
	}
	r, _ := b.start(nil, &Client{}, Simple, 0, 0, HoldNone)
	c := b.v.NewCopy(&r.op)
	if _, dir, err := c.Bytes(b.v, 0, b.v, 4096, 4096); dir != Reading || !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("%v, %v", dir, err)
	}
	if _, _, err := c.Bytes(b.v, 4096, b.v, 8192, 4096); err != nil || b.v.Marked() != 512 {
		t.Errorf("%v, %d bytes are marked", err, b.v.Marked())
	}
	c.End()
	r.end()
	if s := b.v.Stats(); s.ReadErrors != 0 {
		t.Errorf("%d errors", s.ReadErrors)
	}
}

// TestMarksGoAlong: the process that goes on with the volumes has the marks, those as well that a loss
// of power may bring up though they could not be saved: a write saves that its blocks are not marked.
func TestMarksGoAlong(t *testing.T) {
	dir := durable.SyncDir
	t.Cleanup(func() { durable.SyncDir = dir })
	for _, uncertain := range []bool{false, true} {
		cfg := Config{Device: newDevice(t, fmt.Sprint("along ", uncertain)), StateDir: t.TempDir()}
		was := serve(t, new(Registry), cfg, "v")
		if uncertain {
			durable.SyncDir = func(string) error { return errStep }
		}
		if err := was.v.MarkBad(512, 512); errors.Is(err, errStep) != uncertain {
			t.Fatal(err)
		}
		durable.SyncDir = dir
		if err := was.reg.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		k, err := Carry(was.v)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(k)
		var came Carried
		if err != nil || json.Unmarshal(b, &came) != nil {
			t.Fatal(err)
		}
		reg := new(Registry)
		if err := reg.Expect(cfg.Device.Info().ID, came); err != nil {
			t.Fatal(err)
		}
		now := serve(t, reg, cfg, "v")
		if now.v.readable(512, 512) == nil || now.v.Marked() != 512 {
			t.Errorf("uncertain %v: it has not", uncertain)
		}
		if err := now.v.WriteAt(make([]byte, 512), 512, nil); err != nil || now.v.Marked() != 0 {
			t.Error(err)
		}
		if _, err := os.Stat(now.v.state.file(".json")); err != nil {
			t.Errorf("uncertain %v: the write has saved nothing: %v", uncertain, err)
		}
	}
}

// FuzzMarks reads the marks of a state file.
func FuzzMarks(f *testing.F) {
	f.Add(`"0-512 1024-2048"`)
	f.Fuzz(func(t *testing.T, s string) {
		var m, again marks
		if json.Unmarshal([]byte(s), &m) != nil {
			return
		}
		b, err := json.Marshal(m)
		if err != nil || json.Unmarshal(b, &again) != nil || fmt.Sprint(m) != fmt.Sprint(again) {
			t.Errorf("%v, %s, %v", m, b, again)
		}
	})
}
