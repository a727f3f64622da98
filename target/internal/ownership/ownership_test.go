package ownership

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// now is a context that does not wait.
func now() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func claim(t *testing.T, s *Store, generation uint64) {
	t.Helper()
	r, err := s.Claim(now())
	if err != nil || r.Generation != generation {
		t.Fatalf("Claim = %+v, %v; want generation %d", r, err, generation)
	}
}

// One node at a time owns a group, keeps records, and hands them on.
func TestOneOwner(t *testing.T) {
	dir := t.TempDir()
	a, b := New(dir, "g", "a"), New(dir, "g", "b")
	if err := a.Save("x", []byte("1")); !errors.Is(err, ErrNotOwner) {
		t.Errorf("Save without ownership = %v", err)
	}
	claim(t, a, 1)
	claim(t, a, 1) // asked again
	if _, err := a.Load("x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of nothing = %v", err)
	}
	if err := a.Save("x", []byte("1")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Claim(now()); err == nil || !strings.Contains(err.Error(), `node "a" holds`) {
		t.Fatalf("second owner: %v", err)
	}
	if _, err := b.Load("x"); !errors.Is(err, ErrNotOwner) {
		t.Errorf("Load without ownership = %v", err)
	}
	if v, err := b.Peek("x"); err != nil || string(v) != "1" {
		t.Errorf("Peek = %q, %v", v, err)
	}
	if _, err := b.Peek("y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Peek at nothing = %v", err)
	}
	if _, err := New(t.TempDir(), "g", "b").Peek("x"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Peek into what is not mounted = %v", err)
	}
	if err := a.Yield(); err != nil {
		t.Fatal(err)
	}
	if r, err := b.Owner(); err != nil || !r.Ended || r.Node != "a" {
		t.Errorf("Owner after Yield = %+v, %v", r, err)
	}
	claim(t, b, 2)
	defer b.Yield() //nolint:errcheck // the folder goes with the test
	if x, err := b.Load("x"); err != nil || string(x) != "1" {
		t.Errorf("Load = %q, %v", x, err)
	}
	if err := b.Remove("x"); err != nil {
		t.Error(err)
	}
}

// An owner that was taken for dead, and wakes, changes nothing any more: neither records,
// nor who the owner is.
func TestOldOwnerWakes(t *testing.T) {
	dir := t.TempDir()
	a, b := New(dir, "g", "a"), New(dir, "g", "b")
	claim(t, a, 1)
	if err := a.Save("x", []byte("1")); err != nil {
		t.Fatal(err)
	}
	// What a file server does that takes a client for dead: the lock is another one's.
	if err := os.Remove(filepath.Join(dir, "g.lock")); err != nil {
		t.Fatal(err)
	}
	claim(t, b, 2)
	defer b.Yield()                          //nolint:errcheck // the folder goes with the test
	for name, err := range map[string]error{ // in this order
		"Check": a.Check(), "Save": a.Save("x", []byte("2")), "Remove": a.Remove("x"), "Yield": a.Yield(),
	} {
		if !errors.Is(err, ErrLost) {
			t.Errorf("%s of an old owner = %v, want ErrLost", name, err)
		}
	}
	if x, err := b.Load("x"); err != nil || string(x) != "1" {
		t.Errorf("the record is %q, %v", x, err)
	}
	if err := b.Check(); err != nil {
		t.Errorf("the new owner: %v", err)
	}
}

// An owner whose record somebody has removed changes nothing, and does not take the group for another node's.
func TestRecordIsGone(t *testing.T) {
	dir := t.TempDir()
	a := New(dir, "g", "a")
	claim(t, a, 1)
	if err := os.Remove(filepath.Join(dir, "g.owner")); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"Check": a.Check(), "Save": a.Save("x", []byte("1"))} {
		if err == nil || errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "g.owner is gone") {
			t.Errorf("%s = %v", name, err)
		}
	}
	if _, err := New(dir, "g", "b").Claim(now()); err == nil || !strings.Contains(err.Error(), "g.lock) is held, and nothing says by which node") {
		t.Errorf("Claim of another node = %v", err)
	}
	if err := a.Yield(); err == nil || errors.Is(err, ErrLost) || a.Held() {
		t.Errorf("Yield = %v", err)
	}
	claim(t, a, 1)
	if err := a.Yield(); err != nil {
		t.Error(err)
	}
}

// Who waits for the lock gets it when it comes free.
func TestClaimWaits(t *testing.T) {
	dir := t.TempDir()
	a, b := New(dir, "g", "a"), New(dir, "g", "b")
	claim(t, a, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got := make(chan error, 1)
	go func() { _, err := b.Claim(ctx); got <- err }()
	if err := a.Yield(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if err := b.Yield(); err != nil {
		t.Fatal(err)
	}
}

// A store that is not mounted is said to be.
func TestNotMounted(t *testing.T) {
	_, err := New(filepath.Join(t.TempDir(), "none"), "g", "a").Claim(now())
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "is it mounted") {
		t.Errorf("Claim = %v", err)
	}
}
