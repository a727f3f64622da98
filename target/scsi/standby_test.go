package scsi

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/lazy"
	"softiser/target/volume"
)

// memoryStore is a store that nodes share, in memory. There is no undo journal.
type memoryStore struct {
	dir     string
	records map[string][]byte
	away    bool // cannot be peeked into
}

func newStore(t *testing.T) *memoryStore {
	return &memoryStore{dir: t.TempDir(), records: map[string][]byte{}}
}

func (s *memoryStore) Load(name string) ([]byte, error) {
	if b, ok := s.records[name]; ok {
		return b, nil
	}
	return nil, fs.ErrNotExist
}

func (s *memoryStore) Peek(name string) ([]byte, error) {
	if s.away {
		return nil, errors.New("not mounted")
	}
	return s.Load(name)
}

func (s *memoryStore) Save(name string, b []byte) error { s.records[name] = b; return nil }
func (s *memoryStore) Remove(name string) error         { delete(s.records, name); return nil }
func (s *memoryStore) Dir() string                      { return s.dir }
func (s *memoryStore) Check() error                     { return nil }
func (s *memoryStore) Shared() bool                     { return true }

// movingRig is a rig whose unit moves between nodes, and is active.
func movingRig(t *testing.T, disk blockdev.Device, s volume.Store) (*rig, *lazy.Device) {
	t.Helper()
	d, err := lazy.New(blockdev.Info{Size: 1 << 20, BlockSize: 512, PhysBlockSize: 4096, ID: "one"})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := NewDevice(Config{Name: "iqn.2026-11.softiser:test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dev.AddLUN(LUConfig{Volume: d, Store: s}); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dev: dev, port: &testPort{calls: map[*Task]*call{}}}
	if err := d.Attach(disk); err != nil {
		t.Fatal(err)
	}
	if err := r.vol().Activate(); err != nil {
		t.Fatal(err)
	}
	r.nexus(1)
	r.nexus(2)
	t.Cleanup(r.close)
	return r, d
}

func (r *rig) vol() *volume.Volume { return r.dev.lookup(0).vol }

// Commands that are under way when a volume is given up end well if their data come in
// time; else their initiators are told to come again, and nothing of them takes effect in
// what the device holds when it is handed back, or later.
func TestGivenUpUnderWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newSized(t, "disk", 1<<20)
		r, d := movingRig(t, disk, newStore(t))
		intime := r.start(r.nx[0], 0, spc.AppendWrite(nil, 0, 8, false), fill(4096, 1), 0, held)
		late := r.start(r.nx[1], 0, spc.AppendWrite(nil, 8, 8, false), fill(4096, 2), 0, held)
		r.vol().Suspend()
		r.do(spc.AppendWrite(nil, 16, 8, false), fill(4096, 3), 0).sense(spc.KeyNotReady, spc.ASCAccessTransition)
		r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyNotReady, spc.ASCAccessTransition)
		r.do(spc.AppendReadCapacity16(nil, 32), nil, 32).good()

		over := make(chan error, 1)
		go func() { over <- r.vol().Quiesce(context.Background(), time.Second) }()
		synctest.Wait()
		r.port.release(intime)
		r.finish(intime).good()
		r.finish(late).sense(spc.KeyNotReady, spc.ASCAccessTransition) // when the second is over
		if err := <-over; err != nil {
			t.Fatal(err)
		}
		dev, err := d.Detach(context.Background())
		if err != nil || dev != disk {
			t.Fatalf("Detach = %v, %v", dev, err)
		}
		r.vol().Deactivate(true)
		got := make([]byte, 12288)
		if _, err := disk.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		if want := append(fill(4096, 1), make([]byte, 8192)...); !bytes.Equal(got, want) {
			t.Error("the disk holds something else than what was answered with GOOD")
		}
		r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyNotReady, spc.ASCAccessTransition)
	})
}

// A volume of which something does not end is not given up, and nothing new begins.
func TestNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, d := movingRig(t, newSized(t, "disk", 1<<20), newStore(t))
		var l blockdev.Lease
		if err := d.LeaseRead(&l, 0, 4096, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		r.vol().Suspend()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := r.vol().Quiesce(ctx, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Detach(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Detach under a lease = %v", err)
		}
		l.Release()
		if dev, err := d.Detach(ctx); dev == nil || err != nil {
			t.Errorf("Detach = %v, %v", dev, err)
		}
		r.vol().Deactivate(false)
	})
}

// cachedDisk is a disk behind a node's cache.
type cachedDisk struct {
	sameVolume
	cache string
}

func (d cachedDisk) Info() blockdev.Info {
	i := d.sameVolume.Info()
	i.WriteCache, i.CacheID = true, d.cache
	return i
}

// The cache epoch stays the same where nothing can have been lost: across a move that was
// planned, and a crash of the process on one node. It does not when a node has lost what was
// written there, although the cache of the node that goes on is what it was long before.
func TestEpochMoves(t *testing.T) {
	s, disk := newStore(t), newSized(t, "disk", 1<<20).(sameVolume)
	a, da := movingRig(t, cachedDisk{disk, "a"}, s)
	live := func(r *rig, d *lazy.Device, cache string) [16]byte {
		t.Helper()
		if err := d.Attach(cachedDisk{disk, cache}); err != nil {
			t.Fatal(err)
		}
		if err := r.vol().Activate(); err != nil {
			t.Fatal(err)
		}
		return r.vol().Epoch()
	}
	end := func(r *rig, d *lazy.Device, flushed bool) {
		t.Helper()
		r.vol().Suspend()
		if _, err := d.Detach(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.vol().Deactivate(flushed)
	}
	first := a.vol().Epoch()
	end(a, da, false) // as a crash leaves it
	if live(a, da, "a") != first {
		t.Error("a crash of the process counts as a loss of the node's cache")
	}
	end(a, da, true)
	b, db := movingRig(t, cachedDisk{disk, "b"}, s)
	if b.vol().Epoch() != first {
		t.Error("a planned move counts as a loss")
	}
	end(b, db, false) // node b is lost with its cache
	if live(a, da, "a") == first {
		t.Error("what node b has lost counts as kept, because node a's own cache is")
	}
	end(a, da, true)
}

// A node that gets a volume back knows nothing of the time before: no reservation of SPC-2,
// which another node did not know of either.
func TestNothingStaysBehind(t *testing.T) {
	s, disk := newStore(t), newSized(t, "disk", 1<<20)
	r, d := movingRig(t, disk, s)
	r.do([]byte{0x16, 0, 0, 0, 0, 0}, nil, 0).good() // RESERVE(6)
	r.on(r.nx[1], 0, spc.AppendRead(nil, 0, 1, false), nil, 512).is(spc.StatusReservationConflict)
	r.vol().Suspend()
	if _, err := d.Detach(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.vol().Deactivate(true)
	if err := d.Attach(disk); err != nil {
		t.Fatal(err)
	}
	if err := r.vol().Activate(); err != nil {
		t.Fatal(err)
	}
	r.on(r.nx[1], 0, spc.AppendRead(nil, 0, 1, false), nil, 512).good()
}

// What initiators were told holds on the node that goes on: registrations without APTPL,
// the reservation, the generation, saved mode pages. What the first node does not know any
// more, it does not tell when it has the volume again.
func TestStateMoves(t *testing.T) {
	s := newStore(t)
	disk := newSized(t, "disk", 1<<20)
	r, d := movingRig(t, disk, s)
	give := func(r *rig, d *lazy.Device) {
		t.Helper()
		r.vol().Suspend()
		if err := r.vol().Quiesce(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Detach(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.vol().Deactivate(true)
	}
	reg := func(key uint64) []byte {
		b := make([]byte, 24)
		b[15] = byte(key)
		return b
	}
	reserve := func(key uint64) []byte {
		b := make([]byte, 24)
		b[7] = byte(key)
		return b
	}
	r.on(r.nx[0], 0, spc.AppendPersistOut(nil, 0, 0, 24), reg(7), 0).good()
	r.on(r.nx[0], 0, spc.AppendPersistOut(nil, 1, 1, 24), reserve(7), 0).good() // WRITE EXCLUSIVE
	before := r.vol().Reservations()
	give(r, d)

	other, d2 := movingRig(t, disk, s)
	now := other.vol().Reservations()
	if now.Generation != before.Generation || now.Persist || now.Len() != 1 || !now.Holds(r.nx[0].client.ID) {
		t.Errorf("the other node knows %+v; the first one knew %+v", now, before)
	}
	other.on(other.nx[1], 0, spc.AppendWrite(nil, 0, 8, false), fill(4096, 1), 0).is(spc.StatusReservationConflict)
	other.on(other.nx[0], 0, spc.AppendWrite(nil, 0, 8, false), fill(4096, 1), 0).good()
	other.on(other.nx[0], 0, spc.AppendPersistOut(nil, 3, 0, 24), reserve(7), 0).good() // CLEAR
	give(other, d2)

	if err := d.Attach(disk); err != nil {
		t.Fatal(err)
	}
	if err := r.vol().Activate(); err != nil {
		t.Fatal(err)
	}
	if back := r.vol().Reservations(); back.Len() != 0 || back.Generation != before.Generation+1 {
		t.Errorf("back on the first node: %+v", back)
	}
	give(r, d)
}

// Through a node that does not have the volume a host can register, which is noted, release
// what it does not hold, and ask; to change more is NOT READY there.
func TestReservationsElsewhere(t *testing.T) {
	s := newStore(t)
	r, d := movingRig(t, newSized(t, "disk", 1<<20), s)
	n := r.nx[0]
	r.prout(n, spc.SAProutRegister, 0, 0, 5).good()
	r.prout(n, spc.SAProutReserve, spc.PRWriteExclusive, 5, 0).good()
	full := r.on(n, 0, spc.AppendPersistIn(nil, spc.SAPrinFullStatus, 1024), nil, 1024).good().data
	r.vol().Suspend()
	if err := r.vol().Quiesce(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Detach(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.vol().Deactivate(true)
	r.prout(n, spc.SAProutRegister, 0, 0, 7).good()
	r.prout(n, spc.SAProutRegister, 0, 8, 9).is(spc.StatusReservationConflict)
	r.prout(n, spc.SAProutRegisterIgnore, 0, 0, 9).good()
	r.prout(n, spc.SAProutRelease, spc.PRWriteExclusive, 9, 0).good()
	for _, sa := range []byte{spc.SAProutReserve, spc.SAProutClear, spc.SAProutPreempt, spc.SAProutPreemptAbort} {
		r.prout(n, sa, spc.PRWriteExclusive, 9, 7).sense(spc.KeyNotReady, spc.ASCAccessTransition)
	}
	// What is told is what the node with the volume has saved, not what is noted.
	if gen, keys := r.keys(n); gen != 1 || len(keys) != 1 || keys[0] != 5 {
		t.Errorf("generation %d, keys %v", gen, keys)
	}
	if b := r.on(n, 0, spc.AppendPersistIn(nil, spc.SAPrinFullStatus, 1024), nil, 1024).good().data; !bytes.Equal(b, full) {
		t.Errorf("full status %x, was %x", b, full)
	}
	s.away = true
	r.on(n, 0, spc.AppendPersistIn(nil, spc.SAPrinReadKeys, 1024), nil, 1024).sense(spc.KeyNotReady, spc.ASCAccessTransition)
	s.away = false
	for name := range s.records {
		s.records[name] = []byte("{}")
	}
	r.on(n, 0, spc.AppendPersistIn(nil, spc.SAPrinReadKeys, 1024), nil, 1024).sense(spc.KeyNotReady, spc.ASCAccessTransition)
}
