package volume

import (
	"errors"
	"sync"
	"time"

	"softiser/blockdev"
)

// A sanitize and a format rewrite the whole medium. Both run on a goroutine of
// their own, with or without an initiator that waits:
//
//	        begin              all blocks done
//	Idle ----------> Running -------------------> Idle
//	  ^   saved         |                 forgotten
//	  |                 | error; format: the target ended
//	  |                 v
//	  +------------- Failed --begin--> Running
//	   ExitFailure
//
// Once one has begun, no reset, abort or lost client ends it. The gates Sanitizing and
// Formatting keep other commands off until it is done; after a failure SanitizeFailed
// and Corrupt do. Running and Failed are kept with the volume's saved state, before
// the first block changes and until the last one is durable, so that a crash
// leads back to the same state: a sanitize goes on where it was (SBC-3 §4.11), after an
// interrupted format the medium counts as corrupt (SBC-3 §5.3).

// saveEvery is how much work a crash costs a sanitize.
const saveEvery = 10 * time.Second

// Rewriter carries out the rewrites of a volume, one after the other: sanitize and format.
type Rewriter struct {
	vol    *Volume
	ending // the volume is going away; begun anew by each Activate, while no rewrite runs

	turn      sync.Mutex // of who begins a rewrite, or leaves the failure of one; taken before mu and state.mu
	mu        sync.Mutex // guards what follows
	now       Rewrite    // runs or has failed, as the gates tell
	done      uint64     // of total: blocks times passes
	total     uint64
	sanitized *Rewrite // the last sanitize that has ended well; nil: there has been none
}

// Outcome is how one rewrite ends, and who waits for that. Tasks.mu guards it. Each
// rewrite has its own, so that nobody is told the end of another one, and who takes
// the waiter out of it ends the command: one that has been aborted is in none.
type Outcome struct {
	set    *Tasks
	over   bool  // the rewrite has ended
	err    error // if over
	waiter *Op   // in state blocked; nil: none
}

// Err is the error that the rewrite ended with, nil after success or before its end.
func (e *Outcome) Err() error {
	e.set.mu.Lock()
	defer e.set.mu.Unlock()
	return e.err
}

// Errors of rewrites.
var (
	errCancelled = errors.New("volume: the volume has been closed during a sanitize or a format")
	// ErrRewriting: another one was faster.
	ErrRewriting = errors.New("volume: a sanitize or a format runs")
	// ErrRestricted: a failure in restricted mode is not to be left by a rewrite in
	// unrestricted mode (SBC-3 §4.11.3), nor by ExitFailure.
	ErrRestricted = errors.New("volume: the failed sanitize may only be left by another one")
)

// Offered reports whether the volume has sanitize and format: it must
// remember across a restart that one has begun, or forget its data by then.
func (z *Rewriter) Offered() bool { return z.vol.state.keeps() || z.vol.Forgetful() }

// OffersErase reports whether the volume has a block erase: its device can give its blocks
// back so that nobody finds in them what they held. Of one that could only discard them the
// data would still be where it was, on a physical volume of a pool, say; it has
// Overwrite.
func (z *Rewriter) OffersErase() bool {
	_, can := z.vol.dev.(blockdev.Eraser)
	return z.vol.Geo().Info.Discard && (can || z.vol.Forgetful())
}

// Progress returns what runs, or has failed, and how far it is in parts of 65536.
func (z *Rewriter) Progress() (kind RewriteKind, progress uint16) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.total > 0 {
		progress = uint16(min(z.done*65536/z.total, 65535))
	}
	return z.now.Kind, progress
}

// allow lets rewrites run again. Preconditions: none runs, and none can begin.
func (z *Rewriter) allow() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.begin()
}

// stop ends what runs at its next step, and keeps any other from running.
func (z *Rewriter) stop() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.ending.stop()
}

// step counts n more blocks and reports whether to go on.
func (z *Rewriter) step(n uint64) error {
	z.mu.Lock()
	z.done += n
	z.mu.Unlock()
	if z.Stopped() {
		return errCancelled
	}
	return nil
}

// Begin starts o. The caller is a command that holds every block (All); the
// gate goes up before they are released, so nothing slips in between. An error that is
// neither ErrRewriting nor ErrRestricted says that the beginning could not be saved.
func (z *Rewriter) Begin(o Rewrite) (*Outcome, error) {
	z.turn.Lock()
	defer z.turn.Unlock()
	g := z.vol.Gates()
	if g&(Sanitizing|Formatting) != 0 {
		return nil, ErrRewriting
	}
	z.mu.Lock()
	restricted := g&SanitizeFailed != 0 && !z.now.Unrestricted
	z.mu.Unlock()
	if restricted && o.Unrestricted {
		return nil, ErrRestricted
	}
	before := z.saved()
	if err := z.mark(&o); err != nil {
		z.takeBack(before)
		return nil, err
	}
	z.mu.Lock()
	z.now = o
	z.done, z.total = 0, z.vol.Geo().Blocks*uint64(o.Passes)
	z.vol.touched()
	z.vol.SetGate(o.Kind.running(), true)
	z.vol.SetGate(SanitizeFailed|Corrupt, false)
	z.mu.Unlock()
	return z.start(o), nil
}

// start has the goroutine of o begin.
func (z *Rewriter) start(o Rewrite) *Outcome {
	z.vol.users.Add(1)
	end := &Outcome{set: &z.vol.Tasks}
	z.vol.mu.Lock()
	z.vol.pause.current = end
	z.vol.mu.Unlock()
	go z.run(o, end)
	return end
}

// Await leaves o, which holds no blocks from here on, waiting for the rewrite, and
// reports true; its Step is called at the end. It reports false when the rewrite is over
// or o has been aborted. An abort of o does not end the rewrite.
func (s *Tasks) Await(o *Op, end *Outcome) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropRangeLocked(o)
	if s.dormant.head != nil {
		s.wakeLocked()
	}
	if end.over || o.Aborted() {
		return false
	}
	o.to(Blocked)
	o.awaits, end.waiter = end, o
	return true
}

// ExitFailure ends the failed state of a sanitize, if that allows it. Another rewrite may have begun
// since the caller has seen that state: what is saved is about that one then.
func (z *Rewriter) ExitFailure() error {
	z.turn.Lock()
	defer z.turn.Unlock()
	switch g := z.vol.Gates(); {
	case g&(Sanitizing|Formatting) != 0:
		return ErrRewriting
	case g&SanitizeFailed == 0: // another one was left, or has ended well
		return nil
	case !z.MayExitFailure():
		return ErrRestricted
	}
	if err := z.save(nil); err != nil {
		return err
	}
	z.vol.SetGate(SanitizeFailed, false)
	return nil
}

// MayExitFailure reports whether ExitFailure may be asked for.
func (z *Rewriter) MayExitFailure() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.now.Unrestricted
}

// resume goes on with what a restart has interrupted, or another process has begun, a format
// included then; the gates are up already, see loadState and goOn.
func (z *Rewriter) resume() {
	if z.vol.Gates()&(Sanitizing|Formatting) == 0 {
		return
	}
	z.mu.Lock()
	o := z.now
	z.mu.Unlock()
	z.start(o)
}

// forget is restore of a state in which nothing was saved.
func (z *Rewriter) forget() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.now, z.done, z.total, z.sanitized = Rewrite{}, 0, 0, nil
}

// restore takes over what was saved.
func (z *Rewriter) restore(kept *savedState) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.sanitized = kept.Sanitized
	if kept.Op == nil || z.vol.dev == nil {
		return
	}
	o := *kept.Op
	o.Failed = o.Failed || o.Kind == Format
	z.put(&o)
}

// put makes o what runs from where it stands, or has failed. Preconditions: mu is held.
func (z *Rewriter) put(o *Rewrite) {
	z.now = *o
	g := z.vol.Geo()
	z.total = g.Blocks * uint64(o.Passes)
	z.done = min(g.Blocks*uint64(o.Pass)+uint64(o.Offset)>>g.Shift, z.total)
	if z.now.Failed {
		z.vol.SetGate(o.Kind.failed(), true)
	} else {
		z.vol.SetGate(o.Kind.running(), true)
	}
}

// saveDone keeps that o has ended well. No block is marked any more.
func (z *Rewriter) saveDone(o *Rewrite) error {
	if !z.vol.state.keeps() {
		return nil
	}
	z.vol.state.mu.Lock()
	defer z.vol.state.mu.Unlock()
	next := z.vol.state.kept
	next.Marks = nil
	if o.Kind != Format {
		done := *o
		next.Sanitized = &done
	}
	err := z.saveEnded(next)
	if err == nil {
		z.vol.publishMarks(nil)
	}
	return err
}

// SanitizeStatus is what has become of the last sanitize.
type SanitizeStatus uint8

// Sanitize states.
const (
	NeverSanitized SanitizeStatus = iota
	Sanitized
	SanitizeRuns
	SanitizeHasFailed
)

// LastSanitize returns the sanitize that runs or has failed, or the last one that has
// ended well, and how far it is in parts of 65536.
func (z *Rewriter) LastSanitize() (o Rewrite, s SanitizeStatus, progress uint16) {
	z.mu.Lock()
	defer z.mu.Unlock()
	switch g := z.vol.Gates(); {
	case g&Sanitizing != 0:
		if z.total > 0 {
			progress = uint16(min(z.done*65536/z.total, 65535))
		}
		return z.now, SanitizeRuns, progress
	case g&SanitizeFailed != 0:
		return z.now, SanitizeHasFailed, 0
	case z.sanitized != nil:
		return *z.sanitized, Sanitized, 0
	}
	return Rewrite{}, NeverSanitized, 0
}

// run is the goroutine of a rewrite.
func (z *Rewriter) run(o Rewrite, end *Outcome) {
	defer z.vol.unuse()
	err := z.carryOut(&o)
	if err == nil {
		// Only when a restart would not do it again may anybody write.
		err = z.saveDone(&o)
	}
	if err != nil && !errors.Is(err, errCancelled) {
		z.vol.Counters.CountError(err, Writing)
		o.Failed = true
		// If this cannot be saved, a restart tries again, which is as good.
		failed := o
		_ = z.save(&failed)
	}
	z.mu.Lock()
	z.now.Failed = err != nil
	if err == nil && o.Kind != Format {
		z.sanitized = &o
	}
	z.vol.hasErased(err == nil && !z.overwrites(&o) && z.vol.Geo().Info.Discard)
	z.vol.SetGate(o.Kind.failed(), err != nil)
	z.vol.SetGate(o.Kind.running(), false)
	z.mu.Unlock()
	defer z.vol.notify(Event{Kind: RewriteEnded})
	z.vol.mu.Lock()
	end.over, end.err = true, err
	z.vol.tellPauseLocked()
	w := end.waiter
	if w == nil { // nobody waits, or whoever is about to will see that it is over
		z.vol.mu.Unlock()
		return
	}
	w.unwaitLocked()
	w.to(Running)
	req := w.req
	port := req.Via()
	z.vol.mu.Unlock()
	req.Step(Proceed)
	port.Push()
}

// unwaitLocked takes o out of the rewrite that it waits for, if it does.
// Preconditions: Tasks.mu is held, o is blocked.
func (o *Op) unwaitLocked() {
	if o.awaits != nil {
		o.awaits.waiter = nil
		o.awaits = nil
	}
}

// carryOut does the passes of o from where it stands.
func (z *Rewriter) carryOut(o *Rewrite) error {
	if err := z.rest(o); err != nil {
		return err
	}
	if z.vol.state.keeps() {
		if err := z.vol.Journal.wipe(); err != nil {
			return err
		}
	}
	saved := time.Now()
	for ; o.Pass < o.Passes; o.Pass, o.Offset = o.Pass+1, 0 {
		piece, write := z.pass(o)
		size := func() int64 { return z.vol.dev.Info().Size }
		for end := size(); o.Offset < end; end = size() {
			n := min(piece, end-o.Offset)
			if err := write(o.Offset, n); errors.Is(err, blockdev.ErrStopped) {
				return errCancelled
			} else if errors.Is(err, blockdev.ErrOutOfRange) && size() < end {
				continue // it has become shorter meanwhile
			} else if err != nil {
				return err
			}
			o.Offset += n
			if err := z.step(uint64(n) >> z.vol.Geo().Shift); err != nil {
				return err
			}
			if err := z.rest(o); err != nil {
				return err
			}
			if time.Since(saved) < saveEvery {
				continue
			}
			if err := z.vol.dev.Flush(); err != nil {
				return err
			}
			at := *o
			if err := z.save(&at); err != nil {
				return err
			}
			saved = time.Now()
		}
		if err := z.vol.dev.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// rest stands still while rewrites are held; o tells where. Its error says that the volume is
// closed: the medium is not to be touched any more.
func (z *Rewriter) rest(o *Rewrite) error {
	t := &z.vol.Tasks
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.pause.held != nil {
		held := t.pause.held
		t.pause.at, t.pause.resting = *o, true
		t.tellPauseLocked()
		t.mu.Unlock()
		select {
		case <-held:
		case <-z.Done():
		}
		t.mu.Lock()
		t.pause.resting = false
		if z.Stopped() {
			return errCancelled
		}
	}
	return nil
}

// overwrites reports whether the passes of o write data over the blocks, rather than have
// the device give them back or make them zero by itself.
func (z *Rewriter) overwrites(o *Rewrite) bool {
	_, erases := z.vol.dev.(blockdev.Eraser)
	return len(o.Pattern) > 0 || o.Secure && !erases && !z.vol.Forgetful()
}

// pass returns how the present pass of o writes a range, and in pieces of how
// many bytes.
func (z *Rewriter) pass(o *Rewrite) (piece int64, write func(off, n int64) error) {
	e, erases := z.vol.dev.(blockdev.Eraser)
	switch {
	case (o.Kind == Erase || o.Secure) && erases:
		return zeroPiece, e.Erase
	case !z.overwrites(o):
		unmap := o.Kind == Erase || z.vol.Geo().Info.ZeroesOnTrim
		return zeroPiece, func(off, n int64) error { return z.vol.zero(off, n, unmap, z) }
	}
	buf := make([]byte, StageBytes) // zeroes without a pattern
	bs := z.vol.Geo().Info.BlockSize
	for i := range bs {
		if len(o.Pattern) > 0 {
			buf[i] = o.Pattern[i%len(o.Pattern)]
		}
		if o.Invert && (o.Passes-1-o.Pass)%2 == 1 {
			buf[i] ^= 0xFF
		}
	}
	for n := bs; n < len(buf); n *= 2 { // blocks are powers of two
		copy(buf[n:], buf[:n])
	}
	return StageBytes, func(off, n int64) error { return z.vol.write(buf[:n], off, z) }
}
