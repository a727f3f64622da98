package scsi

import (
	"bytes"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// firstDiff returns the index of the first byte in which a and b, of the same
// length, differ, or -1.
func firstDiff(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// miscompare ends the task with MISCOMPARE and the offset, in the Data-Out, of
// the first byte that differs (SBC-3 §4.18, §5.2).
func miscompare(t *Task, off int64) {
	s := spc.Sense{Key: spc.KeyMiscompare, ASC: spc.ASCMiscompare, InfoValid: true, Info: uint64(off)}
	t.check(&s)
}

// compareWith compares p with the volume at off; at is the position of p in
// the Data-Out. On a difference or a failure it has ended the task.
func compareWith(t *Task, p []byte, off, at int64) bool {
	ok := true
	whole := t.scan(off, t.wholeBlocks(len(p)), func(o int64, have []byte) bool {
		want := p[o-off:]
		want = want[:min(len(want), len(have))] // only part of the last block may have been sent
		if i := firstDiff(want, have[:len(want)]); i >= 0 {
			miscompare(t, at+o-off+int64(i))
			ok = false
		}
		return ok
	})
	return whole && ok
}

// cmdVerify is VERIFY(10), (12), (16) (SBC-3 §5.29): BYTCHK 00b reads the blocks,
// 01b compares them with as many, 11b each with the same one. 10b is reserved.
func cmdVerify(t *Task) {
	bs := int64(1) << t.lu.geo().Shift
	switch t.io.ByteCheck() {
	case 0:
		if t.n == 0 {
			t.good()
			return
		}
		t.toWorker(verifyJob)
	case 1:
		t.chunk.all(t.n, func(t *Task, p []byte) bool { return compareWith(t, p, t.off+t.chunk.done, t.chunk.done) })
	case 3:
		if t.n == 0 {
			t.good()
			return
		}
		t.chunk.all(bs, verifySame)
	default:
		t.badCDB(1)
	}
}

// verifySlice is how much a VERIFY reads before the other commands that wait for a
// worker have their turn: it may be about the whole volume, and there may be as many
// of them as there are workers.
const verifySlice = 4 << 20

func verifyJob(t *Task) {
	n := min(t.n-t.chunk.done, verifySlice)
	if !t.scan(t.off+t.chunk.done, n, func(int64, []byte) bool { return true }) {
		return
	}
	if t.chunk.done += n; t.chunk.done < t.n {
		t.toWorker(verifyJob)
		return
	}
	t.good()
}

// verifySame compares every block with p, the first slice of them at once; p stays
// in t.data.buf, or where it arrived, for the others.
func verifySame(t *Task, p []byte) bool {
	t.span = int64(t.io.Blocks) * int64(len(p))
	t.chunk.done = 0
	verifySameJob(t)
	return false // the job ends the task, now or later
}

func verifySameJob(t *Task) {
	p := t.data.param()
	n := min(t.span-t.chunk.done, verifySlice)
	if !sameBlocks(t, p, t.off+t.chunk.done, n) {
		return
	}
	if t.chunk.done += n; t.chunk.done < t.span {
		t.toWorker(verifySameJob)
		return
	}
	t.lu.vol.Counters.Worked.Add(1)
	t.good()
}

// sameBlocks compares each block of a range with p. On a difference or a failure it
// has ended the task.
func sameBlocks(t *Task, p []byte, off, n int64) bool {
	ok := true
	whole := t.scan(off, n, func(_ int64, have []byte) bool {
		for ; len(have) > 0 && ok; have = have[len(p):] {
			if i := firstDiff(p, have[:len(p)]); i >= 0 {
				miscompare(t, int64(i))
				ok = false
			}
		}
		return ok
	})
	return whole && ok
}

// cmdWriteVerify is WRITE AND VERIFY(10), (12), (16) (SBC-3 §5.37): the blocks are
// written, made durable, read back and, whatever BYTCHK says, compared.
func cmdWriteVerify(t *Task) {
	if t.io.ByteCheck() > 1 {
		t.badCDB(1)
		return
	}
	work := func(t *Task, p []byte) bool {
		off := t.off + t.chunk.done
		if !t.storeCut(p, off) {
			return false
		}
		if err := t.lu.disk.FlushRange(off, t.wholeBlocks(len(p))); err != nil {
			t.failErr(err, volume.Writing)
			return false
		}
		return compareWith(t, p, off, t.chunk.done)
	}
	if int64(t.OutLen) < t.n {
		t.chunk.cut(work)
		return
	}
	t.chunk.all(t.n, work)
}

// cmdCompareAndWrite is COMPARE AND WRITE (SBC-3 §5.2): the first half of the
// Data-Out must be what the blocks hold, then the second half replaces it.
// Between the two nobody else touches the blocks. 0 blocks do nothing.
func cmdCompareAndWrite(t *Task) {
	if t.io.Blocks > t.lu.maxCompare() {
		t.badCDB(13)
		return
	}
	n := 2 * t.n
	// An initiator that sends another amount than the CDB says has a different
	// idea of the block size; better not to guess which half is which.
	if int64(t.OutLen) != n {
		t.Wanted = uint32(n)
		t.badCDB(13)
		return
	}
	t.chunk.all(n, compareAndWrite)
}

func compareAndWrite(t *Task, p []byte) bool {
	half := len(p) / 2
	return compareWith(t, p[:half], t.off, 0) && t.store(p[half:], t.off)
}

// maxCompare keeps both halves within one staged chunk.
func (lu *LU) maxCompare() uint32 {
	return min(maxCompareBlocks, uint32(volume.StageBytes/2)>>lu.geo().Shift)
}

// cmdOrWrite is ORWRITE(16) (SBC-3 §5.5): the blocks become the OR of what they
// hold and the Data-Out.
func cmdOrWrite(t *Task) {
	t.chunk.all(t.n, func(t *Task, p []byte) bool {
		off := t.off + t.chunk.done
		return t.scan(off, int64(len(p)), func(o int64, have []byte) bool {
			q := p[o-off:]
			for i := range have {
				q[i] |= have[i]
			}
			return true
		}) && t.store(p, off)
	})
}
