package volume

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/internal/await"
	"softiser/internal/durable"
)

// wait returns when a rewrite is over.
func (b *bench) wait(end *Outcome) {
	b.t.Helper()
	await.True(b.t, "the rewrite ends", func() bool {
		end.set.mu.Lock()
		defer end.set.mu.Unlock()
		return end.over
	})
	await.True(b.t, "its goroutine has ended", func() bool { return b.v.users.Load() == 0 })
}

// rewritten is a device that notes what a rewrite does to it, at times slowly, and may
// not be able to do it.
type rewritten struct {
	blockdev.Device
	info  func(*blockdev.Info)
	at    time.Duration   // each piece takes
	hold  <-chan struct{} // nil: writes do not wait
	err   error           // of the step that fails
	steps []string        // without what is the same as before
	wrote [][]byte        // the first block of each write

	mu    sync.Mutex
	fails string // guarded by mu: the step that fails, as steps has it; "": none
	once  bool   // it does so once
}

func newRewritten(t *testing.T, size int64) *rewritten {
	t.Helper()
	d, err := mem.Open(mem.Config{Size: size, Name: "rewritten"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return &rewritten{Device: d, err: errStep}
}

func (d *rewritten) Info() blockdev.Info {
	i := d.Device.Info()
	if d.info != nil {
		d.info(&i)
	}
	return i
}

func (d *rewritten) step(what string) error {
	if n := len(d.steps); n == 0 || d.steps[n-1] != what {
		d.steps = append(d.steps, what)
	}
	if d.hold != nil {
		<-d.hold
	}
	time.Sleep(d.at) // as slow as the test says, in a bubble
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails == what {
		if d.once {
			d.fails = ""
		}
		return d.err
	}
	return nil
}

// fail says which step fails.
func (d *rewritten) fail(step string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = step
}

func (d *rewritten) WriteAt(p []byte, off int64) (int, error) {
	if err := d.step("write"); err != nil {
		return 0, err
	}
	d.wrote = append(d.wrote, bytes.Clone(p[:512]))
	return d.Device.WriteAt(p, off)
}

func (d *rewritten) WriteZeroes(off, n int64, mayUnmap bool) error {
	if err := d.step(map[bool]string{true: "unmap", false: "zero"}[mayUnmap]); err != nil {
		return err
	}
	return d.Device.WriteZeroes(off, n, mayUnmap)
}

func (d *rewritten) Flush() error { return d.step("flush") }

// eraser is one that can erase.
type eraser struct{ *rewritten }

func (d eraser) Erase(off, n int64) error {
	if err := d.step("erase"); err != nil {
		return err
	}
	return d.Device.WriteZeroes(off, n, true)
}

// TestRewriteMeans: how each kind of rewrite gets rid of what the blocks held, by what the
// device can do, that it is flushed, and what is then known of the blocks.
func TestRewriteMeans(t *testing.T) {
	pattern := []byte{1, 2, 3}
	for _, c := range []struct {
		name                     string
		o                        Rewrite
		backend                  string
		erases, discards, zeroes bool
		steps                    []string
		hole                     bool
	}{
		{"erase", Rewrite{Kind: Erase}, "lvm", true, true, false, []string{"erase", "flush"}, true},
		{"erase what forgets", Rewrite{Kind: Erase}, "mem", false, true, false, []string{"unmap", "flush"}, true},
		{"erase what cannot discard", Rewrite{Kind: Erase}, "mem", false, false, false, []string{"unmap", "flush"}, false},
		{"overwrite", Rewrite{Kind: Overwrite, Pattern: pattern}, "lvm", true, true, true, []string{"write", "flush"}, false},
		{"format", Rewrite{Kind: Format}, "file", false, true, false, []string{"zero", "flush"}, true},
		{"format where discarded blocks are zeroes", Rewrite{Kind: Format}, "file", false, true, true, []string{"unmap", "flush"}, true},
		{"format of one that erases", Rewrite{Kind: Format}, "lvm", true, true, false, []string{"zero", "flush"}, false},
		{"format with a pattern", Rewrite{Kind: Format, Pattern: pattern}, "file", false, true, true, []string{"write", "flush"}, false},
		{"secure format", Rewrite{Kind: Format, Secure: true}, "file", false, true, true, []string{"write", "flush"}, false},
		{"secure format of one that erases", Rewrite{Kind: Format, Secure: true}, "lvm", true, true, true, []string{"erase", "flush"}, true},
		{"secure format of what forgets", Rewrite{Kind: Format, Secure: true}, "mem", false, true, true, []string{"unmap", "flush"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newRewritten(t, 64<<10)
			d.info = func(i *blockdev.Info) { i.Backend, i.Discard, i.ZeroesOnTrim = c.backend, c.discards, c.zeroes }
			cfg := Config{Device: d, StateDir: t.TempDir()}
			if c.erases {
				cfg.Device = eraser{d}
			}
			b := serve(t, new(Registry), cfg, "v")
			if got, want := b.v.Rewriter.OffersErase(), c.discards && (c.erases || c.backend == "mem"); got != want {
				t.Errorf("offers erase: %v", got)
			}
			c.o.Passes = 1
			end, err := b.v.Rewriter.Begin(c.o)
			if err != nil {
				t.Fatal(err)
			}
			b.wait(end)
			if err := end.Err(); err != nil || !slices.Equal(d.steps, c.steps) {
				t.Errorf("%q (%v), want %q", d.steps, err, c.steps)
			}
			if x, err := b.v.Extents(0, 512); err != nil || c.hole && x[0].Data || b.v.erased.Load() != (c.hole && c.backend != "lvm") {
				t.Errorf("%+v, %v: erased %v", x, err, b.v.erased.Load())
			}
			want := make([]byte, 512)
			for i := range c.o.Pattern {
				for k := i; k < len(want); k += len(pattern) {
					want[k] = pattern[i]
				}
			}
			got := make([]byte, 1024)
			if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, append(want, want...)) {
				t.Errorf("the blocks hold % x…, want % x…", got[:8], want[:8])
			}
			if b.face.events[len(b.face.events)-1] != RewriteEnded || b.v.Gates() != 0 {
				t.Errorf("told %v, gates %x", b.face.events, b.v.Gates())
			}
			o, s, _ := b.v.Rewriter.LastSanitize()
			if wantS := map[bool]SanitizeStatus{true: NeverSanitized, false: Sanitized}[c.o.Kind == Format]; s != wantS || s == Sanitized && o.Kind != c.o.Kind {
				t.Errorf("last sanitize: %v, %+v", s, o)
			}
			// And so it is after a restart.
			b.close()
			b = serve(t, new(Registry), cfg, "v")
			if _, again, p := b.v.Rewriter.LastSanitize(); again != s || p != 0 || b.v.Gates() != 0 {
				t.Errorf("after a restart: %v, gates %x", again, b.v.Gates())
			}
		})
	}
}

// TestPasses: with INVERT every other pass writes the complement, so that the last one writes
// the pattern; each is durable before the next; the end of a volume that is no multiple of
// a piece is not passed.
func TestPasses(t *testing.T) {
	for passes := 1; passes <= 4; passes++ {
		for _, invert := range []bool{false, true} {
			size, pieces := int64(64<<10), 1
			if passes == 1 {
				size, pieces = StageBytes+size, 2
			}
			d := newRewritten(t, size)
			b := serve(t, new(Registry), Config{Device: d}, "v")
			end, err := b.v.Rewriter.Begin(Rewrite{Kind: Overwrite, Passes: passes, Pattern: []byte{0xA5}, Invert: invert})
			if err != nil {
				t.Fatal(err)
			}
			b.wait(end)
			if end.Err() != nil {
				t.Fatal(end.Err())
			}
			var want, got, steps []string
			for i := range passes {
				x := "a5"
				if invert && (passes-i)%2 == 0 {
					x = "5a"
				}
				want = append(want, slices.Repeat([]string{x}, pieces)...)
				steps = append(steps, "write", "flush")
			}
			for _, w := range d.wrote {
				got = append(got, fmt.Sprintf("%x", w[:1]))
			}
			if !slices.Equal(got, want) || !slices.Equal(d.steps, steps) {
				t.Errorf("%d passes, invert %v: %q, %q", passes, invert, got, d.steps)
			}
			all := make([]byte, size)
			if _, err := d.ReadAt(all, 0); err != nil || !bytes.Equal(all, bytes.Repeat([]byte{0xA5}, len(all))) {
				t.Errorf("%d passes, invert %v: the pattern is not everywhere", passes, invert)
			}
			b.close()
		}
	}
}

// TestRewriteFails: a rewrite of which any step fails has failed, is counted, and is known
// to have failed after a restart. One that the volume's end cut short goes on then.
func TestRewriteFails(t *testing.T) {
	for _, fails := range []string{"write", "unmap", "flush", "journal", "stopped"} {
		t.Run(fails, func(t *testing.T) {
			d := newRewritten(t, 64<<10)
			d.fails, d.err = fails, blockdev.ErrMedium
			if fails == "stopped" {
				d.fails, d.err = "write", fmt.Errorf("writing: %w", blockdev.ErrStopped)
			}
			cfg := Config{Device: d, StateDir: t.TempDir()}
			b := serve(t, new(Registry), cfg, "v")
			if fails == "journal" {
				if err := os.Mkdir(b.v.Journal.name, 0o700); err != nil { // cannot be written
					t.Fatal(err)
				}
			}
			o := Rewrite{Kind: Overwrite, Passes: 1, Pattern: []byte{1}}
			if fails == "unmap" {
				o = Rewrite{Kind: Erase, Passes: 1}
			}
			end, err := b.v.Rewriter.Begin(o)
			if err != nil {
				t.Fatal(err)
			}
			b.wait(end)
			errs := b.v.Counters.errs[Writing].Load()
			if fails == "stopped" {
				if end.Err() != errCancelled {
					t.Errorf("%v", end.Err())
				}
			} else if end.Err() == nil || errs == 0 && fails != "journal" {
				t.Errorf("%v, %d errors are counted", end.Err(), errs)
			}
			if b.v.erased.Load() || b.v.Gates() != SanitizeFailed {
				t.Errorf("erased %v, gates %x", b.v.erased.Load(), b.v.Gates())
			}
			if o, s, p := b.v.Rewriter.LastSanitize(); s != SanitizeHasFailed || !o.Failed || p != 0 {
				t.Errorf("%v, %+v, %d", s, o, p)
			}
			b.close()
			if err := os.RemoveAll(b.v.Journal.name); err != nil {
				t.Fatal(err)
			}
			d.fails = ""
			b = serve(t, new(Registry), cfg, "v")
			if fails != "stopped" {
				if b.v.Gates() != SanitizeFailed {
					t.Errorf("gates after a restart: %x", b.v.Gates())
				}
				return
			}
			await.True(t, "it is done", func() bool { return b.v.Gates() == 0 })
			if _, s, _ := b.v.Rewriter.LastSanitize(); s != Sanitized || len(d.wrote) != 1 {
				t.Errorf("%v after %d pieces", s, len(d.wrote))
			}
		})
	}
}

// TestSavedProgressIsDurable: what is saved as done has been flushed, and no saving comes
// more often than its period; when either fails, the rewrite has.
func TestSavedProgressIsDurable(t *testing.T) {
	file, folder := durable.SyncFile, durable.SyncDir
	t.Cleanup(func() { durable.SyncFile, durable.SyncDir = file, folder })
	for _, fails := range []string{"", "flush", "save"} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			d := newRewritten(t, 6*StageBytes)
			b := serve(t, new(Registry), Config{Device: d, StateDir: dir}, "v")
			durable.SyncFile = func(*os.File) error { return d.step("save") }
			d.at, d.once = time.Second*6, true
			end, err := b.v.Rewriter.Begin(Rewrite{Kind: Overwrite, Passes: 1, Pattern: []byte{1}})
			if err != nil {
				t.Fatal(err)
			}
			d.fail(fails)
			time.Sleep(time.Hour)
			synctest.Wait()
			want := []string{"save", "write", "flush", "save", "write", "flush", "save", "write", "flush", "save", "flush", "save"}
			switch fails {
			case "flush":
				want = append(want[:3:3], "save") // that it has failed
			case "save":
				want = want[:4] // and that it has failed
			}
			if !slices.Equal(d.steps, want) || (end.Err() == nil) != (fails == "") {
				t.Errorf("%q fails: %q, %v", fails, d.steps, end.Err())
			}
			d.fail("")
			d.at = 0
			b.close()
		})
	}
}

// TestMergedIntoErased: after a block erase, and in the process that takes the volume over, a logical volume
// says itself what is allocated: a snapshot may have been merged into it, and who copies it passes over holes.
func TestMergedIntoErased(t *testing.T) {
	d := newRewritten(t, 64<<10)
	d.info = func(i *blockdev.Info) { i.Backend, i.Discard, i.ZeroesOnTrim = "lvm", true, true }
	b := serve(t, new(Registry), Config{Device: eraser{d}, StateDir: t.TempDir()}, "v")
	end, err := b.v.Rewriter.Begin(Rewrite{Kind: Erase, Passes: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.wait(end)
	if x, err := b.v.Extents(0, 4096); err != nil || x[0].Data {
		t.Errorf("after the erase: %+v, %v", x, err)
	}
	if _, err := d.Device.WriteAt(bytes.Repeat([]byte{7}, 4096), 0); err != nil { // as a merge does, below the volume
		t.Fatal(err)
	}
	if x, err := b.v.Extents(0, 4096); err != nil || !x[0].Data {
		t.Errorf("after a merge: %+v, %v", x, err)
	}
	b.v.Rewriter.goOn(&carriedRewrites{Erased: true}) // a process of an older version may say so
	if x, err := b.v.Extents(0, 4096); err != nil || !x[0].Data {
		t.Errorf("taken over: %+v, %v", x, err)
	}
}

// allData is a disk that cannot tell holes from data.
type allData struct{ eraser }

func (allData) Extents(off, n int64) ([]blockdev.Extent, error) {
	return []blockdev.Extent{{Off: off, Len: n, Data: true}}, nil
}

// TestGrownAfterErase: of a disk that has been erased, what it has grown by since is not taken for holes.
func TestGrownAfterErase(t *testing.T) {
	d := newRewritten(t, 64<<10)
	d.info = func(i *blockdev.Info) { i.Backend, i.Discard = "raw", true }
	b := serve(t, new(Registry), Config{Device: allData{eraser{d}}, StateDir: t.TempDir()}, "v")
	end, err := b.v.Rewriter.Begin(Rewrite{Kind: Erase, Passes: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.wait(end)
	if x, err := b.v.Extents(0, 4096); err != nil || x[0].Data {
		t.Errorf("after the erase: %+v, %v", x, err)
	}
	if err := d.Device.(blockdev.Resizer).Resize(128 << 10); err != nil {
		t.Fatal(err)
	}
	if x, err := b.v.Extents(64<<10, 4096); err != nil || !x[0].Data {
		t.Errorf("what it has grown by: %+v, %v", x, err)
	}
}

// shortened is a device that is cut off behind a page of the second piece just before that is written.
type shortened struct{ *rewritten }

func (d shortened) WriteAt(p []byte, off int64) (int, error) {
	if off == StageBytes {
		if err := d.Device.(blockdev.Resizer).Resize(StageBytes + 4096); err != nil {
			return 0, err
		}
	}
	return d.rewritten.WriteAt(p, off)
}

// TestShortenedDuringRewrite: a rewrite does not fail because the blocks that it is about to write are cut off.
func TestShortenedDuringRewrite(t *testing.T) {
	d := newRewritten(t, 2*StageBytes)
	b := serve(t, new(Registry), Config{Device: shortened{d}, StateDir: t.TempDir()}, "v")
	end, err := b.v.Rewriter.Begin(Rewrite{Kind: Overwrite, Pattern: []byte{7}, Passes: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.wait(end)
	if err := end.Err(); err != nil || b.v.Gates() != 0 {
		t.Errorf("%v, gates %x", err, b.v.Gates())
	}
	got := make([]byte, 4096)
	if _, err := d.ReadAt(got, StageBytes); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{7}, 4096)) {
		t.Errorf("in front of the new end: % x…, %v", got[:8], err)
	}
}

// TestOneRewrite: while one runs there is no other, the blocks are not taken for holes any
// more, and its progress is its own; one that waits for it holds no blocks.
func TestOneRewrite(t *testing.T) {
	d := newRewritten(t, 2*StageBytes)
	b := serve(t, new(Registry), Config{Device: d}, "v")
	z := &b.v.Rewriter
	if _, p := z.Progress(); p != 0 {
		t.Errorf("progress before any: %d", p)
	}
	if o, s, p := z.LastSanitize(); s != NeverSanitized || p != 0 || o.Kind != "" {
		t.Errorf("%+v, %v, %d", o, s, p)
	}
	end, err := z.Begin(Rewrite{Kind: Erase, Passes: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.wait(end)
	if kind, p := z.Progress(); kind != Erase || p != 65535 || !b.v.erased.Load() {
		t.Errorf("%v at %d, erased %v", kind, p, b.v.erased.Load())
	}
	if o, s, p := z.LastSanitize(); o.Kind != Erase || s != Sanitized || p != 0 {
		t.Errorf("%+v, %v, %d", o, s, p)
	}

	hold := make(chan struct{})
	d.hold = hold
	me := new(Client)
	alone := make(chan struct{})
	waits := &req{steps: make(chan Cause, 4), more: func(*req) { close(alone) }}
	b.start(waits, me, Simple, 0, 8, HoldStaged)
	b.v.All(&waits.op)
	<-alone
	behind, now := b.start(nil, me, Simple, 0, 8, HoldWrite)
	if now {
		t.Error("a command has the blocks of an exclusive one")
	}
	if end, err = z.Begin(Rewrite{Kind: Overwrite, Passes: 2, Pattern: []byte{1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := z.Begin(Rewrite{Kind: Format, Passes: 1}); err != ErrRewriting {
		t.Errorf("another one: %v", err)
	}
	if b.v.erased.Load() || b.v.Gates() != Sanitizing {
		t.Errorf("erased %v, gates %x", b.v.erased.Load(), b.v.Gates())
	}
	progress := func(want uint16) {
		t.Helper()
		await.True(t, fmt.Sprintf("progress %d", want), func() bool { _, p := z.Progress(); return p == want })
		if o, s, p := z.LastSanitize(); o.Kind != Overwrite || s != SanitizeRuns || p != want {
			t.Errorf("%+v, %v, %d", o, s, p)
		}
	}
	progress(0)
	if !b.v.Await(&waits.op, end) {
		t.Error("it is over already")
	}
	if why := <-behind.steps; why != Proceed { // who waits for the end holds no blocks
		t.Errorf("%v", why)
	}
	hold <- struct{}{}
	progress(16384)
	hold <- struct{}{}
	progress(32768)
	close(hold)
	b.wait(end)
	if why := <-waits.steps; why != Proceed {
		t.Errorf("%v", why)
	}
	if late, _ := b.start(nil, me, Simple, 0, 8, HoldWrite); b.v.Await(&late.op, end) {
		t.Error("it waits for what is over")
	} else {
		late.end()
	}
}

// TestAbortedDoesNotAwait: who was aborted before it began to wait does not wait.
func TestAbortedDoesNotAwait(t *testing.T) {
	d := newRewritten(t, 64<<10)
	hold := make(chan struct{})
	d.hold = hold
	b := serve(t, new(Registry), Config{Device: d}, "v")
	r, _ := b.start(nil, new(Client), Simple, 0, 8, HoldWrite)
	end, err := b.v.Rewriter.Begin(Rewrite{Kind: Erase, Passes: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.v.AbortWhere(func(*Op) AbortReason { return AbortedByOther }, nil)
	if b.v.Await(&r.op, end) {
		t.Error("it waits")
	}
	r.end()
	close(hold)
	b.wait(end)
}

// TestFailedRewriteIsLeft: the failure of a restricted sanitize is left by another restricted
// one only, that of an unrestricted one by any and by ExitFailure, if that can be saved.
func TestFailedRewriteIsLeft(t *testing.T) {
	for _, unrestricted := range []bool{false, true} {
		d := newRewritten(t, 64<<10)
		b := serve(t, new(Registry), Config{Device: d, StateDir: t.TempDir()}, "v")
		z := &b.v.Rewriter
		saved := func() bool {
			b.v.state.mu.Lock()
			defer b.v.state.mu.Unlock()
			return b.v.state.kept.Op != nil
		}
		run := func(unrestricted bool, fails string, want error) {
			t.Helper()
			d.fails = fails
			end, err := z.Begin(Rewrite{Kind: Overwrite, Passes: 1, Pattern: []byte{1}, Unrestricted: unrestricted})
			if err != want {
				t.Fatalf("%v, want %v", err, want)
			}
			if err == nil {
				b.wait(end)
			}
		}
		run(unrestricted, "write", nil)
		if !unrestricted {
			if err := z.ExitFailure(); err != ErrRestricted || b.v.Gates() != SanitizeFailed {
				t.Errorf("%v, gates %x", err, b.v.Gates())
			}
			run(true, "", ErrRestricted)
			run(false, "", nil)
		} else {
			run(true, "write", nil)
			sync := durable.SyncFile
			durable.SyncFile = func(*os.File) error { return errStep }
			if err := z.ExitFailure(); !errors.Is(err, errStep) || b.v.Gates() != SanitizeFailed {
				t.Errorf("%v, gates %x", err, b.v.Gates())
			}
			durable.SyncFile = sync
			if err := z.ExitFailure(); err != nil {
				t.Error(err)
			}
			if _, s, _ := z.LastSanitize(); s != NeverSanitized {
				t.Errorf("one that has failed counts as done: %v", s)
			}
		}
		if b.v.Gates() != 0 {
			t.Errorf("gates %x", b.v.Gates())
		}
		// And while another one runs it has not failed any more.
		run(true, "write", nil)
		hold := make(chan struct{})
		d.hold, d.fails = hold, ""
		end, err := z.Begin(Rewrite{Kind: Format, Passes: 1, Unrestricted: true})
		if err != nil || b.v.Gates() != Formatting {
			t.Errorf("%v, gates %x", err, b.v.Gates())
		}
		// Who has asked before that one began leaves it what a restart has to know.
		if err := z.ExitFailure(); err != ErrRewriting || !saved() {
			t.Errorf("%v, saved %v", err, saved())
		}
		close(hold)
		b.wait(end)
		b.close()
	}
}

// TestResumedProgress: after a restart a sanitize is as far as it was saved.
func TestResumedProgress(t *testing.T) {
	d := newRewritten(t, 64<<10)
	hold := make(chan struct{})
	d.hold = hold
	cfg := Config{Device: d, StateDir: t.TempDir()}
	b := serve(t, new(Registry), cfg, "v")
	name, unit := b.v.state.file(".json"), b.v.id.Key()
	b.close()
	for _, c := range []struct {
		pass   int
		offset int64
		want   uint16
	}{{2, 32 << 10, 65536 * 5 / 8}, {0, 0, 0}, {4, 0, 65535}, {3, 1 << 40, 65535}} {
		b2, err := json.Marshal(savedState{Version: 1, Unit: unit, Op: &Rewrite{Kind: Overwrite, Passes: 4, Pass: c.pass, Offset: c.offset, Pattern: []byte{1}, Failed: true}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b2, 0o600); err != nil {
			t.Fatal(err)
		}
		b := serve(t, new(Registry), cfg, "v")
		if kind, p := b.v.Rewriter.Progress(); kind != Overwrite || p != c.want {
			t.Errorf("pass %d, offset %d: %v at %d, want %d", c.pass, c.offset, kind, p, c.want)
		}
		b.close()
	}
}

// TestLongestPattern: it is as long as the longest block.
func TestLongestPattern(t *testing.T) {
	for n, want := range map[int]bool{0: true, maxPattern: true, maxPattern + 1: false} {
		o := Rewrite{Kind: Format, Passes: 1, Pattern: []byte(strings.Repeat("x", n))}
		if o.valid() != want {
			t.Errorf("%d bytes: %v", n, !want)
		}
	}
}
