package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"math"

	"softiser/blockdev"
)

// How a volume begins and ends.

// open brings back what was kept, and begins to listen to the device. Nobody else uses
// the volume before it returns.
func (v *Volume) open() error {
	if v.Moves() {
		v.setEpoch(newEpoch()) // nothing can have been written yet
	} else if err := v.restore(); err != nil {
		return err
	}
	v.listen()
	return nil
}

// restore brings back what was kept.
func (v *Volume) restore() error {
	for _, step := range []func() error{v.tie.look, v.loadState, v.Journal.undo} {
		if err := step(); err != nil {
			v.Journal.close()
			return err
		}
	}
	v.tie.settle(v.goesOn != nil)
	if v.goesOn != nil {
		v.goesOn.begin(v)
		v.goesOn = nil
		return nil
	}
	v.takeEpoch()
	return nil
}

// listen asks the device to tell what changes.
func (v *Volume) listen() {
	if v.dev == nil {
		return
	}
	v.stops = append(v.stops, v.follow(func(i blockdev.Info) {
		v.notify(Event{Kind: GeometryChanged})
		v.cutMarks(i.Size)
		v.Journal.cut(i.Size)
	}))
	if low, ok := v.dev.(blockdev.LowSpace); ok {
		v.stops = append(v.stops, low.OnLowSpace(v.Space.low))
	}
	if m := v.Space.meter; m != nil {
		v.stops = append(v.stops, m.OnSpaceChange(v.Space.check))
	}
}

// BadState is the error for a state file that cannot be understood. It keeps the volume
// from being served: without its reservations somebody's data would be unprotected.
func (v *Volume) BadState() error {
	return fmt.Errorf("%s is not the saved state of this logical unit; put the right file there, or remove it to forget its reservations and saved mode pages", v.state.file(".json"))
}

// loadState brings back what was saved.
func (v *Volume) loadState() error {
	s := &v.state
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = savedState{Unit: s.key}
	v.marks.Store(nil)
	if !v.Keeps() {
		return v.Rewriter.checkMark(&s.kept)
	}
	if v.Moves() { // forget what this node knew when it had the volume
		v.SetGate(Sanitizing|SanitizeFailed|Formatting|Corrupt|Protected, false)
		v.Rewriter.forget()
		v.now.Store(&Reservations{})
		v.erased.Store(false)
	}
	b, err := s.store.Load(s.record(".json"))
	if errors.Is(err, fs.ErrNotExist) {
		if err := v.Rewriter.checkMark(&s.kept); err != nil {
			return err
		}
		return v.hereLocked()
	}
	if err != nil {
		return err
	}
	if later := laterVersion(b); later != 0 {
		return fmt.Errorf("%s has version %d, and this program knows %d: a later version of iser-target has written it; go back to that one, or remove the file to forget the unit's reservations and saved mode pages",
			s.file(".json"), later, stateVersion)
	}
	kept, ok := s.parse(b)
	if !ok {
		return v.BadState()
	}
	if err := v.Rewriter.checkMark(&kept); err != nil {
		return err
	}
	if len(kept.Marks) > 0 && v.tie.isStale() {
		return v.tie.staleError("blocks that are marked as bad", s.file(".json"), "remove that file, with the unit's reservations and saved mode pages")
	}
	if size := v.Geo().Info.Size; len(kept.Marks) > 0 && kept.Marks[len(kept.Marks)-1].end > size && v.dev != nil {
		kept.Marks = kept.Marks.without(size, math.MaxInt64) // it has been cut
		if err := s.save(kept); err != nil {
			return err
		}
	}
	s.kept = kept
	v.publishMarks(kept.Marks)
	v.SetGate(Protected, kept.Protected)
	v.Rewriter.restore(&kept)
	v.now.Store(restoreReservations(&kept))
	return v.hereLocked()
}

// shut ends the workers and hands on what the next process needs. Preconditions: no
// commands, nothing in the background.
func (v *Volume) shut() {
	for _, stop := range v.stops {
		stop()
	}
	v.endTrace()
	v.mu.Lock()
	v.limit.stop()
	v.pool.closeLocked()
	v.mu.Unlock()
	if v.Gates()&Closed != 0 { // Deactivate has done the rest
		return
	}
	done := !v.Journal.stuck.Load() && v.Marked() == 0
	v.Journal.close()
	if done {
		v.tie.release()
	}
	v.leaveEpoch()
}
