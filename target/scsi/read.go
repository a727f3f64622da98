package scsi

import (
	"errors"

	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/target/volume"
)

// READ(6), (10), (12), (16) (SBC-3 §5.11). The volume lends the memory of the blocks, and the
// port sends it from there. An initiator whose buffer is shorter than the CDB asks gets what
// fits, GOOD, and a residual with OVERFLOW (RFC 7143 §11.4.5).

func cmdRead(t *Task) {
	t.Wanted = uint32(t.n)
	if t.n == 0 || t.InLen == 0 {
		t.good()
		return
	}
	readBlocks(t, blockdev.NoWait)
}

// readJob is cmdRead's continuation on a worker.
func readJob(t *Task) { readBlocks(t, blockdev.Wait) }

// readBlocks lends the blocks of a READ to the transport, and answers it. With NoWait it hands
// what would block to a worker, which calls it again with Wait.
func readBlocks(t *Task, m blockdev.Mode) {
	lu := t.lu
	want := min(t.Wanted, t.InLen)
	bs := uint32(1) << lu.geo().Shift
	n := int(want+bs-1) &^ int(bs-1) // whole blocks, though the last may go out in part
	var err error
	if m == blockdev.NoWait || !t.Lent() {
		err = lu.vol.LeaseRead(&t.Lease, t.off, n, m)
	}
	switch {
	case err == nil:
	case errors.Is(err, blockdev.ErrWouldBlock):
		t.job = readJob
		lu.vol.ToReader(&t.Op, &t.Lease, t.off, n)
		return
	default:
		t.failErr(err, volume.Reading)
		return
	}
	t.data.segs = appendUpTo(t.data.segs[:0], t.Lease.Segs, int(want))
	if !t.data.send() {
		return
	}
	c := &lu.vol.Counters
	c.Reads.Add(1)
	c.ReadBytes.Add(uint64(want))
	if m == blockdev.NoWait {
		c.Inline.Add(1)
	} else {
		c.Worked.Add(1)
	}
	t.good()
}

// appendUpTo adds the first n bytes of src to dst.
func appendUpTo(dst, src [][]byte, n int) [][]byte {
	for _, s := range src {
		if len(s) >= n {
			return append(dst, s[:n])
		}
		dst = append(dst, s)
		n -= len(s)
	}
	return dst
}

// scan reads [off, off+n) of the volume, in bytes, piece by piece into a pooled buffer, and
// calls f for each piece until f returns false. It runs on a worker. It returns false when a
// read has failed or the task was aborted, and has then ended the task.
func (t *Task) scan(off, n int64, f func(off int64, p []byte) bool) bool {
	buf := t.dev.bufs.Get(volume.BufferSizes[len(volume.BufferSizes)-1])
	defer t.dev.bufs.Put(buf)
	for n > 0 {
		p := buf[:min(n, int64(len(buf)))]
		if _, err := t.lu.vol.ReadAt(p, off); err != nil {
			t.failErr(err, volume.Reading)
			return false
		}
		if t.verifies() {
			t.lu.vol.Counters.VerifyBytes.Add(uint64(len(p)))
		}
		if !f(off, p) {
			return true
		}
		off += int64(len(p))
		n -= int64(len(p))
		if t.Aborted() {
			t.end()
			return false
		}
	}
	return true
}

// cmdReadCapacity10 answers READ CAPACITY(10).
func cmdReadCapacity10(t *Task) {
	if t.CDB[8]&1 == 0 && spc.ParseIO(t.CDB).LBA != 0 {
		t.badCDB(2) // PMI is 0, so the LBA must be
		return
	}
	c := t.lu.capacity()
	t.data.get(spc.Capacity10Len)
	t.reply(c.Append10(t.data.buf[:0]), spc.Capacity10Len)
}

// cmdReadCapacity16 answers READ CAPACITY(16).
func cmdReadCapacity16(t *Task) {
	c := t.lu.capacity()
	t.data.get(spc.Capacity16Len)
	t.reply(c.Append16(t.data.buf[:0]), spc.ParseIO(t.CDB).Blocks)
}

func (lu *LU) capacity() spc.Capacity {
	g := lu.geo()
	exp := uint8(0)
	for s := g.Info.BlockSize; s < g.Info.PhysBlockSize; s <<= 1 {
		exp++
	}
	return spc.Capacity{
		Blocks: g.Blocks, BlockSize: uint32(g.Info.BlockSize), PhysExponent: exp,
		Provisioned: g.Info.Discard, ReadZeroes: g.Info.Discard && g.Info.ZeroesOnTrim,
	}
}
