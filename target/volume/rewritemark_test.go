package volume

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"softiser/blockdev"
	"softiser/internal/await"
	"softiser/target/internal/statefile"
)

// marked is a rewritten that keeps a mark.
type marked struct {
	*rewritten
	mark    string // guarded by mu
	refuses bool   // it cannot be set
	unread  error  // of who asks for it
}

func (d *marked) Mark(kind blockdev.MarkKind) (string, error) {
	if kind != blockdev.MarkRewrite {
		return "", nil
	}
	return d.has(), d.unread
}

func (d *marked) has() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mark
}

// put has somebody else make the mark what it is.
func (d *marked) put(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mark = text
}

func (d *marked) SetMark(kind blockdev.MarkKind, text string) error {
	if kind != blockdev.MarkRewrite {
		return errors.New("it is about rewrites")
	}
	if d.refuses && text != "" {
		return errors.New("no room for attributes")
	}
	d.put(text)
	return nil
}

func (d *marked) Unmark(kind blockdev.MarkKind) string { return "unmark " + string(kind) }

// refused maps cfg, which must fail with an error that says each of why.
func refused(t *testing.T, cfg Config, why ...string) {
	t.Helper()
	var p Place
	_, err := new(Registry).Map(cfg, &p, PlaceConfig{Name: "v", Seed: "v", Face: &testFace{left: make(chan struct{})}})
	if err == nil {
		t.Fatal("the volume is served")
	}
	for _, w := range why {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// interrupt begins o on a volume of cfg and ends the volume in the midst of it, as failed or not.
func interrupt(t *testing.T, cfg Config, d *marked, o Rewrite, failed bool) (state string) {
	t.Helper()
	d.fails, d.err = "write", blockdev.ErrStopped
	if failed {
		d.err = blockdev.ErrMedium
	}
	b := serve(t, new(Registry), cfg, "v")
	end, err := b.v.Rewriter.Begin(o)
	if err != nil {
		t.Fatal(err)
	}
	b.wait(end)
	b.close()
	d.fails = ""
	return b.v.state.file(".json")
}

// TestRewriteOfAnotherFolder: a volume with a rewrite that has not ended is served with the folder
// that knows of it, and no other, nor with none; and if it has been served elsewhere all the same,
// that folder does not have the rewrite go on over what has been written since.
func TestRewriteOfAnotherFolder(t *testing.T) {
	for _, failed := range []bool{false, true} {
		for _, o := range []Rewrite{{Kind: Overwrite, Passes: 1, Pattern: []byte{1}}, {Kind: Format, Passes: 1, Pattern: []byte{1}}} {
			d := &marked{rewritten: newRewritten(t, 64<<10)}
			here, there := Config{Device: d, StateDir: t.TempDir()}, Config{Device: d, StateDir: t.TempDir()}
			state := interrupt(t, here, d, o, failed)
			refused(t, there, here.StateDir, "unmark "+string(blockdev.MarkRewrite))
			refused(t, Config{Device: d}, here.StateDir)

			mark := d.has()
			d.put("") // somebody gives it up, and goes on with the other folder
			serve(t, new(Registry), there, "v").close()
			wrote := len(d.wrote)
			if failed {
				refused(t, here, state, string(o.Kind), "remove the file")
			} else {
				b := serve(t, new(Registry), here, "v")
				if b.v.Gates() != 0 {
					t.Errorf("%s: gates %x", o.Kind, b.v.Gates())
				}
				b.close()
			}
			// The other folder has a rewrite of its own under way.
			interrupt(t, there, d, o, failed)
			refused(t, here, there.StateDir)
			if len(d.wrote) != wrote {
				t.Errorf("%s: it has gone on", o.Kind)
			}

			// As it was: it goes on, or has failed.
			d.put(mark)
			b := serve(t, new(Registry), here, "v")
			if o.Kind == Format || failed {
				if b.v.Gates() != o.Kind.failed() {
					t.Errorf("%s: gates %x", o.Kind, b.v.Gates())
				}
				hold := make(chan struct{}) // until the mark has been seen
				d.hold = hold
				end, err := b.v.Rewriter.Begin(o)
				now := d.has()
				close(hold)
				if err != nil || now != mark {
					t.Fatalf("%v, mark %q, was %q", err, now, mark)
				}
				b.wait(end)
			}
			await.True(t, "it is done", func() bool { return b.v.Gates() == 0 })
			b.close()
			if now := d.has(); now != "" {
				t.Errorf("%s: mark %q", o.Kind, now)
			}
		}
	}
}

// TestMarkOfOneThatHasEnded: a mark that could not be taken away keeps nobody out where it is known
// to be of a rewrite that is over, and goes then.
func TestMarkOfOneThatHasEnded(t *testing.T) {
	d := &marked{rewritten: newRewritten(t, 64<<10)}
	cfg := Config{Device: d, StateDir: t.TempDir()}
	b := serve(t, new(Registry), cfg, "v")
	end, err := b.v.Rewriter.Begin(Rewrite{Kind: Erase, Passes: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.wait(end)
	b.v.state.mu.Lock()
	ended := b.v.state.kept.Ended
	b.v.state.mu.Unlock()
	b.close()
	if now := d.has(); ended == "" || now != "" {
		t.Fatalf("ended %q, mark %q", ended, now)
	}
	d.put(ended + " " + cfg.StateDir)
	serve(t, new(Registry), cfg, "v").close()
	if now := d.has(); now != "" {
		t.Errorf("mark %q", now)
	}
}

// TestNoRoomForAMark: a rewrite of a volume that cannot be marked goes on after a restart, as one
// does whose beginning an earlier version has saved.
func TestNoRoomForAMark(t *testing.T) {
	d := &marked{rewritten: newRewritten(t, 64<<10), refuses: true}
	cfg := Config{Device: d, StateDir: t.TempDir()}
	state := interrupt(t, cfg, d, Rewrite{Kind: Overwrite, Passes: 1, Pattern: []byte{1}}, false)
	b, err := os.ReadFile(state)
	var kept savedState
	if err != nil || json.Unmarshal(b, &kept) != nil || kept.Op == nil || kept.Op.Token != "" || kept.Version != plainVersion {
		t.Fatalf("%v, %s", err, b)
	}
	again := serve(t, new(Registry), cfg, "v")
	await.True(t, "it is done", func() bool { return again.v.Gates() == 0 })
	if _, s, _ := again.v.Rewriter.LastSanitize(); s != Sanitized {
		t.Errorf("%v", s)
	}
}

// fills is a folder that has room for so many records more, of which the first may not be durable.
type fills struct {
	dirStore
	left      int
	uncertain bool
}

func (d *fills) Save(name string, b []byte) error {
	if d.left--; d.left < 0 {
		return syscall.ENOSPC
	}
	err := d.dirStore.Save(name, b)
	if err == nil && d.uncertain {
		d.uncertain = false
		return statefile.ErrUncertain
	}
	return err
}

// TestBeginningThatCouldNotBeSaved: a rewrite that was answered with an error has left nothing that a
// restart would go on with, nor does the next that is saved.
func TestBeginningThatCouldNotBeSaved(t *testing.T) {
	for name, x := range map[string]struct {
		room      int  // for records
		uncertain bool // of a device that keeps no marks
		unread    error
		later     bool // something else is saved before the restart
	}{
		"nothing else is saved": {room: 1}, // the state with the token, and not that without
		"something is":          {room: 1, later: true},
		"uncertain":             {room: 2, uncertain: true},
		"the mark is unread":    {room: 1, unread: syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			d := &marked{rewritten: newRewritten(t, 64<<10), refuses: true}
			cfg := Config{Device: d, StateDir: t.TempDir()}
			if x.uncertain {
				cfg.Device = d.rewritten
			}
			b := serve(t, new(Registry), cfg, "v")
			s := &fills{dirStore: dirStore(cfg.StateDir), left: x.room, uncertain: x.uncertain}
			b.v.state.store, d.unread = s, x.unread
			if _, err := b.v.Rewriter.Begin(Rewrite{Kind: Overwrite, Passes: 1, Pattern: []byte{1}}); err == nil {
				t.Fatal("it has begun")
			}
			if x.unread != nil && s.left != 1 {
				t.Error("something was saved of a rewrite without a token, of a volume that is marked perhaps")
			}
			s.left, d.unread = 1<<30, nil
			if x.later {
				if err := b.v.Register(client("h", 1), &Register{NewKey: 1, Ignore: true, Persist: true}); err != nil {
					t.Fatal(err)
				}
			}
			b.close()
			again := serve(t, new(Registry), cfg, "v")
			if g := again.v.Gates(); g != 0 || len(d.wrote) != 0 {
				t.Errorf("gates %x, %d writes", g, len(d.wrote))
			}
		})
	}
}

// TestMarkThatIsThere: what has failed is not marked anew for the rewrite that mends it. So that begins
// with what a full disk has room for, and a restart knows of it.
func TestMarkThatIsThere(t *testing.T) {
	d := &marked{rewritten: newRewritten(t, 64<<10)}
	cfg, o := Config{Device: d, StateDir: t.TempDir()}, Rewrite{Kind: Overwrite, Passes: 1, Pattern: []byte{1}}
	interrupt(t, cfg, d, o, true)
	mark := d.has()
	b := serve(t, new(Registry), cfg, "v")
	s := &fills{dirStore: dirStore(cfg.StateDir), left: 1}
	hold := make(chan struct{}) // until the mark has been seen
	b.v.state.store, d.refuses, d.hold = s, true, hold
	end, err := b.v.Rewriter.Begin(o)
	if now := d.has(); err != nil || now != mark {
		t.Errorf("%v, mark %q, was %q", err, now, mark)
	}
	s.left = 1 << 30
	close(hold)
	if err == nil {
		b.wait(end)
	}
	if g := b.v.Gates(); g != 0 {
		t.Errorf("gates %x", g)
	}
}
