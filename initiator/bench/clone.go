package bench

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"softiser/blockdev"
	"softiser/initiator"
)

// phase is where a clone stands.
//
//	phaseRun ──► phaseFlush ──► phaseVerify ──► phaseDone
//	   └──────────────┴───────────────┴──(error)──►
type phase uint32

const (
	phaseRun phase = iota
	phaseFlush
	phaseVerify
	phaseDone
)

func (p phase) String() string { return [...]string{"run", "flush", "verify", "done"}[p] }

// clone is one running instance of a job.
//
// Completions come from the sessions' receive goroutines. Whichever finds no
// other at work becomes the runner: it takes finished slots, accounts them and
// submits them again until none is left; the others only leave their slot on
// the list. So everything below "runner" has one owner at a time, and a device
// that completes inside Submit does not recurse.
type clone struct {
	job     *Job
	luns    []LUN
	epoch   time.Time // zero of all time stamps
	slots   []slot
	mem     []byte
	live    live
	stopped atomic.Bool
	done    chan struct{}

	mu      sync.Mutex // guards the fields below, down to "runner"
	timer   *time.Timer
	delay   *time.Timer // startdelay
	head    *slot       // finished slots, oldest first
	tail    *slot
	running bool
	parked  []*slot // waiting for their time

	// runner
	pat      *pattern
	ledger   *Ledger
	writeOut bool // the ledger is kept: writes carry headers
	lim      [datas]limiter
	paced    bool
	resting  int
	flight   int  // requests handed to the sessions and not accounted
	drain    bool // the next pass begins when all slots rest
	passes   int
	toMove   int64 // bytes left to issue; <0: no limit
	toIssue  int64 // operations left to issue; <0: no limit
	began    time.Duration
	ramped   bool
	deadline time.Duration // 0: none
	failed   bool

	sinceFlush int       // writes since the last flush was issued
	flushing   bool      // a flush is in flight
	lastFlush  bool      // the one of phaseFlush has been issued
	acked      []written // acknowledged since the last flush was issued
	covered    []written // acknowledged before the flush in flight

	verifyAt    uint64 // next ledger block
	verifyBegan time.Duration
	usage0      usage
	stats       Stats
}

// written names one acknowledged write.
type written struct {
	off int64
	gen uint32
}

// slot is one place in the queue.
type slot struct {
	req  initiator.Request
	c    *clone
	lun  LUN
	buf  []byte
	next *slot

	d        dir
	ext      extent
	held     bool // ext waits to be submitted
	inFlight bool // the request has been submitted and not accounted
	gen      uint32
	due      time.Duration // while parked
	start    time.Duration // when the slot began to prepare its operation
	issue    time.Duration // when it was handed to the session
	end      time.Duration // when Done was called
}

// newClone prepares a clone of j on its sessions; total is the volume's size.
func newClone(j *Job, luns []LUN, info blockdev.Info, epoch time.Time) (c *clone, err error) {
	base := j.Offset.Resolve(info.Size) + int64(j.clone)*j.OffsetIncr.Resolve(info.Size)
	unit := int64(j.minBS())
	if j.Offset.Percent != 0 || j.OffsetIncr.Percent != 0 {
		base -= base % unit
	}
	size := j.Size.Resolve(info.Size)
	if size == 0 {
		size = info.Size - base
	}
	size -= size % unit
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s: job %s: %s", j.Pos, j.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case base < 0 || base > info.Size || size > info.Size-base:
		return nil, fail("the range of %d bytes at offset %d does not fit into the volume of %d bytes (reduce size, offset or offset_increment)", size, base, info.Size)
	case size <= 0:
		return nil, fail("the range is smaller than one block of %d bytes", unit)
	case unit%int64(info.BlockSize) != 0 || base%int64(info.BlockSize) != 0:
		return nil, fail("block size %d and offset %d must be multiples of the volume's block of %d bytes", unit, base, info.BlockSize)
	case info.ReadOnly && !j.VerifyOnly && (j.Dirs[dirWrite] || j.Dirs[dirTrim]):
		return nil, fail("the volume is read-only")
	case j.Dirs[dirTrim] && !info.Discard:
		return nil, fail("the volume does not support trim (UNMAP)")
	}
	c = &clone{job: j, luns: luns, epoch: epoch, done: make(chan struct{}), pat: newPattern(j, base, size)}
	c.stats.Job, c.stats.Jobs = j, 1
	c.stats.Dir = [dirs]DirStats{}
	if err := c.openLedger(base, unit, size); err != nil {
		return nil, err
	}
	if err := c.makeSlots(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	c.limits(size)
	return c, nil
}

func (c *clone) openLedger(base, unit, size int64) (err error) {
	j := c.job
	if j.Verify == VerifyNone || !j.writes() && j.VerifyState == "" {
		return nil
	}
	blocks := uint64(size / unit)
	if j.VerifyState == "" {
		c.ledger, err = newLedger(j.Seed, base, unit, blocks)
	} else {
		path := j.VerifyState
		if j.NumJobs > 1 {
			path = fmt.Sprintf("%s.%d", path, j.clone)
		}
		c.ledger, err = openLedger(path, j.Seed, base, unit, blocks, j.VerifyOnly)
	}
	return err
}

func (c *clone) makeSlots() (err error) {
	j := c.job
	page := syscall.Getpagesize()
	each := (j.maxBS() + page - 1) / page * page
	if c.mem, err = alignedMemory(each * j.IODepth); err != nil {
		return err
	}
	if j.writes() && !j.ZeroBuffers && j.Verify == VerifyNone {
		fillRandom(c.mem, j.Seed+uint64(j.thread))
	}
	c.slots = make([]slot, j.IODepth)
	for i := range c.slots {
		s := &c.slots[i]
		s.c, s.lun, s.buf = c, c.luns[i%len(c.luns)], c.mem[i*each:(i+1)*each]
		s.req.Done, s.req.User = slotDone, s
	}
	c.parked = make([]*slot, 0, j.IODepth)
	if c.ledger != nil && j.Fsync > 0 {
		c.acked = make([]written, 0, j.Fsync+j.IODepth)
		c.covered = make([]written, 0, j.Fsync+j.IODepth)
	}
	return nil
}

func (c *clone) limits(size int64) {
	j := c.job
	c.passes = j.Loops
	c.toMove, c.toIssue = -1, -1
	switch io := j.IOSize.Resolve(size); {
	case j.TimeBased && !j.VerifyOnly:
		c.passes = -1
	case io > 0:
		c.passes, c.toMove = -1, io
	}
	if j.NumberIOs > 0 {
		c.toIssue = j.NumberIOs
	}
	for d := range c.lim {
		// The clones of a job have a limit each, as in fio.
		c.lim[d] = limiter{bytes: j.Rate[d], iops: j.RateIOPS[d]}
		c.paced = c.paced || j.Rate[d] > 0 || j.RateIOPS[d] > 0
	}
}

func (c *clone) now() time.Duration { return time.Since(c.epoch) }

// start sets the clone going; done is closed when it has ended.
func (c *clone) start() {
	if d := c.job.StartDelay; d > 0 {
		c.mu.Lock()
		c.delay = time.AfterFunc(d, c.begin)
		c.mu.Unlock()
		return
	}
	c.begin()
}

func (c *clone) begin() {
	now := c.now()
	c.began, c.ramped = now, c.job.RampTime == 0
	c.usage0 = processUsage()
	if c.job.Runtime > 0 {
		c.deadline = now + c.job.RampTime + c.job.Runtime
	}
	for d := range c.lim {
		c.lim[d].reset(now)
	}
	if c.job.VerifyOnly {
		if c.job.VerifyState == "" {
			c.replay()
		}
		c.setPhase(phaseVerify)
		c.verifyBegan = now
	}
	c.kickAll()
}

// stop lets requests in flight finish and issues no more.
func (c *clone) stop() {
	c.stopped.Store(true)
	c.mu.Lock()
	delay := c.delay
	c.delay = nil
	c.mu.Unlock()
	if delay != nil && delay.Stop() {
		c.begin() // every slot finds that it is over
	}
	c.wake()
}

// kickAll hands every slot to the runner.
func (c *clone) kickAll() {
	now := c.now()
	c.mu.Lock()
	for i := range c.slots {
		c.slots[i].end = now
		c.pushLocked(&c.slots[i])
	}
	c.run() // unlocks
}

// slotDone is every request's Done.
func slotDone(r *initiator.Request) {
	s := r.User.(*slot)
	c := s.c
	s.end = c.now()
	c.mu.Lock()
	c.pushLocked(s)
	c.run()
}

func (c *clone) pushLocked(s *slot) {
	if s.next = nil; c.tail == nil {
		c.head = s
	} else {
		c.tail.next = s
	}
	c.tail = s
}

// run makes the caller the runner unless there is one. It is called with c.mu
// held and gives it back.
func (c *clone) run() {
	if c.running {
		c.mu.Unlock()
		return
	}
	c.running = true
	for c.head != nil {
		s := c.head
		if c.head = s.next; c.head == nil {
			c.tail = nil
		}
		c.mu.Unlock()
		c.step(s)
		c.mu.Lock()
	}
	c.running = false
	c.mu.Unlock()
}

// step accounts a slot's finished operation, if it has one, and starts the
// next.
func (c *clone) step(s *slot) {
	if s.inFlight {
		s.inFlight = false
		c.flight--
		c.account(s)
		s.start = s.end
		if t := c.job.ThinkTime; t > 0 && phase(c.live.phase.Load()) == phaseRun {
			c.park(s, s.end+t)
			return
		}
	} else {
		s.start = c.now()
	}
	if !c.submitNext(s) {
		c.rest()
	}
}

// rest takes a slot out of circulation; the last one moves the clone on.
func (c *clone) rest() {
	if c.resting++; c.resting < len(c.slots) {
		return
	}
	c.resting = 0
	if c.advance() {
		c.mu.Lock()
		now := c.now()
		for i := range c.slots {
			c.slots[i].end = now
			c.pushLocked(&c.slots[i])
		}
		c.mu.Unlock()
		return // this goroutine is the runner and finds them
	}
	c.finish()
}

// advance chooses what comes when all slots rest; false: the end.
func (c *clone) advance() bool {
	now := c.now()
	halted := c.stopped.Load() || c.failed && !c.job.ContinueOnErr
	switch phase(c.live.phase.Load()) {
	case phaseRun:
		if c.drain && !halted && !c.expired(now) {
			c.drain = false
			c.pat.restart()
			return true
		}
		c.closeRun(now)
		if c.job.writes() && c.job.EndFsync && !halted {
			c.setPhase(phaseFlush)
			return true
		}
		return c.toVerify(halted)
	case phaseFlush:
		return c.toVerify(halted)
	case phaseVerify:
		c.stats.Dir[dirRead].Runtime += now - c.verifyBegan
		c.stats.Elapsed += now - c.verifyBegan
	}
	return false
}

// closeRun ends the measured time of the main phase.
func (c *clone) closeRun(now time.Duration) {
	c.stats.Elapsed = now - c.began
	for d := range c.stats.Dir {
		if c.stats.Dir[d].IOs > 0 {
			c.stats.Dir[d].Runtime = now - c.began
		}
	}
}

func (c *clone) toVerify(halted bool) bool {
	if c.ledger == nil || !c.job.writes() || !c.job.DoVerify || halted {
		return false
	}
	c.setPhase(phaseVerify)
	c.verifyBegan = c.now()
	return true
}

func (c *clone) setPhase(p phase) { c.live.phase.Store(uint32(p)) }

func (c *clone) finish() {
	c.setPhase(phaseDone)
	c.stats.Usage = processUsage().sub(c.usage0)
	close(c.done)
}

func (c *clone) expired(now time.Duration) bool { return c.deadline > 0 && now >= c.deadline }

// close gives back what newClone took; the sessions are the caller's.
func (c *clone) close() error {
	freeMemory(c.mem)
	c.mem = nil
	if c.ledger != nil {
		return c.ledger.Close()
	}
	return nil
}

// park keeps a slot until due.
func (c *clone) park(s *slot, due time.Duration) {
	if c.deadline > 0 {
		due = min(due, c.deadline)
	}
	s.due = due
	c.mu.Lock()
	c.parked = append(c.parked, s)
	c.armLocked()
	c.mu.Unlock()
}

// armLocked sets the timer for the earliest parked slot.
func (c *clone) armLocked() {
	if len(c.parked) == 0 {
		return
	}
	first := c.parked[0].due
	for _, s := range c.parked[1:] {
		first = min(first, s.due)
	}
	d := max(first-c.now(), 0)
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.wake)
	} else {
		c.timer.Reset(d)
	}
}

// wake hands the slots that are due to the runner; all of them when stopped.
func (c *clone) wake() {
	now := c.now()
	c.mu.Lock()
	keep := c.parked[:0]
	for _, s := range c.parked {
		if s.due > now && !c.stopped.Load() {
			keep = append(keep, s)
			continue
		}
		s.end = now
		c.pushLocked(s)
	}
	c.parked = keep
	c.armLocked()
	c.run()
}

// depthBucket is fio's iodepth_level index of n requests in flight.
func depthBucket(n int) int { return min(bits.Len(uint(max(n, 1)))-1, 6) }

// errnoOf gives the errno that a failed operation is reported with.
func errnoOf(err error) int {
	var e syscall.Errno
	switch {
	case errors.As(err, &e):
		return int(e)
	case errors.Is(err, blockdev.ErrNoSpace):
		return int(syscall.ENOSPC)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return int(syscall.EIO)
	}
	return int(syscall.EIO)
}
