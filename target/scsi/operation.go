package scsi

import (
	"errors"
	"sync"
	"time"

	spc "softiser/internal/scsi"

	"softiser/blockdev"
)

// SANITIZE and FORMAT UNIT rewrite the whole medium. Both run on a goroutine of
// their own, with or without an initiator that waits:
//
//	        begin              all blocks done
//	Idle ----------> Running -------------------> Idle
//	  ^   saved         |                 forgotten
//	  |                 | error; FORMAT UNIT: the target ended
//	  |                 v
//	  +------------- Failed --begin--> Running
//	   EXIT FAILURE MODE
//
// Once one has begun, no reset, abort or lost nexus ends it. Other commands get
// 2/04/1B or 2/04/04 with the progress until it is done; after a failure 3/31/03
// or 3/31/00. Running and Failed are kept with the unit's saved state, before
// the first block changes and until the last one is durable, so that a crash
// leads back to the same state: SANITIZE goes on where it was (SBC-3 §4.11), after an
// interrupted FORMAT UNIT the medium counts as corrupt (SBC-3 §5.3).

// opKind is the kind of an operation; its text goes into the saved state.
type opKind string

const (
	opOverwrite opKind = "sanitize overwrite"
	opErase     opKind = "sanitize block erase"
	opFormat    opKind = "format"
)

// running and failed are the gates of the two states.
func (k opKind) running() uint32 {
	if k == opFormat {
		return gateFormat
	}
	return gateSanitize
}

func (k opKind) failed() uint32 {
	if k == opFormat {
		return gateCorrupt
	}
	return gateSanFailed
}

// operation is what runs, or has failed, as it is saved.
type operation struct {
	Kind    opKind `json:"kind"`
	Passes  int    `json:"passes"`
	Pattern []byte `json:"pattern,omitempty"` // repeated in each block; none: zeroes
	Invert  bool   `json:"invert,omitempty"`  // every other pass writes the complement, the last one does not
	AUSE    bool   `json:"unrestricted_exit,omitempty"`
	Failed  bool   `json:"failed,omitempty"`
	Pass    int    `json:"pass"`   // what lies before is durable
	Offset  int64  `json:"offset"` // bytes
}

// valid reports whether o can have been saved by us.
func (o *operation) valid() bool {
	known := o.Kind == opOverwrite || o.Kind == opErase || o.Kind == opFormat
	return known && o.Passes >= 1 && o.Passes <= 31 && o.Pass >= 0 && o.Pass <= o.Passes && o.Offset >= 0 && len(o.Pattern) <= maxPattern
}

const (
	maxPattern = 64 << 10 // no block is longer
	// saveEvery is how much work a crash costs a SANITIZE.
	saveEvery = 10 * time.Second
)

// rewriter is the state of a unit's operation.
type rewriter struct {
	saved *operation // in the state file; guarded by LU.prMu

	mu     sync.Mutex
	now    operation // runs or has failed, as the gates tell
	done   uint64    // of total: blocks times passes
	total  uint64
	cancel chan struct{} // closed: the unit is going away
	going  sync.Once     // of cancel
}

// outcome is how one operation ends, and who waits for that. LU.mu guards it. Each
// operation has its own, so that nobody is told the end of another one, and who takes
// the waiter out of it ends the task: a task that has been aborted is in none.
type outcome struct {
	over   bool
	err    error // if over
	waiter *Task // in state blocked; nil: none
}

var errCancelled = errors.New("scsi: the logical unit has been closed during SANITIZE or FORMAT UNIT")

// offersRewrite reports whether the unit has SANITIZE and FORMAT UNIT: it must
// remember across a restart that one has begun, or forget its data by then.
func offersRewrite(lu *LU) bool { return lu.canSave() || lu.forgetful() }

// sense tells that an operation runs, and how far it is.
func (z *rewriter) sense() spc.Sense {
	z.mu.Lock()
	defer z.mu.Unlock()
	s := spc.Sense{Key: spc.KeyNotReady, ASC: spc.ASCSanitizeInProgress, ProgressValid: true}
	if z.now.Kind == opFormat {
		s.ASC = spc.ASCFormatInProgress
	}
	if z.total > 0 {
		s.Progress = uint16(min(z.done*65536/z.total, 65535))
	}
	return s
}

func (z *rewriter) stop() { z.going.Do(func() { close(z.cancel) }) }

// Done implements blockdev.Stop.
func (z *rewriter) Done() <-chan struct{} { return z.cancel }

// step counts n more blocks and reports whether to go on.
func (z *rewriter) step(n uint64) error {
	z.mu.Lock()
	z.done += n
	z.mu.Unlock()
	select {
	case <-z.cancel:
		return errCancelled
	default:
		return nil
	}
}

// begin waits until the commands that are under way have ended, then starts o.
// With immed the status goes out as soon as it has begun.
func (t *Task) begin(o operation, immed bool) {
	lu := t.lu
	lu.mu.Lock()
	t.hold = hold{lo: 0, hi: ^uint64(0)}
	lu.mu.Unlock()
	t.exclusively(func(t *Task) { t.rewrite(o, immed) })
}

// rewrite runs with every block held. The gate goes up before they are released,
// so nothing slips in between.
func (t *Task) rewrite(o operation, immed bool) {
	lu := t.lu
	z := &lu.rewriter
	g := lu.gate.Load()
	if g&(gateSanitize|gateFormat) != 0 { // another one was faster
		t.refuse(g & (gateSanitize | gateFormat))
		return
	}
	z.mu.Lock()
	restricted := g&gateSanFailed != 0 && !z.now.AUSE
	z.mu.Unlock()
	if restricted && o.AUSE {
		// SBC-3 §4.11.3: a failure in restricted mode is not to be left that way.
		t.badCDB(1)
		return
	}
	if err := lu.saveOperation(&o); err != nil {
		t.fail(spc.KeyHardware, spc.ASCInternalFailure)
		return
	}
	z.mu.Lock()
	z.now = o
	z.done, z.total = 0, lu.geo().blocks*uint64(o.Passes)
	lu.selfTest.abort(testEnded)
	lu.touched()
	lu.setGate(o.Kind.running(), true)
	lu.setGate(gateSanFailed|gateCorrupt, false)
	z.mu.Unlock()
	lu.users.Add(1)
	end := new(outcome)
	go lu.runOperation(o, end)
	if immed {
		t.good()
		return
	}
	t.awaitOperation(o.Kind, end)
}

// awaitOperation leaves t waiting for the operation, which it does not hold any
// blocks for. An abort ends the task but not the operation.
func (t *Task) awaitOperation(kind opKind, end *outcome) {
	lu := t.lu
	lu.mu.Lock()
	lu.dropRangeLocked(t)
	if lu.dormantHead != nil {
		lu.wakeLocked()
	}
	over, err := end.over, end.err
	if !over && !t.isAborted() {
		t.state = taskBlocked
		t.awaits, end.waiter = end, t
		lu.mu.Unlock()
		return
	}
	lu.mu.Unlock()
	t.rewritten(kind, err)
}

// rewritten ends a task that has waited for its operation.
func (t *Task) rewritten(kind opKind, err error) {
	switch {
	case err == nil:
		t.good()
	case kind == opFormat:
		t.fail(spc.KeyMedium, spc.ASCFormatFailed)
	default:
		t.fail(spc.KeyMedium, spc.ASCSanitizeFailed)
	}
}

// resumeOperation goes on with what a restart has interrupted; the gates are up
// already, see loadState.
func (lu *LU) resumeOperation() {
	if lu.gate.Load()&gateSanitize == 0 {
		return
	}
	z := &lu.rewriter
	z.mu.Lock()
	o := z.now
	z.mu.Unlock()
	lu.users.Add(1)
	go lu.runOperation(o, new(outcome))
}

// restoreOperation takes over the state that was saved.
func (lu *LU) restoreOperation(o *operation) {
	z := &lu.rewriter
	z.saved = o
	z.now = *o
	if o.Kind == opFormat {
		z.now.Failed = true
	}
	b := lu.geo().blocks
	z.total = b * uint64(o.Passes)
	z.done = min(b*uint64(o.Pass)+uint64(o.Offset)>>lu.geo().shift, z.total)
	if z.now.Failed {
		lu.setGate(o.Kind.failed(), true)
	} else {
		lu.setGate(o.Kind.running(), true)
	}
}

// saveOperation keeps o (nil: none) through power loss.
func (lu *LU) saveOperation(o *operation) error {
	if !lu.canSave() {
		return nil
	}
	lu.prMu.Lock()
	defer lu.prMu.Unlock()
	z := &lu.rewriter
	old := z.saved
	z.saved = o
	err := lu.save(*lu.modes.saved.Load(), lu.pr.Load())
	if err != nil {
		z.saved = old
	}
	return err
}

// runOperation is the goroutine of an operation.
func (lu *LU) runOperation(o operation, end *outcome) {
	defer lu.users.Add(-1)
	err := lu.rewriteMedium(&o)
	if err == nil {
		// Only when a restart would not do it again may anybody write.
		err = lu.saveOperation(nil)
	}
	if err != nil && !errors.Is(err, errCancelled) {
		lu.mediumError(err, writing)
		o.Failed = true
		// If this cannot be saved, a restart tries again, which is as good.
		_ = lu.saveOperation(&o)
	}
	z := &lu.rewriter
	z.mu.Lock()
	z.now.Failed = err != nil
	lu.erased.Store(err == nil && len(o.Pattern) == 0 && lu.geo().info.Discard)
	lu.setGate(o.Kind.failed(), err != nil)
	lu.setGate(o.Kind.running(), false)
	z.mu.Unlock()
	lu.mu.Lock()
	end.over, end.err = true, err
	t := end.waiter
	if t == nil { // nobody waits, or it is about to see that it is over
		lu.mu.Unlock()
		return
	}
	t.unwaitLocked()
	t.state = taskRunning
	port := t.Port
	lu.mu.Unlock()
	t.rewritten(o.Kind, err)
	port.Push()
}

// unwaitLocked takes t out of the operation that it waits for, if it does.
// Preconditions: lu.mu is held, t is blocked.
func (t *Task) unwaitLocked() {
	if t.awaits != nil {
		t.awaits.waiter = nil
		t.awaits = nil
	}
}

// rewriteMedium does the passes of o from where it stands.
func (lu *LU) rewriteMedium(o *operation) error {
	if lu.canSave() {
		if err := lu.journal.wipe(); err != nil {
			return err
		}
	}
	saved := time.Now()
	for ; o.Pass < o.Passes; o.Pass, o.Offset = o.Pass+1, 0 {
		piece, write := lu.pass(o)
		for g := lu.geo(); o.Offset < g.info.Size; g = lu.geo() {
			n := min(piece, g.info.Size-o.Offset)
			if err := write(o.Offset, n); errors.Is(err, blockdev.ErrStopped) {
				return errCancelled
			} else if err != nil {
				return err
			}
			o.Offset += n
			if err := lu.rewriter.step(uint64(n) >> g.shift); err != nil {
				return err
			}
			if time.Since(saved) < saveEvery {
				continue
			}
			if err := lu.vol.Flush(); err != nil {
				return err
			}
			at := *o
			if err := lu.saveOperation(&at); err != nil {
				return err
			}
			saved = time.Now()
		}
		if err := lu.vol.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// pass returns how the present pass of o writes a range, and in pieces of how
// many bytes.
func (lu *LU) pass(o *operation) (piece int64, write func(off, n int64) error) {
	e, erases := lu.vol.(blockdev.Eraser)
	switch {
	case o.Kind == opErase && erases:
		return zeroPiece, e.Erase
	case len(o.Pattern) == 0:
		unmap := o.Kind == opErase || lu.geo().info.ZeroesOnTrim
		return zeroPiece, func(off, n int64) error { return lu.writeZeroes(off, n, unmap, &lu.rewriter) }
	}
	buf := make([]byte, stageBytes)
	bs := lu.geo().info.BlockSize
	for i := range buf {
		buf[i] = o.Pattern[i%bs%len(o.Pattern)]
		if o.Invert && (o.Passes-1-o.Pass)%2 == 1 {
			buf[i] ^= 0xFF
		}
	}
	return stageBytes, func(off, n int64) error { return lu.writeAt(buf[:n], off, &lu.rewriter) }
}
