package volume

import (
	"context"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/lazy"
)

// What an atomic write has left that could be neither written nor undone is the next owner's
// to put back: here it would lie over what others have written since.
func TestStuckEntryStays(t *testing.T) {
	d, err := lazy.New(blockdev.Info{Size: 1 << 20, BlockSize: 512, PhysBlockSize: 4096, ID: "one"})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, new(Registry), Config{Device: d, Store: dirStore(t.TempDir())}, "place")
	if b.v.Gates()&Closed == 0 {
		t.Error("a volume that moves begins open")
	}
	disk := newDevice(t, "disk")
	if err := d.Attach(disk); err != nil {
		t.Fatal(err)
	}
	if err := b.v.Activate(); err != nil || b.v.Gates()&Closed != 0 {
		t.Fatalf("Activate: %v, gates %b", err, b.v.Gates())
	}
	b.v.Journal.mu.Lock()
	b.v.Journal.stickLocked(make([]byte, 512), 0)
	b.v.Journal.mu.Unlock()
	b.v.Suspend()
	if err := b.v.Quiesce(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Detach(context.Background()); err != nil {
		t.Fatal(err)
	}
	b.v.Deactivate(false)
	if b.v.Journal.stuck.Load() {
		t.Error("the entry is still to be put back here")
	}
}

// A host may ask about the last sanitize while the volume comes to this node.
func TestLastSanitizeDuringActivate(t *testing.T) {
	s := sharedDir{dirStore(t.TempDir())}
	disk := newDevice(t, "disk")
	a, b := newNode(t, s), newNode(t, s)
	a.take(disk)
	end, err := a.v.Rewriter.Begin(Rewrite{Kind: Overwrite, Passes: 1, Pattern: []byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	a.wait(end)
	a.give()
	var here atomic.Bool
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for !here.Load() {
			b.v.Rewriter.LastSanitize() // for the race detector
		}
	}()
	b.take(disk)
	here.Store(true)
	<-asked
	if _, st, _ := b.v.Rewriter.LastSanitize(); st != Sanitized {
		t.Errorf("status %d", st)
	}
	b.give()
}
