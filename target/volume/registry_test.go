package volume

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
)

// TestMapWaitsForItsOwnDevice: a device whose undo journal is put back slowly delays those
// that map it, and nobody else.
func TestMapWaitsForItsOwnDevice(t *testing.T) {
	dir := t.TempDir()
	slow := faulty.New(newDevice(t, "slow"), 1)
	reg := new(Registry)
	// What a crash has left of an atomic write.
	b := serve(t, reg, Config{Device: slow, StateDir: dir}, "first life")
	b.v.Journal.mu.Lock()
	if _, err := b.v.Journal.putLocked(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	b.v.Journal.mu.Unlock()
	b.close()
	synctest.Test(t, func(t *testing.T) {
		slow.SetRules(faulty.Rule{Op: faulty.Write, Delay: time.Hour, Times: 1})
		began := time.Now()
		var wg sync.WaitGroup
		var at [2]*bench
		for i := range at {
			wg.Go(func() { at[i] = serve(t, reg, Config{Device: slow, StateDir: dir}, "second life") })
		}
		synctest.Wait()
		other := serve(t, reg, Config{Device: newDevice(t, "other"), StateDir: dir}, "other")
		other.close()
		if d := time.Since(began); d != 0 {
			t.Errorf("another device waited %v", d)
		}
		wg.Wait()
		if d := time.Since(began); d != time.Hour {
			t.Errorf("the device was there after %v", d)
		}
		if at[0].v != at[1].v || at[0].v == nil {
			t.Error("two volumes on one device")
		}
		for _, b := range at {
			b.close()
		}
	})
}

// TestMapFails: what cannot be opened is in nobody's way afterwards, those who waited for
// it included.
func TestMapFails(t *testing.T) {
	dir := t.TempDir()
	reg := new(Registry)
	cfg := Config{Device: newDevice(t, "a"), StateDir: dir}
	b := serve(t, reg, cfg, "first")
	name := b.v.state.file(".json")
	b.close()
	if err := os.WriteFile(name, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var errs [4]error
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = reg.Map(cfg, new(Place), PlaceConfig{Name: "broken", Face: &testFace{}})
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err == nil {
		t.Error("served without its state")
	}
	for i, err := range errs {
		if err == nil {
			t.Errorf("%d was served", i)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	serve(t, reg, cfg, "again")
	if all, _ := filepath.Glob(filepath.Join(dir, "*.json")); len(all) != 0 {
		t.Errorf("%v", all)
	}
}

// TestPlaces: a further place of a device is one of the same volume, which ends with the
// last; another opening of it is another volume, and refused.
func TestPlaces(t *testing.T) {
	reg := new(Registry)
	dev := newDevice(t, "a")
	a, b := serve(t, reg, Config{Device: dev}, "a"), serve(t, reg, Config{Device: dev}, "b")
	if a.v != b.v {
		t.Fatal("two volumes on one device")
	}
	if _, err := reg.Map(Config{Device: struct{ blockdev.Device }{dev}}, new(Place), PlaceConfig{Name: "c", Face: &testFace{}}); err == nil {
		t.Error("opened once more")
	}
	if err := dev.(blockdev.Resizer).Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*bench{a, b} {
		if len(x.face.events) != 1 || x.face.events[0] != GeometryChanged {
			t.Errorf("told of %v", x.face.events)
		}
	}
	a.close()
	if b.place.Removed() || !b.place.Use() {
		t.Error("both are gone")
	}
	b.place.Unuse()
	b.close()
	if len(reg.all) != 0 {
		t.Errorf("%d volumes are left", len(reg.all))
	}
}
