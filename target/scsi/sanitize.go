package scsi

import (
	"encoding/binary"
	"errors"
	"sync"

	spc "softiser/internal/scsi"
)

// SANITIZE (SBC-3 §5.21) changes every block so that its old content cannot be
// read back. Once it has begun, no reset, abort or lost nexus ends it; other
// commands get 2/04/1B with the progress until it is done, and 3/31/03 after a
// failure, until EXIT FAILURE MODE or another SANITIZE.

// sanitizer is the sanitize operation of a logical unit.
type sanitizer struct {
	mu     sync.Mutex
	done   uint64 // of total: blocks times passes
	total  uint64
	ause   bool // EXIT FAILURE MODE is allowed after a failure
	cancel bool // the unit is going away
	over   bool // the last one has ended, with err
	err    error
	waiter *Task
	ticket uint64 // waiter's arrival: the slot may hold another command by now
}

var errCancelled = errors.New("scsi: sanitize ended because its logical unit is closed")

// sense tells the progress.
func (z *sanitizer) sense() spc.Sense {
	z.mu.Lock()
	defer z.mu.Unlock()
	s := spc.Sense{Key: spc.KeyNotReady, ASC: spc.ASCSanitizeInProgress, ProgressValid: true}
	if z.total > 0 {
		s.Progress = uint16(min(z.done*65536/z.total, 65535))
	}
	return s
}

func (z *sanitizer) stop() {
	z.mu.Lock()
	z.cancel = true
	z.mu.Unlock()
}

// step counts n more blocks and reports whether to go on.
func (z *sanitizer) step(n uint64) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.done += n
	if z.cancel {
		return errCancelled
	}
	return nil
}

// sanitizeCDB checks what all service actions have in common.
func sanitizeCDB(t *Task) (n int, ok bool) {
	for i, mask := range []byte{1: 0x40, 2: 0xFF, 3: 0xFF, 4: 0xFF, 5: 0xFF, 6: 0xFF} {
		if t.CDB[i]&mask != 0 {
			t.badCDB(i)
			return 0, false
		}
	}
	return int(binary.BigEndian.Uint16(t.CDB[7:])), true
}

// cmdSanitizeOverwrite: the parameter list tells passes and pattern:
//
//	+--+-----------------------------------------------+
//	| 0| INVERT(80h) TEST(60h) overwrite count (5)     |
//	| 1| reserved                                      |
//	| 2| initialization pattern length (2)             |
//	| 4| initialization pattern                        |
//	+--+-----------------------------------------------+
func cmdSanitizeOverwrite(t *Task) {
	n, ok := sanitizeCDB(t)
	if !ok {
		return
	}
	bs := t.lu.geo().info.BlockSize
	if n < 5 || n > bs+4 {
		t.badCDB(7)
		return
	}
	t.fetchParam(n, func(t *Task) {
		p := t.param()
		k := int(binary.BigEndian.Uint16(p[2:]))
		// The values are wrong, not the list's form; the test suites of initiators
		// expect INVALID FIELD IN CDB for them.
		if p[0]&0x1F == 0 || p[0]&0x60 != 0 || k == 0 || k > len(p)-4 {
			t.badCDB(7)
			return
		}
		t.beginSanitize()
	})
}

func cmdSanitizeErase(t *Task) {
	n, ok := sanitizeCDB(t)
	if !ok {
		return
	}
	if n != 0 {
		t.badCDB(7)
		return
	}
	t.beginSanitize()
}

// cmdSanitizeExit ends the failure mode, if the failed SANITIZE allowed that
// (AUSE).
func cmdSanitizeExit(t *Task) {
	n, ok := sanitizeCDB(t)
	if !ok {
		return
	}
	z := &t.lu.sanitize
	z.mu.Lock()
	ause := z.ause
	z.mu.Unlock()
	switch {
	case n != 0:
		t.badCDB(7)
	case t.lu.gate.Load()&gateSanFailed != 0 && !ause:
		t.badCDB(1)
	default:
		t.lu.setGate(gateSanFailed, false)
		t.good()
	}
}

// beginSanitize waits until the writes that are under way have ended.
func (t *Task) beginSanitize() {
	lu := t.lu
	lu.mu.Lock()
	t.hold = hold{lo: 0, hi: ^uint64(0)}
	lu.mu.Unlock()
	t.exclusively(sanitizeJob)
}

// sanitizeJob starts the operation on a goroutine of its own. The gate goes up
// before the blocks are released, so nothing slips in between.
func sanitizeJob(t *Task) {
	lu := t.lu
	passes := []sanitizePass{lu.erasePass()}
	if t.op.sa == spc.SASanitizeOverwrite {
		passes = lu.overwritePasses(t.param())
	}
	z := &lu.sanitize
	z.mu.Lock()
	if lu.gate.Load()&gateSanitize != 0 { // another one was faster
		z.mu.Unlock()
		t.refuse(gateSanitize)
		return
	}
	immed := t.CDB[1]&0x80 != 0
	z.over, z.err = false, nil
	z.done, z.total = 0, lu.geo().blocks*uint64(len(passes))
	z.ause = t.CDB[1]&0x20 != 0
	z.waiter = nil
	if !immed {
		z.waiter, z.ticket = t, t.arrival
	}
	lu.touched()
	lu.setGate(gateSanFailed, false)
	lu.setGate(gateSanitize, true)
	z.mu.Unlock()
	lu.users.Add(1)
	erase := t.op.sa == spc.SASanitizeBlockErase
	if immed {
		go lu.runSanitize(passes, erase)
		t.good()
		return
	}
	go lu.runSanitize(passes, erase)
	t.awaitSanitize()
}

// awaitSanitize leaves t waiting for the operation, which it does not hold any
// blocks for. An abort ends the task but not the operation.
func (t *Task) awaitSanitize() {
	lu, z := t.lu, &t.lu.sanitize
	lu.mu.Lock()
	lu.dropRangeLocked(t)
	if lu.dormantHead != nil {
		lu.wakeLocked()
	}
	z.mu.Lock()
	over, err := z.over, z.err
	z.mu.Unlock()
	if !over && !t.isAborted() {
		t.state = taskBlocked
		lu.mu.Unlock()
		return
	}
	lu.mu.Unlock()
	t.sanitized(err)
}

func (t *Task) sanitized(err error) {
	if err != nil {
		t.fail(spc.KeyMedium, spc.ASCSanitizeFailed)
	} else {
		t.good()
	}
}

type sanitizePass func(off, n int64) error

func (lu *LU) erasePass() sanitizePass {
	return func(off, n int64) error { return lu.vol.WriteZeroes(off, n, true) }
}

// overwritePasses makes a pass for each count; with INVERT every other pass
// writes the complement, such that the last one writes the pattern itself.
func (lu *LU) overwritePasses(p []byte) []sanitizePass {
	g := lu.geo()
	count := int(p[0] & 0x1F)
	pattern := p[4:][:binary.BigEndian.Uint16(p[2:])]
	buf := make([]byte, stageBytes)
	flip := make([]byte, stageBytes)
	for i := range buf {
		buf[i] = pattern[i%g.info.BlockSize%len(pattern)]
		flip[i] = ^buf[i]
	}
	write := func(b []byte) sanitizePass {
		return func(off, n int64) error {
			_, err := lu.vol.WriteAt(b[:n], off)
			return err
		}
	}
	passes := make([]sanitizePass, count)
	for i := range passes {
		passes[i] = write(buf)
		if p[0]&0x80 != 0 && (count-1-i)%2 == 1 {
			passes[i] = write(flip)
		}
	}
	return passes
}

// runSanitize is the goroutine of the operation.
func (lu *LU) runSanitize(passes []sanitizePass, erase bool) {
	defer lu.users.Add(-1)
	err := func() error {
		for _, pass := range passes {
			g := lu.geo()
			for off := int64(0); off < g.info.Size; {
				n := min(int64(stageBytes), g.info.Size-off)
				if err := pass(off, n); err != nil {
					return err
				}
				if err := lu.sanitize.step(uint64(n) >> g.shift); err != nil {
					return err
				}
				off += n
			}
			if err := lu.vol.Flush(); err != nil {
				return err
			}
		}
		return nil
	}()
	z := &lu.sanitize
	z.mu.Lock()
	t, ticket := z.waiter, z.ticket
	z.waiter = nil
	z.over, z.err = true, err
	lu.erased.Store(erase && err == nil)
	lu.setGate(gateSanFailed, err != nil)
	lu.setGate(gateSanitize, false)
	z.mu.Unlock()
	if t == nil {
		return
	}
	lu.mu.Lock()
	if t.state != taskBlocked || t.arrival != ticket {
		lu.mu.Unlock() // aborted meanwhile, or not waiting yet and about to see that it is over
		return
	}
	t.state = taskRunning
	port := t.Port
	lu.mu.Unlock()
	t.sanitized(err)
	port.Push()
}
