package scsi

import (
	"errors"

	"softiser/blockdev"
	"softiser/internal/spc"
	"softiser/target/volume"
)

// WRITE(6), (10), (12), (16) (SBC-3 §5.33). The volume lends memory (with verified placement
// a verifier does, see target/volume/placement.go), the port fills it, and Commit makes it the
// content of the blocks. Immediate and unsolicited data goes through WriteAt instead, so that
// Go code never touches a mapping:
//
//	        |<-- staged: WriteAt -->|<-- lease: Commit -->|
//	   off  +-----------------------+---------------------+  off+chunk
//
// A long WRITE is fetched and committed in chunks. If the initiator sends less than the
// CDB says, what it sends is written, including a last part of a block (see chunks.cut; RFC
// 7143 §11.4.5.1 leaves the choice). If it sends more, only what the CDB says is written.
// Both end with GOOD and a residual.

func cmdWrite(t *Task) {
	if int64(t.OutLen) < t.n {
		t.chunk.cut(func(t *Task, p []byte) bool { return t.storeCut(p, t.off+t.chunk.done) })
		return
	}
	t.Wanted = uint32(t.n)
	if t.n == 0 {
		t.good()
		return
	}
	writeChunk(t, blockdev.NoWait)
}

func writeJob(t *Task) { writeChunk(t, blockdev.Wait) }

// writeChunk begins the chunk at t.chunk.done.
func writeChunk(t *Task, m blockdev.Mode) {
	lu := t.lu
	off, n := t.off+t.chunk.done, t.n-t.chunk.done
	n = min(n, lu.writeChunkBytes(off, n))
	bs := int64(1) << lu.geo().Shift
	t.chunk.staged = 0
	if unasked := int64(t.UnsolicitedLen); unasked > t.chunk.done {
		t.chunk.staged = int(min(n, (unasked-t.chunk.done+bs-1)&^(bs-1)))
	}
	if int64(t.chunk.staged) == t.n && int64(len(t.Arrived)) >= t.n {
		writeArrived(t, m)
		return
	}
	rest := int(n) - t.chunk.staged
	if t.job = writeJob; rest > 0 && !lu.vol.Stage(&t.Op, off+int64(t.chunk.staged), int64(rest)) {
		return
	}
	t.data.segs = t.data.segs[:0]
	if t.chunk.staged > 0 {
		if !t.data.stage(t.chunk.staged) {
			t.status(spc.StatusBusy)
			return
		}
		t.data.segs = append(t.data.segs, t.data.buf[:t.chunk.staged])
	}
	if rest > 0 {
		err := lu.vol.Lender(off+int64(t.chunk.staged), int64(rest)).LeaseWrite(&t.Lease, off+int64(t.chunk.staged), rest, m)
		if errors.Is(err, blockdev.ErrWouldBlock) {
			t.data.put()
			t.toWorker(writeJob)
			return
		}
		if err != nil {
			t.failErr(err, volume.Writing)
			return
		}
		t.data.segs = append(t.data.segs, t.Lease.Segs...)
	}
	t.data.fetch(uint32(t.chunk.done), writeArrivedChunk)
}

// writeArrived writes a command all of whose data has arrived unsolicited.
func writeArrived(t *Task, m blockdev.Mode) {
	if m == blockdev.NoWait && t.fua() {
		t.toSyncer(writeJob)
		return
	}
	if m == blockdev.NoWait && !t.lu.vol.WritesAtOnce(&t.Lease, t.off, int(t.n)) {
		t.job = writeMade
		t.lu.vol.ToWriter(&t.Op, t.Arrived[:t.n], t.off)
		return
	}
	commitChunk(t, t.Arrived[:t.n], m)
}

// writeMade ends a command whose data a worker has written (volume.ToWriter).
func writeMade(t *Task) {
	if err := t.Written(); err != nil {
		t.failErr(err, volume.Writing)
		return
	}
	if t.flushed(t.off, t.n) {
		committed(t, t.n, blockdev.Wait)
	}
}

// writeArrivedChunk runs when a chunk's data are there.
func writeArrivedChunk(t *Task) {
	if t.chunk.staged > 0 || t.Lease.Owner != nil && commitWaits(t) {
		t.toCommitter(commitJob, t.fua())
		return
	}
	commitChunk(t, nil, blockdev.NoWait)
}

func commitJob(t *Task) {
	var staged []byte
	if t.chunk.staged > 0 {
		staged = t.data.buf[:t.chunk.staged]
	}
	commitChunk(t, staged, blockdev.Wait)
}

// commitChunk makes the chunk the content of its blocks: staged at its front, the
// lease behind it. Then the next chunk follows, or the status.
func commitChunk(t *Task, staged []byte, m blockdev.Mode) {
	lu := t.lu
	fua := t.fua()
	off := t.off + t.chunk.done
	n := int64(len(staged))
	// The lease first: it may hold the page that the staged blocks end in.
	if t.Lease.Owner != nil {
		n += int64(t.Lease.Len)
		if err := t.Lease.CommitUntil(fua, t.Stop()); err != nil {
			t.failErr(err, volume.Writing)
			return
		}
		// The write cache may have been turned off since fua was asked, and been flushed
		// before these blocks were in it.
		if !fua && !t.flushed(t.Lease.Off, int64(t.Lease.Len)) {
			return
		}
		t.Lease.Release()
		lu.vol.Unstage(&t.Op)
	}
	if len(staged) > 0 {
		if err := lu.vol.WriteAt(staged, off, t.Stop()); err != nil {
			t.failErr(err, volume.Writing)
			return
		}
		if !t.flushed(off, int64(len(staged))) {
			return
		}
		t.data.put()
	}
	committed(t, n, m)
}

// committed goes on after n more bytes have become the content of their blocks: with the next
// chunk, or with the status. m says whether that happened on a worker.
func committed(t *Task, n int64, m blockdev.Mode) {
	t.Op.Stamp(volume.Committed)
	t.chunk.done += n
	if t.chunk.done < t.n {
		writeChunk(t, blockdev.NoWait) // a worker that commits must not wait for staging memory
		return
	}
	c := &t.lu.vol.Counters
	c.Writes.Add(1)
	c.WriteBytes.Add(uint64(t.n))
	if m == blockdev.NoWait {
		c.Inline.Add(1)
	} else {
		c.Worked.Add(1)
	}
	t.good()
}

// commitWaits reports whether committing the lease of a WRITE is a worker's job.
func commitWaits(t *Task) bool { return t.lu.vol.CommitWaits(&t.Lease, &t.probe, t.fua()) }
