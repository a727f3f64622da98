package volume

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/internal/durable"
	"softiser/target/internal/statefile"
)

// journalled is a volume whose device and undo journal note what is done to them, and fail
// where a test wants it. Its device outlives the volume, as a disk does.
type journalled struct {
	t     *testing.T
	cfg   Config
	disk  *mem.Device
	steps []string
	fails func(step int) bool // nil: none
	files int                 // that are open
	old   []byte              // what the head of the journal was before it was cleared, if that has not been synced
	*bench
}

// What tests of the journal stand in for.
var openFile, syncDir = statefile.OpenFile, durable.SyncDir

var errStep = errors.New("input/output error")

func newJournalled(t *testing.T) *journalled {
	t.Helper()
	d, err := mem.Open(mem.Config{Size: 64 << 10, Name: "journalled"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	j := &journalled{t: t, disk: d}
	j.cfg = Config{Device: &notedDisk{d, j}, StateDir: t.TempDir()}
	t.Cleanup(func() { statefile.OpenFile, durable.SyncDir = openFile, syncDir })
	statefile.OpenFile = func(name string, flag int, perm fs.FileMode) (statefile.File, error) {
		if err := j.step("open"); err != nil {
			return nil, err
		}
		f, err := openFile(name, flag, perm)
		if err == nil {
			j.files++
		}
		return &notedFile{f, j}, err
	}
	durable.SyncDir = func(string) error { return j.step("folder") }
	return j
}

// step notes a step; its error is what the step fails with.
func (j *journalled) step(what string) error {
	n := len(j.steps)
	j.steps = append(j.steps, what)
	if j.fails != nil && j.fails(n) {
		return errStep
	}
	return nil
}

// begin starts a life of the volume.
func (j *journalled) begin() {
	j.t.Helper()
	j.steps, j.fails = nil, nil
	j.bench = serve(j.t, new(Registry), j.cfg, "v")
	j.steps = nil
}

// again ends a life by a loss of power, which takes what was not synced of the journal, and
// begins the next.
func (j *journalled) again() {
	j.t.Helper()
	name := j.v.Journal.name
	j.end()
	if j.old != nil {
		b, err := os.ReadFile(name)
		if err != nil {
			j.t.Fatal(err)
		}
		if err := os.WriteFile(name, append(j.old, b[journalHeader:]...), 0o600); err != nil {
			j.t.Fatal(err)
		}
		j.old = nil
	}
	j.begin()
}

// end ends a life.
func (j *journalled) end() {
	j.t.Helper()
	j.close()
	if j.files != 0 {
		j.t.Errorf("%d files are still open", j.files)
	}
}

// write is an atomic write of b into the blocks that the tests write.
func (j *journalled) write(b byte) error {
	_, err := j.v.Journal.Write(fill(journalledLen, b), journalledAt, context.Background())
	return err
}

// stick begins a life in which the blocks hold old, and leaves an entry of an atomic write of 2 that could neither be
// carried out nor undone.
func (j *journalled) stick(old []byte) {
	j.t.Helper()
	j.begin()
	j.set(old)
	j.fails = func(n int) bool { return n > 6 }
	if err := j.write(2); err == nil || !j.v.Journal.stuck.Load() {
		j.t.Fatalf("%v, %q", err, j.steps)
	}
	j.fails = nil
}

// content is what the blocks hold that the tests write.
func (j *journalled) content(n int) []byte {
	j.t.Helper()
	b := make([]byte, n)
	if _, err := j.disk.ReadAt(b, journalledAt); err != nil {
		j.t.Fatal(err)
	}
	return b
}

func (j *journalled) set(b []byte) {
	j.t.Helper()
	if _, err := j.disk.WriteAt(b, journalledAt); err != nil {
		j.t.Fatal(err)
	}
}

// entry reports whether the file holds one.
func (j *journalled) entry() bool {
	b, _ := os.ReadFile(j.v.Journal.name)
	return bytes.HasPrefix(b, []byte(journalMagic))
}

// Three blocks, the last ones: fewer than the buffers that they are read into hold.
const (
	journalledLen = 3 * 512
	journalledAt  = 64<<10 - journalledLen
)

type notedDisk struct {
	*mem.Device
	j *journalled
}

// ReadAt leaves all of it there when it fails: whoever believes that has not looked at the error.
func (d *notedDisk) ReadAt(p []byte, off int64) (int, error) {
	n, err := d.Device.ReadAt(p, off)
	return n, errors.Join(err, d.j.step("read"))
}

// WriteAt writes the first block only when it fails.
func (d *notedDisk) WriteAt(p []byte, off int64) (int, error) {
	if err := d.j.step(fmt.Sprintf("write %d", len(p)/512)); err != nil {
		_, _ = d.Device.WriteAt(p[:512], off)
		return 0, err
	}
	return d.Device.WriteAt(p, off)
}

func (d *notedDisk) Flush() error                  { return d.j.step("flush") }
func (d *notedDisk) FlushRange(off, n int64) error { return d.j.step(fmt.Sprintf("flush %d", n/512)) }

type notedFile struct {
	statefile.File
	j *journalled
}

// WriteAt writes an entry also when it fails, and clears none then.
func (f *notedFile) WriteAt(p []byte, off int64) (int, error) {
	what := "entry"
	switch {
	case off == 0 && p[0] == 0:
		if err := f.j.step("clear"); err != nil {
			return 0, err
		}
		if b, err := os.ReadFile(f.j.v.Journal.name); err == nil && f.j.old == nil {
			f.j.old = b[:journalHeader]
		}
		return f.File.WriteAt(p, off)
	case off == 0:
		what = "head"
	}
	n, err := f.File.WriteAt(p, off)
	return n, errors.Join(err, f.j.step(what))
}

func (f *notedFile) Sync() error {
	err := f.j.step("sync")
	if err == nil {
		f.j.old = nil
	}
	return err
}

func (f *notedFile) Close() error {
	f.j.files--
	return f.File.Close()
}

func fill(n int, b byte) []byte { return bytes.Repeat([]byte{b}, n) }

// TestJournalSteps: what an atomic write does, in this order, and nothing else; who else
// may read the journal, which holds what the volume does.
func TestJournalSteps(t *testing.T) {
	j := newJournalled(t)
	j.begin()
	j.set(fill(journalledLen, 1))
	write := func(b byte) {
		t.Helper()
		j.steps = nil
		if dir, err := j.v.Journal.Write(fill(journalledLen, b), journalledAt, context.Background()); err != nil || dir != Writing {
			t.Errorf("%v, %v", dir, err)
		}
		if !bytes.Equal(j.content(journalledLen), fill(journalledLen, b)) || j.entry() || j.v.Journal.stuck.Load() {
			t.Error("not written, or the entry is there")
		}
	}
	rest := []string{"entry", "head", "sync", "write 3", "flush 3", "clear", "sync"}
	write(2)
	if want := slices.Concat([]string{"read", "open", "folder"}, rest); !slices.Equal(j.steps, want) {
		t.Errorf("the first: %q, want %q", j.steps, want)
	}
	write(3)
	if want := slices.Concat([]string{"read"}, rest); !slices.Equal(j.steps, want) {
		t.Errorf("the second: %q, want %q", j.steps, want)
	}
	if i, err := os.Stat(j.v.Journal.name); err != nil || i.Mode().Perm() != 0o600 || i.Size() != journalHeader+journalledLen {
		t.Errorf("the journal: %v, %v", i, err)
	}
}

// TestJournalEveryFailure lets every step of an atomic write fail, alone, with each later
// one, and with all that follow, and ends the process then or goes on. A write that was
// acknowledged is there; of one that was not there is nothing, as soon as it can be undone;
// and no start undoes what was written later.
func TestJournalEveryFailure(t *testing.T) {
	old, now, later := fill(journalledLen, 1), fill(journalledLen, 2), fill(journalledLen, 3)
	const most = 16 // no attempt takes as many steps
	acknowledged := false
	for i := 0; !acknowledged; i++ {
		for k := i; k <= most; k++ {
			for _, crash := range []bool{true, false} {
				name := fmt.Sprintf("step %d and %d, crash %v", i, k, crash)
				j := newJournalled(t)
				j.begin()
				j.set(old)
				j.fails = func(n int) bool { return n == i || n == k || k == most && n > i }
				_, err := j.v.Journal.Write(now, journalledAt, context.Background())
				took := len(j.steps)
				j.fails = nil
				want := old
				if err == nil {
					want = now
				} else if !errors.Is(err, errStep) {
					t.Fatalf("%s: %v", name, err)
				}
				if (err != nil) != (i < took) {
					t.Fatalf("%s: %v after %q", name, err, j.steps)
				}
				stuck := j.v.Journal.stuck.Load()
				if i == k && i < 8 && stuck {
					t.Fatalf("%s: stuck after %q", name, j.steps)
				}
				if err == nil && stuck || !stuck && (j.entry() || !bytes.Equal(j.content(journalledLen), want)) {
					t.Fatalf("%s: %q, stuck %v, entry %v, %x", name, j.steps, stuck, j.entry(), j.content(journalledLen))
				}
				if crash {
					j.again()
				} else if stuck {
					if err := j.v.Journal.unstick(context.Background()); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				}
				// An entry that could only not be cleared was undone, or is not worth it: the
				// write had failed, and all of it is there or nothing.
				got := j.content(journalledLen)
				if !bytes.Equal(got, want) && (err == nil || !bytes.Equal(got, now)) {
					t.Fatalf("%s: %q left %x", name, j.steps, got)
				}
				if j.v.Journal.stuck.Load() || j.entry() {
					t.Fatalf("%s: the entry is still there", name)
				}
				j.set(later)
				j.again()
				if !bytes.Equal(j.content(journalledLen), later) {
					t.Fatalf("%s: a start has undone what came later", name)
				}
				j.end()
				acknowledged = err == nil
			}
		}
	}
}

// TestJournalPutsBackWhatDiffers: blocks that a failed write has not changed are not
// written to undo it: there may be no space for them. Where they cannot be read, all are.
func TestJournalPutsBackWhatDiffers(t *testing.T) {
	old := fill(journalledLen, 1)
	for _, c := range []struct {
		name   string
		change []int // bytes
		unread bool
		want   []string
	}{
		{"nothing", nil, false, []string{"read", "flush 3"}},
		{"first byte", []int{0}, false, []string{"read", "write 1", "flush 3"}},
		{"last byte", []int{journalledLen - 1}, false, []string{"read", "write 1", "flush 3"}},
		{"middle", []int{1023}, false, []string{"read", "write 1", "flush 3"}},
		{"two apart", []int{511, 1024}, false, []string{"read", "write 1", "write 1", "flush 3"}},
		{"two", []int{512, 1024}, false, []string{"read", "write 2", "flush 3"}},
		{"all", []int{1, 513, 1025}, false, []string{"read", "write 3", "flush 3"}},
		{"unread", nil, true, []string{"read", "write 3", "flush 3"}},
	} {
		j := newJournalled(t)
		j.begin()
		now := bytes.Clone(old)
		for _, i := range c.change {
			now[i] = 9
		}
		j.set(now)
		if c.unread {
			j.fails = func(n int) bool { return n == 0 }
		}
		if err := j.v.Journal.putBack(old, journalledAt, context.Background()); err != nil {
			t.Error(err)
		}
		if !slices.Equal(j.steps, c.want) || !bytes.Equal(j.content(journalledLen), old) {
			t.Errorf("%s: %q, want %q", c.name, j.steps, c.want)
		}
		j.close()
	}
}

// TestUnstickOnce: what ends the life of an entry does so once, and a write that comes
// before it does it first.
func TestUnstickOnce(t *testing.T) {
	old := fill(journalledLen, 1)
	for _, first := range []string{"unstick", "Write"} {
		j := newJournalled(t)
		j.stick(old)
		undone := []string{"read", "write 2", "flush 3", "clear", "sync"} // the first block was
		do := func() error { return j.v.Journal.unstick(context.Background()) }
		if first == "Write" {
			do = func() error {
				dir, err := j.v.Journal.Write(fill(512, 7), 0, context.Background())
				if dir != Writing {
					t.Errorf("%v", dir)
				}
				return err
			}
		}
		// As long as it cannot be cleared, it stays, and nothing is written.
		j.steps, j.fails = nil, func(n int) bool { return n == 4 }
		if err := do(); !errors.Is(err, errStep) || !j.v.Journal.stuck.Load() || !slices.Equal(j.steps, undone) {
			t.Errorf("%v after %q", err, j.steps)
		}
		undone[1] = "flush 3" // it is as it was already
		undone = slices.Delete(undone, 2, 3)
		j.steps, j.fails = nil, nil
		if err := do(); err != nil || j.v.Journal.stuck.Load() || !slices.Equal(j.steps[:4], undone) {
			t.Errorf("%v after %q", err, j.steps)
		}
		if first == "Write" {
			b := make([]byte, 512)
			if _, err := j.disk.ReadAt(b, 0); err != nil || !bytes.Equal(b, fill(512, 7)) {
				t.Error("it was acknowledged, and not written")
			}
		}
		j.steps = nil
		if err := j.v.Journal.unstick(context.Background()); err != nil || len(j.steps) != 0 {
			t.Errorf("once more: %v, %q", err, j.steps)
		}
		if !bytes.Equal(j.content(journalledLen), old) {
			t.Error("not undone")
		}
		j.close()
	}
}

// journalFile is the file with an entry.
func journalFile(magic string, off, n uint64, data []byte) []byte {
	b := make([]byte, journalHeader, journalHeader+len(data))
	copy(b, magic)
	binary.BigEndian.PutUint64(b[16:], off)
	binary.BigEndian.PutUint64(b[24:], n)
	binary.BigEndian.PutUint32(b[32:], journalSum(b, data))
	return append(b, data...)
}

// TestUndoEntries: a start takes nothing for an entry that is not one, however it has come
// about, and puts back all of one that is.
func TestUndoEntries(t *testing.T) {
	data := fill(journalledLen, 5)
	whole := journalFile(journalMagic, journalledAt, journalledLen, data)
	long := fill(MaxAtomicBytes+512, 5)
	damaged := bytes.Clone(whole)
	damaged[journalHeader]++
	moved := bytes.Clone(whole)
	moved[23] ^= 2 // offset
	for _, c := range []struct {
		name string
		file []byte
		back bool
	}{
		{"whole", whole, true},
		{"with an older one behind it", append(bytes.Clone(whole), fill(512, 8)...), true},
		{"empty", nil, false},
		{"the name only", whole[:16], false},
		{"without its sum", whole[:32], false},
		{"without data", whole[:journalHeader], false},
		{"a byte short of a header", whole[:journalHeader-1], false},
		{"a byte short", whole[:len(whole)-1], false},
		{"damaged", damaged, false},
		{"another place", moved, false},
		{"another format", journalFile("softiser undo 2\n", journalledAt, journalledLen, data), false},
		{"longer than the file", journalFile(journalMagic, journalledAt, 1<<63, data), false},
		{"much longer than the file", journalFile(journalMagic, journalledAt, MaxAtomicBytes, data), false},
		{"longer than any", journalFile(journalMagic, 0, uint64(len(long)), long), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJournalled(t)
			j.begin()
			old := fill(journalledLen, 1)
			j.set(old)
			name := j.v.Journal.name
			j.close()
			if err := os.WriteFile(name, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			j.begin()
			want := old
			if c.back {
				want = data
			}
			if !bytes.Equal(j.content(journalledLen), want) {
				t.Errorf("the volume has %x", j.content(journalledLen)[:8])
			}
			if j.entry() {
				t.Error("the entry is still there")
			}
		})
	}
}

// TestTornEntry: an entry that a loss of power has left without its data is none, and does not become one
// by the data of a later entry, when the process is killed before that has its head.
func TestTornEntry(t *testing.T) {
	zeroes, later := fill(journalledLen, 0), fill(journalledLen, 3)
	j := newJournalled(t)
	j.begin()
	name := j.v.Journal.name
	j.close()
	torn := append(journalFile(journalMagic, journalledAt, journalledLen, zeroes)[:journalHeader], fill(journalledLen, 9)...)
	if err := os.WriteFile(name, torn, 0o600); err != nil {
		t.Fatal(err)
	}
	j.begin()
	j.set(later) // acknowledged
	j.fails = func(n int) bool { return j.steps[n] == "entry" }
	if _, err := j.v.Journal.Write(fill(journalledLen, 4), 0, context.Background()); !errors.Is(err, errStep) {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b[journalHeader:], zeroes) {
		t.Fatalf("the blocks that were to be written held %x: %v", b[journalHeader:], err)
	}
	j.again()
	if !bytes.Equal(j.content(journalledLen), later) {
		t.Errorf("a start has put back what was never put aside: %x", j.content(journalledLen)[:8])
	}
}

// TestNoMedium: what an earlier life has left to be undone, or to be gone on with, waits
// until there is a medium again.
func TestNoMedium(t *testing.T) {
	j := newJournalled(t)
	j.begin()
	old, data := fill(journalledLen, 1), fill(journalledLen, 5)
	j.set(old)
	undo, kept, unit := j.v.Journal.name, j.v.state.file(".json"), j.v.id
	j.close()
	b, err := json.Marshal(savedState{Version: 1, Unit: unit.Key(), Op: &Rewrite{Kind: Overwrite, Passes: 1, Pattern: []byte{1}, Failed: true}})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{kept: b, undo: journalFile(journalMagic, journalledAt, journalledLen, data)} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	empty := serve(t, new(Registry), Config{StateDir: j.cfg.StateDir, Identity: unit}, "v")
	if kind, _ := empty.v.Rewriter.Progress(); kind == Overwrite || empty.v.Gates() != NoMedium {
		t.Errorf("without a medium: %v, gates %x", kind, empty.v.Gates())
	}
	empty.close()
	if !bytes.Equal(j.content(journalledLen), old) {
		t.Error("the medium that was taken out has been written")
	}
	j.begin()
	if !bytes.Equal(j.content(journalledLen), data) || j.entry() {
		t.Error("what was interrupted has not been undone")
	}
	if kind, _ := j.v.Rewriter.Progress(); kind != Overwrite || j.v.Gates() != SanitizeFailed {
		t.Errorf("with the medium: %v, gates %x", kind, j.v.Gates())
	}
}

// TestUndoLongest: the longest atomic write can be undone.
func TestUndoLongest(t *testing.T) {
	d, err := mem.Open(mem.Config{Size: 2 * MaxAtomicBytes, Name: "long"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	cfg := Config{Device: d, StateDir: t.TempDir()}
	b := serve(t, new(Registry), cfg, "v")
	name := b.v.Journal.name
	b.close()
	data := fill(MaxAtomicBytes, 5)
	if err := os.WriteFile(name, journalFile(journalMagic, 4096, MaxAtomicBytes, data), 0o600); err != nil {
		t.Fatal(err)
	}
	serve(t, new(Registry), cfg, "v")
	got := make([]byte, MaxAtomicBytes)
	if _, err := d.ReadAt(got, 4096); err != nil || !bytes.Equal(got, data) {
		t.Errorf("not put back: %v", err)
	}
}

// TestUndoBehindTheEnd: of an entry for blocks that a volume has lost, because it was shortened
// while it was not served, those are put back that it has.
func TestUndoBehindTheEnd(t *testing.T) {
	for _, left := range []int{journalledLen - 512, 0} {
		j := newJournalled(t)
		j.begin()
		j.set(fill(journalledLen, 1))
		name := j.v.Journal.name
		j.close()
		data := fill(journalledLen, 5)
		if err := os.WriteFile(name, journalFile(journalMagic, journalledAt, journalledLen, data), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := j.disk.Resize(int64(journalledAt + left)); err != nil {
			t.Fatal(err)
		}
		j.begin()
		if !bytes.Equal(j.content(left), data[:left]) {
			t.Errorf("%d bytes that are left are not put back", left)
		}
		if j.entry() {
			t.Error("the entry is still there")
		}
	}
}

// TestStuckBehindTheEnd: what could not be undone, and was cut off then, is not undone in the blocks that the
// volume has there when it has grown again; what is in front of the new end is.
func TestStuckBehindTheEnd(t *testing.T) {
	old := fill(journalledLen, 1)
	for _, c := range []struct {
		left      int
		restarted bool
		broken    bool // the journal, while the volume becomes smaller
	}{{journalledLen - 512, false, false}, {0, false, false}, {journalledLen - 512, true, false}, {0, true, false}, {journalledLen - 512, true, true}, {0, true, true}} {
		left := c.left
		j := newJournalled(t)
		j.stick(old)
		if c.broken {
			j.fails = func(int) bool { return true }
		}
		for _, size := range []int{journalledAt + left, journalledAt + journalledLen} {
			if err := j.disk.Resize(int64(size)); err != nil {
				t.Fatal(err)
			}
			j.fails = nil
		}
		if c.restarted {
			j.again()
		} else if err := j.v.BeforeChange(blockdev.Wait, nil); err != nil {
			t.Error(err)
		}
		if j.entry() {
			t.Error("the entry is still there")
		}
		if want := slices.Concat(old[:left], make([]byte, journalledLen-left)); !bytes.Equal(j.content(journalledLen), want) {
			t.Errorf("%+v: the blocks have not what they had, and zeroes behind that", c)
		}
		j.end()
	}
}

// TestUnclearedBehindTheEnd: nor does an entry that could not be cleared come back there after a restart.
func TestUnclearedBehindTheEnd(t *testing.T) {
	for n := 0; ; n++ {
		j := newJournalled(t)
		j.begin()
		j.set(fill(journalledLen, 1))
		j.fails = func(k int) bool { return k >= n && j.steps[k] != "write 3" && j.steps[k] != "flush 3" }
		if j.write(2) == nil {
			t.Fatal("no failure leaves an entry that is only to be cleared")
		}
		j.fails = nil
		if !j.v.Journal.stuck.Load() || j.v.Journal.old != nil || !j.entry() {
			j.end()
			continue
		}
		for _, size := range []int{journalledAt, journalledAt + journalledLen} {
			if err := j.disk.Resize(int64(size)); err != nil {
				t.Fatal(err)
			}
		}
		j.again()
		if !bytes.Equal(j.content(journalledLen), make([]byte, journalledLen)) {
			t.Error("the blocks have what was cut off")
		}
		j.end()
		return
	}
}

// TestShrinkDuringAtomic: nor is what is cut off while it is written.
func TestShrinkDuringAtomic(t *testing.T) {
	j := newJournalled(t)
	j.begin()
	j.set(fill(journalledLen, 1))
	j.fails = func(n int) bool {
		if j.steps[n] == "write 3" && j.disk.Info().Size > journalledAt {
			if err := j.disk.Resize(journalledAt); err != nil {
				t.Error(err)
			}
		}
		return false
	}
	if err := j.write(2); !errors.Is(err, blockdev.ErrOutOfRange) {
		t.Fatalf("%v, %q", err, j.steps)
	}
	j.fails = nil
	if err := j.disk.Resize(journalledAt + journalledLen); err != nil {
		t.Fatal(err)
	}
	if err := j.v.BeforeChange(blockdev.Wait, nil); err != nil || j.entry() {
		t.Errorf("the entry is still there: %v", err)
	}
	if !bytes.Equal(j.content(journalledLen), make([]byte, journalledLen)) {
		t.Error("the blocks have what was cut off")
	}
	j.end()
}

// TestUndoFails: a volume whose interrupted write cannot be undone, durably, or whose
// journal cannot be read or cleared, is not served, and the next start tries again.
func TestUndoFails(t *testing.T) {
	old, data := fill(journalledLen, 1), fill(journalledLen, 5)
	steps := []string{"write 3", "flush", "open", "clear", "sync"}
	for i, step := range steps {
		t.Run(step, func(t *testing.T) {
			j := newJournalled(t)
			j.begin()
			j.set(old)
			name := j.v.Journal.name
			j.close()
			if err := os.WriteFile(name, journalFile(journalMagic, journalledAt, journalledLen, data), 0o600); err != nil {
				t.Fatal(err)
			}
			j.steps, j.fails = nil, func(n int) bool { return n == i }
			if _, err := new(Registry).Map(j.cfg, new(Place), PlaceConfig{Name: "v", Face: &testFace{}}); !errors.Is(err, errStep) {
				t.Errorf("served: %v", err)
			}
			if !slices.Equal(j.steps, steps[:i+1]) {
				t.Errorf("%q, want %q", j.steps, steps[:i+1])
			}
			if b, err := os.ReadFile(name); err != nil || i < 3 && !bytes.HasPrefix(b, []byte(journalMagic)) {
				t.Errorf("the entry is gone (%v)", err)
			}
			j.begin()
			if !bytes.Equal(j.content(journalledLen), data) {
				t.Error("not undone")
			}
		})
	}
	t.Run("read", func(t *testing.T) {
		j := newJournalled(t)
		j.begin()
		name := j.v.Journal.name
		j.close()
		if err := os.Mkdir(name, 0o700); err != nil { // cannot be read as a file
			t.Fatal(err)
		}
		if _, err := new(Registry).Map(j.cfg, new(Place), PlaceConfig{Name: "v", Face: &testFace{}}); err == nil {
			t.Error("served")
		}
	})
}

// TestWipe: what a rewrite removes is not in the journal either, that of an earlier life
// included, or the rewrite fails; the entry that could not be undone goes with it.
func TestWipe(t *testing.T) {
	zeroes := func(j *journalled) bool {
		b, err := os.ReadFile(j.v.Journal.name)
		return err == nil && len(b) == journalHeader+journalledLen && bytes.Equal(b, make([]byte, len(b)))
	}
	for _, c := range []struct {
		name  string
		again bool
		steps []string
	}{
		{"of this life", false, []string{"clear", "sync"}},
		{"of an earlier life", true, []string{"open", "clear", "sync"}},
	} {
		for i := range len(c.steps) + 1 {
			j := newJournalled(t)
			j.begin()
			j.set(fill(journalledLen, 1))
			if err := j.write(2); err != nil {
				t.Fatal(err)
			}
			if c.again {
				j.again()
			}
			j.steps, j.fails = nil, func(n int) bool { return n == i }
			err := j.v.Journal.wipe()
			if i == len(c.steps) {
				if err != nil || !zeroes(j) || !slices.Equal(j.steps, c.steps) {
					t.Errorf("%s: %v after %q", c.name, err, j.steps)
				}
			} else if !errors.Is(err, errStep) {
				t.Errorf("%s: %v after %q", c.name, err, j.steps)
			}
			j.close()
		}
	}
	j := newJournalled(t)
	j.begin()
	if err := j.v.Journal.wipe(); err != nil || len(j.steps) != 0 {
		t.Errorf("without a journal: %v, %q", err, j.steps)
	}
	j.set(fill(journalledLen, 1))
	j.fails = func(n int) bool { return n > 6 }
	if err := j.write(2); err == nil || !j.v.Journal.stuck.Load() {
		t.Fatalf("%v, %q", err, j.steps)
	}
	j.fails = nil
	if err := j.v.Journal.wipe(); err != nil || j.v.Journal.stuck.Load() || !zeroes(j) {
		t.Errorf("a stuck one: %v", err)
	}
	j.steps = nil
	if err := j.write(3); err != nil || j.steps[0] != "read" || j.steps[1] != "entry" {
		t.Errorf("the next write: %v, %q", err, j.steps)
	}
	if err := os.Remove(j.v.Journal.name); err != nil {
		t.Fatal(err)
	}
	j.again()
	if err := os.Mkdir(j.v.Journal.name, 0o700); err != nil {
		t.Fatal(err)
	}
	statefile.OpenFile = func(string, int, fs.FileMode) (statefile.File, error) { return nil, errStep }
	if err := j.v.Journal.wipe(); !errors.Is(err, errStep) {
		t.Errorf("one that cannot be opened: %v", err)
	}
}

// TestAtomicOffered: where there is nowhere to put the old data aside, only a volume that
// forgets everything has atomic writes.
func TestAtomicOffered(t *testing.T) {
	for backend, forgets := range map[string]bool{"mem": true, "null": true, "file": false, "": false} {
		for _, dir := range []string{"", t.TempDir()} {
			b := serve(t, new(Registry), Config{Device: backendOf{newDevice(t, "v"), backend}, StateDir: dir}, "v")
			if got := b.v.Forgetful(); got != forgets {
				t.Errorf("%q: forgetful %v", backend, got)
			}
			if got, want := b.v.Journal.Offered(), forgets || dir != ""; got != want {
				t.Errorf("%q, %q: offered %v", backend, dir, got)
			}
			b.close()
		}
	}
}

// backendOf is a device that says it is another backend's.
type backendOf struct {
	blockdev.Device
	name string
}

func (d backendOf) Info() blockdev.Info {
	i := d.Device.Info()
	i.Backend = d.name
	return i
}
