package scsi

import (
	"softiser/internal/spc"
	"softiser/target/volume"
)

// chunks is the Data-Out of a command in pieces. Commands that examine their data (VERIFY,
// COMPARE AND WRITE, ORWRITE, WRITE ATOMIC, WRITE AND VERIFY, WRITE SAME) stage it in pool
// memory, one chunk after another, and process each chunk on a worker:
//
//	next --> fetch --> stageArrived --> stageWork --> next …
//	                          (worker, for an exclusive command with
//	                           its blocks held)
//
// Task.n is the length of the Data-Out.
type chunks struct {
	t      *Task
	work   func(*Task, []byte) bool // processes a chunk; false: it has ended the task
	done   int64                    // bytes of Data-Out that are finished
	staged int                      // bytes at the front of the current chunk that are staged
}

// all begins the chunks of a command with n bytes of Data-Out, and calls work for each. It
// refuses the command if the initiator sends less.
func (c *chunks) all(n int64, work func(*Task, []byte) bool) {
	if wantOut(c.t, n) {
		c.begin(n, work)
	}
}

func (c *chunks) begin(n int64, work func(*Task, []byte) bool) {
	t := c.t
	t.n = n
	c.work = work
	if n == 0 {
		t.good()
		return
	}
	c.next()
}

// cut is all for a WRITE whose initiator sends less than the CDB says.
func (c *chunks) cut(work func(*Task, []byte) bool) {
	t := c.t
	t.Wanted = uint32(t.n)
	c.begin(int64(t.OutLen), work)
}

// wholeBlocks rounds n bytes up to blocks.
func (t *Task) wholeBlocks(n int) int64 {
	bs := int64(1) << t.lu.geo().Shift
	return (int64(n) + bs - 1) &^ (bs - 1)
}

// storeCut is store for data that may end within a block, whose rest stays as
// it is.
func (t *Task) storeCut(p []byte, off int64) bool {
	whole := len(p) &^ (1<<t.lu.geo().Shift - 1)
	if whole > 0 && !t.store(p[:whole], off) {
		return false
	}
	rest := p[whole:]
	if len(rest) == 0 {
		return true
	}
	block := t.dev.bufs.Get(int(t.wholeBlocks(1)))
	defer t.dev.bufs.Put(block)
	block = block[:t.wholeBlocks(1)]
	off += int64(whole)
	if _, err := t.lu.vol.ReadAt(block, off); err != nil {
		t.failErr(err, volume.Reading)
		return false
	}
	copy(block, rest)
	return t.store(block, off)
}

func (c *chunks) next() {
	t := c.t
	c.staged = int(min(t.n-c.done, volume.StageBytes))
	if int64(len(t.Arrived)) >= c.done+int64(c.staged) {
		stageArrived(t)
		return
	}
	if !t.data.stage(c.staged) {
		t.status(spc.StatusBusy)
		return
	}
	t.data.segs = append(t.data.segs[:0], t.data.buf[:c.staged])
	t.data.fetch(uint32(c.done), stageArrived)
}

func stageArrived(t *Task) {
	if t.op.hold == volume.HoldStaged {
		t.exclusively(stageHeld)
	} else {
		t.toWorker(stageWork)
	}
}

// stageHeld is stageWork for a command that has just got its blocks exclusively.
func stageHeld(t *Task) {
	if t.enabledStill() {
		stageWork(t)
	}
}

// stageWork hands a piece of data that has arrived to the command, and asks for the next one or ends the command.
func stageWork(t *Task) {
	p := t.Arrived
	if t.data.buf != nil {
		p = t.data.buf[:t.chunk.staged]
	} else {
		p = p[t.chunk.done : t.chunk.done+int64(t.chunk.staged)]
	}
	if !t.chunk.work(t, p) {
		return
	}
	t.chunk.done += int64(t.chunk.staged)
	t.data.put()
	if t.chunk.done < t.n {
		if t.op.hold == volume.HoldStaged {
			t.lu.vol.Yield(&t.Op) // other commands must not wait for this initiator's data
		}
		t.chunk.next()
		return
	}
	if t.op.has(fDataWrite) {
		t.lu.vol.Counters.Writes.Add(1)
		t.lu.vol.Counters.WriteBytes.Add(uint64(t.n))
	}
	t.lu.vol.Counters.Worked.Add(1)
	if t.op.access == volume.Writes {
		t.committed()
	} else {
		t.good()
	}
}

// flushed makes [off, off+n) durable if the command says so; on failure it has
// ended the task.
func (t *Task) flushed(off, n int64) bool {
	if t.fua() {
		if err := t.lu.disk.FlushRange(off, n); err != nil {
			t.failErr(err, volume.Writing)
			return false
		}
	}
	return true
}

// store writes p at off, durably if the command says so; on failure it has
// ended the task.
func (t *Task) store(p []byte, off int64) bool {
	if err := t.lu.vol.WriteAt(p, off, t.Stop()); err != nil {
		t.failErr(err, volume.Writing)
		return false
	}
	return t.flushed(off, int64(len(p)))
}

// fua reports whether the command has to make its data durable: by its FUA bit, or because
// the write cache is turned off (WCE 0). A device that has no write cache (Info.WriteCache)
// makes every write durable by itself.
func (t *Task) fua() bool {
	if !t.lu.geo().Info.WriteCache {
		return false
	}
	if !t.lu.vol.WriteCache() {
		return true
	}
	switch spc.Opcode(t.CDB[0]) {
	case spc.OpWriteSame10, spc.OpWriteSame16: // UNMAP is where other commands have FUA
		return false
	}
	return t.io.FUA()
}
