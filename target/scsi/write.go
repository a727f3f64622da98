package scsi

import (
	"errors"

	"softiser/blockdev"
	"softiser/internal/spc"
	"softiser/target/volume"
)

// WRITE(6), (10), (12), (16). The volume lends memory (with verified placement a
// verifier does, see placement.go), the port fills it, Commit makes it the content.
// Bytes that came unasked (immediate and unsolicited data) go through WriteAt
// instead, so that Go code never touches a mapping:
//
//	        |<-- staged: WriteAt -->|<-- lease: Commit -->|
//	   off  +-----------------------+---------------------+  off+chunk
//
// A long WRITE is fetched and committed in chunks. A WRITE whose initiator
// sends less than the CDB says (RFC 7143 §11.4.5.1 leaves the choice) writes what
// came, a last part of a block included, see chunks.cut; one that sends more
// writes what the CDB says. Both are GOOD with the residual.

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

// writeArrived writes a command whose data all came with it.
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

// writeMade ends a command that a worker has written as a whole.
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
		// The cache may have been turned off meanwhile, and flushed before these blocks were in it.
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

// committed goes on when n bytes more are the content of their blocks.
func committed(t *Task, n int64, m blockdev.Mode) {
	t.Op.Stamp(volume.Committed)
	t.chunk.done += n
	if t.chunk.done < t.n {
		writeChunk(t, blockdev.NoWait) // who commits does not wait for staging memory
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
