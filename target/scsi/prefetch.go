package scsi

import (
	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/target/volume"
)

// PRE-FETCH (SBC-4 §5.10, §5.11) brings blocks from storage into memory, where
// READs will find them. CONDITION MET tells that the cache has room for all of
// the blocks, GOOD that it may not. The cache is the kernel's, which promises to
// keep pages only if they are locked: so CONDITION MET is for volumes that are
// (lock: true), and for what one command may bring in.

const (
	// maxPrefetch bounds what one command brings in. What lies beyond is not
	// fetched, and the status is GOOD.
	maxPrefetch   = 256 << 20
	prefetchPiece = 1 << 20
	// maxBehind bounds the commands with IMMED that go on behind their status; for
	// one more nothing is fetched, and its status is GOOD.
	maxBehind = 4
)

// cmdPrefetch reads blocks into the page cache, as many as one command may ask for.
func cmdPrefetch(t *Task) {
	info := t.lu.geo().Info
	if t.io.Blocks == 0 { // to the end of the medium
		t.n = info.Size - t.off
	}
	fits := info.Resident && t.n <= maxPrefetch
	t.n = min(t.n, maxPrefetch)
	if t.CDB[1]&spc.FlagImmed != 0 {
		prefetched(t, t.lu.prefetchBehind(t.off, t.n) && fits)
		return
	}
	t.toWorker(func(t *Task) {
		for t.chunk.done < t.n {
			n := min(t.n-t.chunk.done, prefetchPiece)
			if err := t.lu.prefetch(&t.Lease, t.off+t.chunk.done, n); err != nil {
				t.failErr(err, volume.Reading)
				return
			}
			t.chunk.done += n
			if t.Aborted() {
				t.end()
				return
			}
		}
		prefetched(t, fits)
	})
}

// prefetched ends the task with the status that tells whether all blocks fit.
func prefetched(t *Task, fits bool) {
	if fits {
		t.status(spc.StatusConditionMet)
	} else {
		t.good()
	}
}

// prefetch brings n bytes in. A volume without a mapping reads them into memory
// of its own, and so leaves them in the kernel's cache or in that below it.
func (lu *LU) prefetch(l *blockdev.Lease, off, n int64) error {
	if err := lu.vol.LeaseRead(l, off, int(n), blockdev.Wait); err != nil {
		return err
	}
	defer l.Release()
	return l.Populate()
}

// prefetchBehind brings n bytes in behind the command's status; false: enough
// others are at that. An error is left to the READ that needs the blocks.
func (lu *LU) prefetchBehind(off, n int64) bool {
	if lu.prefetches.Add(1) > maxBehind {
		lu.prefetches.Add(-1)
		return false
	}
	lu.place.Hold()
	go func() {
		defer lu.place.Unuse()
		defer lu.prefetches.Add(-1)
		var l blockdev.Lease
		for done := int64(0); done < n && !lu.place.Removed(); done += prefetchPiece {
			if lu.prefetch(&l, off+done, min(n-done, prefetchPiece)) != nil {
				return
			}
		}
	}()
	return true
}
