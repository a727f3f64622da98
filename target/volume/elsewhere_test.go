package volume

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/lazy"
	"softiser/blockdev/mem"
	"softiser/target/internal/ownership"
)

// sharedDir is a folder that two nodes reach.
type sharedDir struct{ dirStore }

func (sharedDir) Shared() bool { return true }

// node is a volume that moves, on one of two nodes, and its device.
type node struct {
	*bench
	d *lazy.Device
}

func newNode(t *testing.T, s Store) *node {
	t.Helper()
	d, err := lazy.New(blockdev.Info{Size: 1 << 20, BlockSize: 512, PhysBlockSize: 4096, ID: "one"})
	if err != nil {
		t.Fatal(err)
	}
	return &node{serve(t, new(Registry), Config{Device: d, Store: s}, "place"), d}
}

func (n *node) take(disk blockdev.Device) {
	n.t.Helper()
	if err := n.d.Attach(disk); err != nil {
		n.t.Fatal(err)
	}
	if err := n.v.Activate(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) give() {
	n.t.Helper()
	n.v.Suspend()
	if err := n.v.Quiesce(context.Background(), 0); err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.d.Detach(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	n.v.Deactivate(true)
}

// client is a session of a host with the node that has this port.
func client(host string, port uint16) *Client {
	return &Client{ID: Registrant{Initiator: "iqn." + host + ",i,0x" + string(rune('0'+port)), Target: "t", Port: port}}
}

// A host that has registered on both nodes has access on both; one that was preempted on
// the node with the volume has none on the other, whatever it has asked for there; and what
// was asked for there alone is nothing.
func TestRegisteredElsewhere(t *testing.T) {
	s := sharedDir{dirStore(t.TempDir())}
	disk := newDevice(t, "disk")
	a, b := newNode(t, s), newNode(t, s)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	a.take(disk)
	for i, host := range []string{"kept", "preempted"} {
		check(a.v.Register(client(host, 1), &Register{NewKey: uint64(i + 1)}))
		check(b.v.Register(client(host, 2), &Register{NewKey: uint64(i + 1), Ignore: true}))
	}
	check(b.v.Register(client("stranger", 2), &Register{NewKey: 1}))
	check(b.v.Register(client("other-key", 2), &Register{NewKey: 3}))
	check(a.v.Register(client("other-key", 1), &Register{NewKey: 4}))
	check(a.v.Reserve(client("kept", 1), 1, WriteExclusiveRegistrants))
	check(a.v.Preempt(client("kept", 1), &Preempt{Key: 1, Victim: 2, Type: WriteExclusiveRegistrants}))
	if n := b.v.Reservations().Len(); n != 0 {
		t.Errorf("%d registrations on the node that does not have the volume", n)
	}
	generation := a.v.Reservations().Generation
	a.give()
	b.take(disk)
	now := b.v.Reservations()
	if now.Generation != generation+1 || now.Type != WriteExclusiveRegistrants || now.Len() != 3 {
		t.Errorf("at the promotion: %+v", now)
	}
	for host, refused := range map[string]bool{"kept": false, "preempted": true, "stranger": true, "other-key": true} {
		if b.v.Forbids(client(host, 2), Writes) != refused {
			t.Errorf("%s: its writes are refused: %t", host, !refused)
		}
	}

	// The other way: a registration ends through the node that does not have the volume.
	check(a.v.Register(client("kept", 1), &Register{Key: 1}))
	b.give()
	a.take(disk)
	if now := a.v.Reservations(); now.Len() != 2 || now.Type != NoReservation {
		t.Errorf("the holder has ended its registration: %+v", now)
	}
	a.give()

	// Notes are for one promotion.
	b.take(disk)
	if now := b.v.Reservations(); now.Len() != 2 {
		t.Errorf("an old note has come back: %+v", now)
	}
	b.give()
}

// fullDir is a shared folder without room for a while.
type fullDir struct {
	sharedDir
	full *bool
}

func (d fullDir) Save(name string, b []byte) error {
	if *d.full {
		return syscall.ENOSPC
	}
	return d.sharedDir.Save(name, b)
}

// A promotion that fails because the registrations cannot be saved forgets nothing: the next attempt has them.
func TestRegisteredElsewhereBeforeAFailedPromotion(t *testing.T) {
	full := false
	s := fullDir{sharedDir{dirStore(t.TempDir())}, &full}
	disk := newDevice(t, "disk")
	a, b := newNode(t, s), newNode(t, s)
	a.take(disk)
	for n, port := range map[*node]uint16{a: 1, b: 2} {
		if err := n.v.Register(client("h", port), &Register{NewKey: 1, Ignore: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.v.Reserve(client("h", 1), 1, WriteExclusiveRegistrants); err != nil {
		t.Fatal(err)
	}
	a.give()
	if err := b.d.Attach(disk); err != nil {
		t.Fatal(err)
	}
	full = true
	if err := b.v.Activate(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("nothing could be saved: %v", err)
	}
	full = false
	if err := b.v.Activate(); err != nil {
		t.Fatal(err)
	}
	if b.v.Forbids(client("h", 2), Writes) {
		t.Error("a host that has registered through both nodes may not write")
	}
	b.give()
}

// TestManyRegisteredElsewhere: that there is no room for all that hosts have registered through both nodes does not
// keep the volume from being had.
func TestManyRegisteredElsewhere(t *testing.T) {
	s := sharedDir{dirStore(t.TempDir())}
	disk := newDevice(t, "disk")
	a, b := newNode(t, s), newNode(t, s)
	a.take(disk)
	const most = maxRegistrations - 1
	ports := func(first uint16) func(Registrant) []Registrant {
		return func(r Registrant) (all []Registrant) {
			for i := range uint16(most) {
				all = append(all, Registrant{Initiator: r.Initiator, Target: r.Target, Port: first + i})
			}
			return all
		}
	}
	if err := a.v.Register(client("h", 1), &Register{NewKey: 1, Ports: ports(1)}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []uint64{2, 1} { // the second time these are noted already
		if err := b.v.Register(client("h", 2), &Register{NewKey: key, Ports: ports(5000), Ignore: true}); err != nil {
			t.Fatal(err)
		}
	}
	a.give()
	b.take(disk)
	if n := b.v.Reservations().Len(); n != maxRegistrations {
		t.Errorf("%d registrations", n)
	}
	b.give()
}

func TestRefusedElsewhere(t *testing.T) {
	b := newNode(t, sharedDir{dirStore(t.TempDir())})
	c := client("host", 2)
	want := func(err, want error) {
		t.Helper()
		if err != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	want(b.v.Unreserve(c, 1, WriteExclusive), ErrConflict)
	want(b.v.Register(c, &Register{Key: 5, NewKey: 1}), nil) // who knows what it has there
	want(b.v.Register(c, &Register{Key: 5, NewKey: 2}), ErrConflict)
	want(b.v.Register(c, &Register{Key: 1, NewKey: 2}), nil)
	want(b.v.Unreserve(c, 1, WriteExclusive), ErrConflict)
	want(b.v.Unreserve(c, 2, WriteExclusive), nil) // as of who is not the holder
	want(b.v.Reserve(c, 2, WriteExclusive), ErrAway)
	want(b.v.ClearReservations(c, 2), ErrAway)
	want(b.v.Preempt(c, &Preempt{Key: 2, Victim: 3, Type: WriteExclusive}), ErrAway)
	want(b.v.MoveReservation(c, 2, func() (Move, error) { return Move{}, nil }), ErrAway)
	want(b.v.Register(client("more", 2), &Register{NewKey: 1, Others: func() ([]Registrant, error) { return nil, nil }}), ErrAway)
	want(b.v.Register(c, &Register{Ignore: true}), nil)
	want(b.v.Unreserve(c, 0, WriteExclusive), ErrConflict)
	all := func(k Registrant) (ports []Registrant) {
		for p := range uint16(maxRegistrations) {
			k.Port = p
			ports = append(ports, k)
		}
		return ports
	}
	want(b.v.Register(client("many", 2), &Register{NewKey: 1, Ports: all}), ErrTooMany)
}

// fencedDisk is one node's way to a disk that others reach as well.
type fencedDisk struct {
	*mem.Device
	fenced bool
}

var errFenced = errors.New("reservation conflict")

func (d *fencedDisk) WriteAt(p []byte, off int64) (int, error) {
	if d.fenced {
		return 0, errFenced
	}
	return d.Device.WriteAt(p, off)
}

func (d *fencedDisk) FlushRange(off, n int64) error {
	if d.fenced {
		return errFenced
	}
	return d.Device.FlushRange(off, n)
}

// A node that was taken for dead, and wakes within an atomic write, leaves nothing in the journal that
// the volume has now on another node: what that one acknowledges would be undone.
func TestOldOwnersJournal(t *testing.T) {
	disk, err := mem.Open(mem.Config{Size: 1 << 20, Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	dir := t.TempDir()
	old, store := ownership.New(dir, "g", "a"), ownership.New(dir, "g", "b")
	ctx := context.Background()
	claim := func(s *ownership.Store) {
		t.Helper()
		if _, err := s.Claim(ctx); err != nil {
			t.Fatal(err)
		}
	}
	claim(old)
	way := &fencedDisk{Device: disk}
	a, b := newNode(t, old), newNode(t, store)
	a.take(way)
	if _, err := a.v.Journal.Write(fill(4096, 1), 0, ctx); err != nil {
		t.Fatal(err)
	}
	// What a file server does that takes a client for dead: the lock is another one's.
	if err := os.Remove(filepath.Join(dir, "g.lock")); err != nil {
		t.Fatal(err)
	}
	claim(store)
	defer store.Yield() //nolint:errcheck // the folder goes with the test
	way.fenced = true
	b.take(disk)

	if err := a.v.Journal.wipe(); !errors.Is(err, ownership.ErrLost) {
		t.Errorf("a sanitize of the old owner: %v, want ErrLost", err)
	}
	if _, err := a.v.Journal.Write(fill(4096, 2), 0, ctx); !errors.Is(err, ownership.ErrLost) {
		t.Errorf("an atomic write of the old owner: %v, want ErrLost", err)
	}
	now := fill(4096, 3)
	if err := b.v.WriteAt(now, 0, ctx); err != nil {
		t.Fatal(err)
	}
	b.give()
	c := newNode(t, store)
	c.take(disk)
	got := make([]byte, len(now))
	if _, err := disk.ReadAt(got, 0); err != nil || !bytes.Equal(got, now) {
		t.Errorf("what the new owner has acknowledged was undone: %x, %v", got[:8], err)
	}
}

// inCache is a disk that is in a cache with a name.
type inCache struct {
	*mem.Device
	cache string
}

func (d *inCache) Info() blockdev.Info {
	i := d.Device.Info()
	i.WriteCache, i.CacheID = true, d.cache
	return i
}

// A volume that comes back to this node is in the life before if that was in the cache that it is in now.
// One of which a flush has failed is in another one, although nothing else has changed.
func TestCacheOfALaterStore(t *testing.T) {
	disk, err := mem.Open(mem.Config{Size: 1 << 20, Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	n := newNode(t, sharedDir{dirStore(t.TempDir())})
	life := func(cache string) [16]byte {
		t.Helper()
		n.take(&inCache{disk, cache})
		epoch := n.v.Epoch()
		n.v.Suspend()
		if err := n.v.Quiesce(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := n.d.Detach(context.Background()); err != nil {
			t.Fatal(err)
		}
		n.v.Deactivate(false) // not flushed well
		return epoch
	}
	one := life("x")
	if life("x") != one {
		t.Error("the same cache: initiators are told of a loss that was none")
	}
	if life("y") == one {
		t.Error("another cache: what was lost with the one before is taken for safe")
	}
}

// TestCacheChangedOnLine: a volume that has been moved to another disk while it was served is flushed at its
// end, and the next life of it has lost nothing.
func TestCacheChangedOnLine(t *testing.T) {
	disk, err := mem.Open(mem.Config{Size: 1 << 20, Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	d := &inCache{disk, "x"}
	cfg := Config{Device: d, StateDir: t.TempDir()}
	b := serve(t, new(Registry), cfg, "v")
	epoch := b.v.Epoch()
	d.cache = "y"
	b.close()
	if b = serve(t, new(Registry), cfg, "v"); b.v.Epoch() != epoch {
		t.Error("initiators are told of a loss that was none")
	}
	b.close()
}
