package volume

import (
	"context"
	"fmt"
	"time"
)

// A volume that moves between nodes (Config.Store) is open on one of them at a time; on the
// others it is known and not open:
//
//	         Activate: state read, journal undone, epoch taken
//	Closed --------------------------------------------------> active
//	   ^                                                          |
//	   |  Deactivate: state handed on                             | Suspend: nothing begins
//	   +----------------------------- suspended <-----------------+
//	                Quiesce: nothing is under way
//
// The gate Closed is up in all states but active. Whoever owns the device attaches it
// before Activate, and detaches it between Quiesce and Deactivate (target/registry); what
// gets past the gate finds a device without a store.

// Activate lets commands reach the medium, as the node that had the volume before has left
// it, or lost it: reservations, what an atomic write has not ended, the cache epoch, a
// rewrite that has begun. Preconditions: the volume moves and is closed, its device has been
// attached, and the store is this node's alone.
func (v *Volume) Activate() error {
	v.Rewriter.allow()
	if err := v.restore(); err != nil {
		v.leave()
		return err
	}
	v.cache.Store(v.Geo().Info.WriteCache)
	v.notify(Event{Kind: StateRestored})
	v.SetGate(Closed, false)
	v.Rewriter.resume()
	return nil
}

// Suspend keeps every command that has not begun from the medium, and ends what goes on in
// the background; those that have begun go on.
func (v *Volume) Suspend() {
	v.SetGate(Closed, true)
	v.Rewriter.stop()
	v.stopCopies()
}

// Quiesce waits until nothing is under way. Those commands that still are after grace,
// because their clients do not take or send data, are ended: their clients are told to come
// again. If ctx ends first, Quiesce may be called again. Preconditions: Suspend.
func (v *Volume) Quiesce(ctx context.Context, grace time.Duration) error {
	patient, begun := true, time.Now()
	for !v.idle() {
		if ctx.Err() != nil {
			return fmt.Errorf("commands are still under way: %w", ctx.Err())
		}
		if patient && time.Since(begun) >= grace {
			patient = false
			v.AbortWhere(func(*Op) AbortReason { return AbortedByNode }, nil)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// idle reports whether neither a command nor something in the background uses the volume.
func (v *Volume) idle() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.set.Empty() && len(v.copying) == 0 && v.users.Load() == 0
}

// Deactivate ends what Activate has begun. flushed says that the device has been flushed
// well since Quiesce: then whoever has the volume next has lost nothing of what was
// acknowledged. Preconditions: Quiesce.
func (v *Volume) Deactivate(flushed bool) {
	v.Journal.close()
	v.Journal.forget()
	v.Unseize(nil) // the reservation of SPC-2 is this node's alone
	v.leave()
	if flushed && v.Geo().Info.WriteCache {
		v.handEpochOn()
	}
}
