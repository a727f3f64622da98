package scsi

import (
	spc "softiser/internal/scsi"

	"softiser/target/volume"
)

// Commands that look at their Data-Out (VERIFY, COMPARE AND WRITE, ORWRITE,
// WRITE ATOMIC, WRITE AND VERIFY, WRITE SAME) stage it in pool memory, one chunk
// after another, and work on it on a worker:
//
//	stageNext --> fetch --> stageArrived --> stageWork --> stageNext …
//	                          (worker, for an exclusive command with
//	                           its blocks held)
//
// t.n is the length of the Data-Out, t.done how much of it is finished,
// t.staged the chunk under way.

// stageAll begins: n bytes of Data-Out, work for each chunk. work returns
// false when it has ended the task; done ends a task whose chunks are all
// worked on.
func (t *Task) stageAll(n int64, work func(*Task, []byte) bool) {
	if t.wantOut(n) {
		t.stage(n, work)
	}
}

func (t *Task) stage(n int64, work func(*Task, []byte) bool) {
	t.n = n
	t.work = work
	if n == 0 {
		t.good()
		return
	}
	t.stageNext()
}

// stageCut is stageAll for a WRITE whose initiator sends less than the CDB says.
func (t *Task) stageCut(work func(*Task, []byte) bool) {
	t.Wanted = uint32(t.n)
	t.stage(int64(t.OutLen), work)
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
	if _, err := t.lu.disk.ReadAt(block, off); err != nil {
		t.failErr(err, volume.Reading)
		return false
	}
	copy(block, rest)
	return t.store(block, off)
}

func (t *Task) stageNext() {
	t.staged = int(min(t.n-t.done, volume.StageBytes))
	if int64(len(t.Arrived)) >= t.done+int64(t.staged) {
		stageArrived(t)
		return
	}
	if !t.stageBuf(t.staged) {
		t.status(spc.StatusBusy)
		return
	}
	t.segs = append(t.segs[:0], t.buf[:t.staged])
	t.fetch(uint32(t.done), stageArrived)
}

func stageArrived(t *Task) {
	if t.op.hold == volume.HoldStaged {
		t.exclusively(stageWork)
	} else {
		t.toWorker(stageWork)
	}
}

func stageWork(t *Task) {
	p := t.Arrived
	if t.buf != nil {
		p = t.buf[:t.staged]
	} else {
		p = p[t.done : t.done+int64(t.staged)]
	}
	if !t.work(t, p) {
		return
	}
	t.done += int64(t.staged)
	t.putBuf()
	if t.done < t.n {
		if t.op.hold == volume.HoldStaged {
			t.lu.vol.Yield(&t.Op) // nobody should wait for this initiator
		}
		t.stageNext()
		return
	}
	if t.op.has(fDataWrite) {
		t.lu.vol.Counters.Writes.Add(1)
		t.lu.vol.Counters.WriteBytes.Add(uint64(t.n))
	}
	t.lu.vol.Counters.Worked.Add(1)
	t.good()
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
