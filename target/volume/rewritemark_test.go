package volume

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/internal/await"
)

// marked is a rewritten that keeps a mark.
type marked struct {
	*rewritten
	mark    string // guarded by mu
	refuses bool   // it cannot be set
}

func (d *marked) Mark(kind blockdev.MarkKind) (string, error) {
	if kind != blockdev.MarkRewrite {
		return "", nil
	}
	return d.has(), nil
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
