package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/file"
)

// tiedDisk is a notedDisk that keeps marks.
type tiedDisk struct {
	*notedDisk
	mark     string
	none     bool // it keeps none
	refuses  bool // it has no room for one
	readOnly bool
	unread   error // of who asks for the mark
}

func (d *tiedDisk) Info() blockdev.Info {
	i := d.notedDisk.Info()
	i.ReadOnly = d.readOnly
	return i
}

func (d *tiedDisk) Mark(kind blockdev.MarkKind) (string, error) {
	switch {
	case d.none:
		return "", blockdev.ErrNotSupported
	case kind != blockdev.MarkState:
		return "", nil
	}
	return d.mark, d.unread
}

func (d *tiedDisk) SetMark(kind blockdev.MarkKind, text string) error {
	if d.none {
		return blockdev.ErrNotSupported
	}
	if err := d.j.step("mark"); err != nil {
		return err
	}
	if d.refuses && text != "" {
		return errors.New("no room for attributes")
	}
	d.mark = text
	return nil
}

func (d *tiedDisk) Unmark(kind blockdev.MarkKind) string { return "unmark " + string(kind) }

// tied is a journalled whose device keeps marks, and can be brought back to what it was at a step.
type tied struct {
	*journalled
	dev *tiedDisk
}

func newTied(t *testing.T) *tied {
	j := newJournalled(t)
	d := &tiedDisk{notedDisk: j.cfg.Device.(*notedDisk)}
	j.cfg.Device = d
	return &tied{j, d}
}

// world is what a process that is killed leaves behind.
type world struct {
	at    string
	files map[string][]byte // of the folder
	disk  []byte
	mark  string
}

func (j *tied) world(at string) world {
	j.t.Helper()
	w := world{at, map[string][]byte{}, j.content(journalledLen), j.dev.mark}
	all, err := filepath.Glob(filepath.Join(j.cfg.StateDir, "*"))
	if err != nil {
		j.t.Fatal(err)
	}
	for _, name := range all {
		if w.files[filepath.Base(name)], err = os.ReadFile(name); err != nil {
			j.t.Fatal(err)
		}
	}
	return w
}

// put makes the world w again, with its folder in dir.
func (j *tied) put(w world, dir string) {
	j.t.Helper()
	j.cfg.StateDir = dir
	for name, b := range w.files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			j.t.Fatal(err)
		}
	}
	j.set(w.disk)
	j.dev.mark = w.mark
}

// kills runs f and returns what a process that is killed would leave at each of its steps.
func (j *tied) kills(f func()) (all []world) {
	j.t.Helper()
	j.fails = func(n int) bool {
		all = append(all, j.world(fmt.Sprintf("before step %d, %s", n, j.steps[n])))
		return false
	}
	f()
	j.fails = nil
	return append(all, j.world("at the end"))
}

// refusal is why the volume is not served now; nil: it is.
func (j *tied) refusal() error {
	var p Place
	_, err := new(Registry).Map(j.cfg, &p, PlaceConfig{Name: "v", Seed: "v", Face: &testFace{left: make(chan struct{})}})
	if err == nil {
		err = p.Drain(context.Background())
	}
	return err
}

// in has the volume use a folder.
func (j *tied) in(dir string) { j.cfg.StateDir = dir }

// mustRefuse says that the volume is not served, with an error that names each of why.
func (j *tied) mustRefuse(at string, why ...string) {
	j.t.Helper()
	err := j.refusal()
	if err == nil {
		j.t.Fatalf("%s: it is served", at)
	}
	for _, w := range why {
		if !strings.Contains(err.Error(), w) {
			j.t.Errorf("%s: %q does not say %q", at, err, w)
		}
	}
}

// life begins one and ends it, with do in between.
func (j *tied) life(do func()) {
	j.t.Helper()
	j.begin()
	do()
	j.end()
}

func (j *tied) write(b byte) {
	j.t.Helper()
	if _, err := j.v.Journal.Write(fill(journalledLen, b), journalledAt, context.Background()); err != nil {
		j.t.Fatal(err)
	}
}

// file returns one file of the folder, "" if there is none.
func (j *tied) file(suffix string) string {
	all, err := filepath.Glob(filepath.Join(j.cfg.StateDir, "*"+suffix))
	if err != nil || len(all) > 1 {
		j.t.Fatal(all, err)
	}
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// TestTieEveryCrash: a process that is killed at any step, from the opening on, leaves a volume that the
// folder makes whole; that no other folder is served with while there may be something to be put
// back; and over whose newer content, if somebody gives that up, nothing is put back.
func TestTieEveryCrash(t *testing.T) {
	j := newTied(t)
	j.set(fill(journalledLen, 1))
	lives := j.kills(func() {
		j.bench = serve(t, new(Registry), j.cfg, "v")
		j.write(2)
		j.write(3)
		j.close()
	})
	if len(lives) < 20 {
		t.Fatalf("%d steps: %q", len(lives), j.steps)
	}
	if last := lives[len(lives)-1]; last.mark != "" || j.file(".tie") != "" {
		t.Errorf("an orderly end leaves %q and %q", last.mark, j.file(".tie"))
	}
	for _, w := range lives {
		mine, other := t.TempDir(), t.TempDir()
		j.put(w, mine)
		j.life(func() {})
		if got := j.content(journalledLen); got[0] == 0 || !bytes.Equal(got, fill(journalledLen, got[0])) {
			t.Fatalf("%s: in part: %x", w.at, got)
		}

		// A second crash while that is mended changes nothing.
		j.put(w, t.TempDir())
		j.steps = nil
		again := j.kills(func() {
			j.bench = serve(t, new(Registry), j.cfg, "v")
		})
		j.close()
		for _, a := range again {
			j.put(a, t.TempDir())
			j.life(func() {})
			if got := j.content(journalledLen); !bytes.Equal(got, fill(journalledLen, got[0])) {
				t.Fatalf("%s, then %s: in part: %x", w.at, a.at, got)
			}
		}

		// What is as it was needs nothing to be put back, tied or not.
		if strings.HasSuffix(w.at, "write 3") {
			j.put(w, t.TempDir())
			j.dev.mark = ""
			j.life(func() {})
			if !bytes.Equal(j.content(journalledLen), w.disk) {
				t.Errorf("%s: it is not as it was", w.at)
			}
		}

		// Another folder meanwhile, or none.
		j.put(w, mine)
		for _, dir := range []string{other, ""} {
			j.in(dir)
			if w.mark != "" {
				j.mustRefuse(w.at, t.Name(), "unmark "+string(blockdev.MarkState))
			}
		}
		j.dev.mark = "" // somebody gives it up
		for _, dir := range []string{other, ""} {
			j.in(dir)
			j.life(func() { j.set(fill(journalledLen, 9)) })
		}
		j.in(mine)
		if err := j.refusal(); err != nil {
			name := j.file(".undo")
			if !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "remove that file") {
				t.Errorf("%s: %v", w.at, err)
			}
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		j.life(func() {})
		if !bytes.Equal(j.content(journalledLen), fill(journalledLen, 9)) {
			t.Fatalf("%s: what was written since is gone", w.at)
		}
		j.life(func() { j.write(8) }) // as ever
	}
}

// TestTieOfMarks: so it is with blocks that are marked as bad.
func TestTieOfMarks(t *testing.T) {
	j := newTied(t)
	j.set(fill(journalledLen, 1))
	lives := j.kills(func() {
		j.bench = serve(t, new(Registry), j.cfg, "v")
		j.mark(3, 2)
		j.close()
	})
	answered := false
	for _, w := range lives {
		mine := t.TempDir()
		j.put(w, mine)
		marked := false
		j.life(func() { marked = j.unreadable(3) })
		if answered && !marked {
			t.Fatalf("%s: the block is readable", w.at)
		}
		answered = answered || marked

		j.put(w, mine)
		j.in(t.TempDir())
		if w.mark != "" {
			j.mustRefuse(w.at, t.Name(), "unmark")
		} else if marked {
			t.Fatalf("%s: the folder is not tied", w.at)
		}
		j.dev.mark = ""
		j.life(func() {})
		j.in(mine)
		if marked {
			j.mustRefuse(w.at, j.file(".json"), "remove")
			// Either as the volume is, or as the file says.
			kept, err := os.ReadFile(j.file(".tie"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(j.file(".tie")); err != nil {
				t.Fatal(err)
			}
			j.life(func() {
				if !j.unreadable(3) {
					t.Errorf("%s: the block is readable", w.at)
				}
			})
			if err := os.WriteFile(strings.TrimSuffix(j.file(".json"), ".json")+".tie", kept, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(j.file(".json")); err != nil {
				t.Fatal(err)
			}
		}
		j.life(func() {
			if j.unreadable(3) {
				t.Errorf("%s: the block is unreadable", w.at)
			}
		})
	}
	if !answered {
		t.Error("it has never been marked")
	}
}

// TestTieOfAnEarlierVersion: what such a one has left in the folder is in force however the process ends that
// ties it, and so it is where earlier attempts could not make a mark.
func TestTieOfAnEarlierVersion(t *testing.T) {
	for _, attempt := range []func(*tied){
		func(j *tied) { // no record
			if err := os.Remove(j.file(".tie")); err != nil {
				t.Fatal(err)
			}
			j.dev.mark = ""
		},
		func(j *tied) { // a mark that cannot be made
			j.dev.mark = ""
			if err := os.Remove(j.file(".tie")); err != nil {
				t.Fatal(err)
			}
			j.dev.refuses = true
			j.life(func() { j.mark(20, 1) })
			if j.dev.mark != "" || j.file(".tie") == "" {
				t.Fatalf("mark %q, record %q", j.dev.mark, j.file(".tie"))
			}
			j.dev.refuses = false
		},
		func(j *tied) { // a record that cannot be written once the mark is made
			j.dev.mark = ""
			if err := os.Remove(j.file(".tie")); err != nil {
				t.Fatal(err)
			}
			j.begin()
			made := false
			j.fails = func(n int) bool {
				made = made || j.steps[n] == "mark"
				return made && j.steps[n] == "folder"
			}
			if err := j.v.MarkBad(20*512, 512); !errors.Is(err, errStep) {
				t.Fatal(err)
			}
			if j.dev.mark == "" {
				t.Fatal("no mark")
			}
			j.fails = nil
			for _, w := range j.kills(func() { j.mark(22, 1) }) { // tries again
				was := j.cfg.StateDir
				now := j.world("now")
				j.put(w, t.TempDir())
				if err := j.refusal(); err != nil {
					t.Errorf("tried again, %s: %v", w.at, err)
				}
				j.put(now, was)
			}
			j.end()
		},
	} {
		j := newTied(t)
		j.life(func() { j.mark(3, 2) })
		attempt(j)
		lives := j.kills(func() {
			j.bench = serve(t, new(Registry), j.cfg, "v")
			j.mark(10, 1)
			j.close()
		})
		for _, w := range lives {
			j.put(w, t.TempDir())
			j.life(func() {
				if !j.unreadable(3) {
					t.Errorf("%s: the block is readable", w.at)
				}
			})
		}
		if j.put(lives[len(lives)-1], t.TempDir()); j.dev.mark == "" {
			t.Error("it is not tied")
		}
	}
}

// TestTieOfWhatIsNotUndone: an orderly end leaves the folder tied if it has what the next life must put back.
func TestTieOfWhatIsNotUndone(t *testing.T) {
	j := newTied(t)
	j.set(fill(journalledLen, 1))
	j.begin()
	j.write(2)
	j.steps, j.fails = nil, func(n int) bool { return n > 4 } // nothing can be undone
	if _, err := j.v.Journal.Write(fill(journalledLen, 3), journalledAt, context.Background()); err == nil || !j.v.Journal.stuck.Load() {
		t.Fatalf("%v, %q", err, j.steps)
	}
	j.fails = nil
	j.end()
	if j.dev.mark == "" || j.file(".tie") == "" {
		t.Errorf("mark %q, record %q", j.dev.mark, j.file(".tie"))
	}
	j.life(func() {})
	if !bytes.Equal(j.content(journalledLen), fill(journalledLen, 2)) || j.dev.mark != "" {
		t.Errorf("not undone, or still tied: %q", j.dev.mark)
	}
}

// TestTieLasts: the volume is tied once a life, for as long as blocks are marked, and with another
// token each life: what is brought back of the folder as it was is stale.
func TestTieLasts(t *testing.T) {
	j := newTied(t)
	first := j.cfg.StateDir
	j.begin()
	if j.dev.mark != "" || j.file(".tie") != "" {
		t.Errorf("tied to nothing: %q", j.dev.mark)
	}
	j.write(2)
	before := j.dev.mark
	if !strings.HasSuffix(before, " "+first) {
		t.Errorf("mark %q", before)
	}
	j.steps = nil
	j.write(3)
	j.mark(1, 1)
	if slices.Contains(j.steps, "mark") || slices.Contains(j.steps[:8], "folder") {
		t.Errorf("tied again: %q", j.steps)
	}
	backup := j.world("in the first life")
	j.end()
	if j.dev.mark != before {
		t.Errorf("%q, and a block is marked; was %q", j.dev.mark, before)
	}
	j.begin()
	if j.dev.mark == before || !strings.HasSuffix(j.dev.mark, " "+first) {
		t.Errorf("mark %q", j.dev.mark)
	}
	j.end()
	now := j.world("after the second life")

	old := t.TempDir()
	backup.mark, backup.disk = now.mark, now.disk
	j.put(backup, old)
	j.mustRefuse("the folder as it was", first, old)

	moved := t.TempDir() // is the folder all the same
	j.put(now, moved)
	j.life(func() {
		if !j.unreadable(1) || !strings.HasSuffix(j.dev.mark, " "+moved) {
			t.Errorf("readable %v, mark %q", !j.unreadable(1), j.dev.mark)
		}
		if err := j.v.WriteAt(fill(512, 1), 512, context.Background()); err != nil {
			t.Fatal(err)
		}
	})
	if j.dev.mark != "" || j.file(".tie") != "" {
		t.Errorf("nothing is marked, and it is tied: %q", j.dev.mark)
	}
}

// TestTieTakenOver: a process that takes the volume over leaves the mark as it is, for the one before
// may have to go on.
func TestTieTakenOver(t *testing.T) {
	j := newTied(t)
	j.begin()
	j.write(2)
	mark := j.dev.mark
	c, err := Carry(j.v)
	if err != nil {
		t.Fatal(err)
	}
	reg := new(Registry)
	if err := reg.Expect(j.dev.Info().ID, c); err != nil {
		t.Fatal(err)
	}
	next := serve(t, reg, j.cfg, "v")
	if j.dev.mark != mark || !next.v.tie.held.Load() {
		t.Errorf("mark %q, was %q", j.dev.mark, mark)
	}
	reg.Thaw()
	next.close()
	j.close()
}

// TestNotTied: a volume that takes no mark, has no room for one, or whose folder an earlier version has
// written, undoes what was interrupted.
func TestNotTied(t *testing.T) {
	for _, c := range []struct {
		name string
		as   func(*tiedDisk)
	}{
		{"it keeps none", func(d *tiedDisk) { d.none = true }},
		{"no room", func(d *tiedDisk) { d.refuses = true }},
		{"of an earlier version", func(*tiedDisk) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newTied(t)
			c.as(j.dev)
			j.begin()
			j.write(2)
			j.steps = nil
			j.write(3)
			if slices.Contains(j.steps, "mark") {
				t.Errorf("tried again: %q", j.steps)
			}
			name := j.v.Journal.name
			j.end()
			if j.dev.mark != "" || j.file(".tie") != "" {
				t.Errorf("mark %q, record %q", j.dev.mark, j.file(".tie"))
			}
			if err := os.WriteFile(name, journalFile(journalMagic, journalledAt, journalledLen, fill(journalledLen, 5)), 0o600); err != nil {
				t.Fatal(err)
			}
			j.life(func() {})
			if !bytes.Equal(j.content(journalledLen), fill(journalledLen, 5)) {
				t.Error("not undone")
			}
		})
	}
}

// TestMarkThatIsNotRead: where it cannot be told whether the volume takes a mark, nothing is done that needs
// one; the next attempt ties it.
func TestMarkThatIsNotRead(t *testing.T) {
	j := newTied(t)
	j.begin()
	j.dev.unread = errStep
	if _, err := j.v.Journal.Write(fill(journalledLen, 2), journalledAt, nil); !errors.Is(err, errStep) {
		t.Errorf("an atomic write: %v", err)
	}
	if err := j.v.MarkBad(0, 512); !errors.Is(err, errStep) {
		t.Errorf("a bad block: %v", err)
	}
	j.dev.unread = nil
	j.write(3)
	if j.dev.mark == "" || j.file(".tie") == "" {
		t.Errorf("mark %q, record %q", j.dev.mark, j.file(".tie"))
	}
	j.end()
}

// TestReadOnlyIsNotTied: who may only read is served with any folder.
func TestReadOnlyIsNotTied(t *testing.T) {
	j := newTied(t)
	j.life(func() { j.mark(1, 1) })
	mark := j.dev.mark
	j.dev.readOnly = true
	for _, dir := range []string{t.TempDir(), ""} {
		j.in(dir)
		j.life(func() {})
	}
	if j.dev.mark != mark || mark == "" {
		t.Errorf("mark %q, was %q", j.dev.mark, mark)
	}
}

// TestTieCannotBeKept: an atomic write that cannot be tied to does not begin, nor does a mark.
func TestTieCannotBeKept(t *testing.T) {
	old := fill(journalledLen, 1)
	for i := range 2 { // of the folder's two syncs
		j := newTied(t)
		j.begin()
		j.set(old)
		folders := 0
		j.fails = func(n int) bool {
			if j.steps[n] == "folder" {
				folders++
			}
			return folders > i
		}
		if _, err := j.v.Journal.Write(fill(journalledLen, 2), journalledAt, context.Background()); !errors.Is(err, errStep) {
			t.Errorf("written: %v", err)
		}
		if err := j.v.MarkBad(512, 512); !errors.Is(err, errStep) {
			t.Errorf("marked: %v", err)
		}
		if !bytes.Equal(j.content(journalledLen), old) || j.v.Marked() != 0 {
			t.Error("it has an effect")
		}
		j.fails = nil
		j.write(3)
		j.mark(1, 1)
		j.end()
		j.life(func() {
			if !j.unreadable(1) {
				t.Error("the mark is lost")
			}
		})
	}
}

// TestTieOfAFile: so it is with a file and its attribute.
func TestTieOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.img")
	open := func(path string) blockdev.Device {
		d, err := file.Open(file.Config{Path: path, Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	d := open(path)
	if _, err := d.(blockdev.Marker).Mark(blockdev.MarkState); errors.Is(err, blockdev.ErrNotSupported) {
		t.Skip("the file system has no attributes for users")
	}
	here, there := Config{Device: d, StateDir: t.TempDir()}, Config{Device: d, StateDir: t.TempDir()}
	b := serve(t, new(Registry), here, "v")
	if err := b.v.MarkBad(512, 512); err != nil {
		t.Fatal(err)
	}
	b.close()
	refused(t, there, here.StateDir, there.StateDir, "setfattr -x user.softiser.state "+d.Info().ID)
	b = serve(t, new(Registry), here, "v")
	if _, err := b.v.ReadAt(make([]byte, 512), 512); !errors.Is(err, blockdev.ErrMedium) {
		t.Error(err)
	}
	if err := b.v.WriteAt(make([]byte, 512), 512, context.Background()); err != nil {
		t.Fatal(err)
	}
	b.close()
	serve(t, new(Registry), there, "v").close()
}
