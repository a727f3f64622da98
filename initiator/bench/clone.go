package bench

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync/atomic"
	"syscall"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/usage"
)

// clone is one running instance of a job.
//
// Completions come from the sessions' receive goroutines. Whichever finds no
// other at work becomes the runner (turns): everything below "runner" has one owner
// at a time, and a device that completes inside Submit does not recurse.
type clone struct {
	clock
	turns
	ending

	job     *Job
	luns    []LUN
	slots   []slot
	mem     []byte
	live    live
	started atomic.Bool // what the runner owns is set up
	done    chan struct{}

	delay *time.Timer // startdelay; guarded by turns.mu

	// runner
	series  seriesSet
	logged  time.Duration // zero of their times: the start of the clone, or the end of its ramp
	ticker  *ticker       // of the run's timeline; nil: nobody draws it
	work    supply
	flushes flushes
	content filler
	ledger  *Ledger
	pace    pacing
	resting int
	share   flowShare
	floors  []floor
	search  *depthSearch
	idle    []*slot // held back by it
	flight  int     // requests handed to the sessions and not accounted

	verifyAt    uint64 // next ledger block
	verifyBegan time.Duration
	usage0      rusage
	stats       Stats
}

// newClone prepares a clone of j on its sessions; info is of the volume, and epoch the zero of its time stamps.
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
	unfit := func(format string, args ...any) error { return usage.Wrap(fail(format, args...)) }
	switch {
	case base < 0 || base > info.Size:
		return nil, unfit("offset %d lies behind the end of the volume, %d bytes (reduce offset or offset_increment)", base, info.Size)
	case size > info.Size-base:
		return nil, unfit("the range of %d bytes at offset %d does not fit into the volume of %d bytes (reduce size, offset or offset_increment)", size, base, info.Size)
	case size <= 0:
		return nil, unfit("the range is smaller than one block of %d bytes", unit)
	case unit%int64(info.BlockSize) != 0 || base%int64(info.BlockSize) != 0:
		return nil, unfit("block size %d and offset %d must be multiples of the volume's block of %d bytes", unit, base, info.BlockSize)
	case j.strays(int64(info.BlockSize)):
		return nil, unfit("rw=%s:N, blockalign, zonesize, zonerange and zoneskip must be multiples of the volume's block of %d bytes", j.RWName, info.BlockSize)
	case info.ReadOnly && !j.VerifyOnly && (j.Dirs[dirWrite] || j.Dirs[dirTrim]):
		return nil, fail("the volume is read-only")
	case j.Dirs[dirTrim] && !info.Discard:
		return nil, fail("the volume does not support trim (UNMAP)")
	}
	c = &clone{job: j, luns: luns, clock: clock{epoch: epoch}, done: make(chan struct{}), work: newSupply(j, newPattern(j, base, size, info.Size), size)}
	c.turns.c = c
	c.stats.Job, c.stats.Jobs = j, 1
	c.content = newFiller(j, size)
	if c.ledger, err = j.openLedger(base, unit, size); err != nil {
		return nil, err
	}
	// Two writes of one block must not be in flight together.
	c.work.apart = c.ledger != nil
	c.flushes = newFlushes(j, c.ledger != nil)
	if err := c.makeSlots(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	if c.series, err = openSeries(j); err != nil {
		return nil, errors.Join(err, c.close())
	}
	c.pace, c.floors = newPacing(j), newFloors(j)
	if c.pace.on && j.mixed() && j.RWMixRead > 0 && j.RWMixRead < 100 && j.Verify == VerifyNone { // whose replay needs a sequence that is the same each time
		c.work.offsets.turn = func(d dir) dir { return c.pace.turn(d, c.now()) }
	}
	return c, nil
}

// openLedger opens the ledger of a clone that needs one, in memory or in a file.
func (j *Job) openLedger(base, unit, size int64) (*Ledger, error) {
	if j.Verify == VerifyNone || !j.writes() && j.VerifyState == "" {
		return nil, nil
	}
	blocks := uint64(size / unit)
	if j.VerifyState == "" {
		return newLedger(j.Seed, base, unit, blocks)
	}
	path := j.VerifyState
	if j.NumJobs > 1 {
		path = fmt.Sprintf("%s.%d", path, j.clone)
	}
	return openLedger(path, j.Seed, base, unit, blocks, j.VerifyOnly || !j.writes())
}

// buffer is how long that of one slot is.
func (j *Job) buffer() int64 {
	page := syscall.Getpagesize()
	return int64((j.maxBS() + page - 1) / page * page)
}

// makeSlots allots the slots of a clone and their buffers, page-aligned and in one
// piece, and fills these with what is to be written.
func (c *clone) makeSlots() (err error) {
	j := c.job
	each := int(j.buffer())
	if c.mem, err = alignedMemory(each * j.IODepth); err != nil {
		return err
	}
	if j.Dirs[dirRead] || j.writes() {
		_ = populate(c.mem) // before the clock runs; a kernel that cannot gives memory when it is first used
	}
	c.slots = make([]slot, j.IODepth)
	users := make([]*blockio.Flusher, len(c.luns)) // each clone is told of losses, also where several share a session
	for i, l := range c.luns {
		users[i] = l.NewFlusher()
	}
	for i := range c.slots {
		s := &c.slots[i]
		s.c, s.lun, s.buf = c, c.luns[i%len(c.luns)], c.mem[i*each:(i+1)*each]
		s.req.Done, s.req.User, s.req.Flusher = slotDone, s, users[i%len(c.luns)]
		if j.writes() && j.Verify == VerifyNone {
			c.content.fill(s.buf[:j.maxBS()])
		}
	}
	c.parked = make([]*slot, 0, j.IODepth)
	if c.search = newDepthSearch(j); c.search != nil {
		c.idle = make([]*slot, 0, j.IODepth)
	}
	return nil
}

// close gives back what newClone took; the sessions are the caller's.
func (c *clone) close() error {
	freeMemory(c.mem)
	c.mem = nil
	err := c.series.close()
	c.series = nil
	if c.ledger != nil {
		err = errors.Join(err, c.ledger.Close())
	}
	return err
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
