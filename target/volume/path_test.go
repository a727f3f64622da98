package volume

import "testing"

// A volume is reached through every portal group until something else is said of one, and
// its faces are told of what changes, once.
func TestPaths(t *testing.T) {
	b := serve(t, new(Registry), Config{Device: newDevice(t, "a")}, "x")
	is := func(group uint16, want PathState, changes uint64, events int) {
		t.Helper()
		s, n := b.v.Path(group)
		b.face.mu.Lock()
		defer b.face.mu.Unlock()
		if s != want || n != changes || len(b.face.events) != events {
			t.Errorf("group %d: state %d after %d changes, want %d after %d; %d events, want %d", group, s, n, want, changes, len(b.face.events), events)
		}
	}
	is(1, PathOptimized, 0, 0)
	b.v.SetPath(1, PathOptimized)
	is(1, PathOptimized, 0, 0)
	b.v.SetPath(1, PathInaccessible)
	b.v.SetPath(1, PathInaccessible)
	is(1, PathInaccessible, 1, 1)
	is(2, PathOptimized, 0, 1)
	b.v.SetPath(2, PathChanging)
	b.v.SetPath(1, PathOptimized)
	is(1, PathOptimized, 2, 3)
	is(2, PathChanging, 1, 3)
}

// Protection keeps everybody from writing, and is told once.
func TestProtect(t *testing.T) {
	b := serve(t, new(Registry), Config{Device: newDevice(t, "a")}, "x")
	for _, on := range []bool{false, true, true, false} {
		if err := b.v.Protect(on); err != nil {
			t.Fatal(err)
		}
		if b.v.Gates()&WriteGates != 0 != on {
			t.Errorf("gates %b, protected %t", b.v.Gates(), on)
		}
	}
	if len(b.face.events) != 2 {
		t.Errorf("%d events for two changes", len(b.face.events))
	}
}
