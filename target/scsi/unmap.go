package scsi

import (
	"encoding/binary"
	"math"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// cmdUnmap is UNMAP (SBC-3 §5.28). ANCHOR is refused, as nothing can be
// anchored here.
func cmdUnmap(t *Task) {
	if t.CDB[1]&1 != 0 {
		t.badCDB(1)
		return
	}
	n := int(binary.BigEndian.Uint16(t.CDB[7:]))
	if n == 0 {
		t.good()
		return
	}
	if n < 8 {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	t.data.fetchParam(n, func(t *Task) { t.writing(unmapJob) })
}

// unmapJob checks the whole list before it discards anything.
func unmapJob(t *Task) {
	if !t.enabledStill() {
		return
	}
	lu, p := t.lu, t.data.param()
	g := lu.geo()
	n, err := spc.UnmapDescriptors(p)
	if err != nil {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	if n > maxUnmapDescr {
		t.badParam(2)
		return
	}
	total := uint64(0)
	for i := range n {
		d := spc.UnmapDescriptor(p, i)
		if d.LBA > g.Blocks || uint64(d.Blocks) > g.Blocks-d.LBA {
			t.illegal(spc.ASCLBAOutOfRange)
			return
		}
		total += uint64(d.Blocks)
	}
	if total > uint64(lu.limits().MaxUnmapBlocks) {
		t.badParam(8)
		return
	}
	for i := range n {
		d := spc.UnmapDescriptor(p, i)
		if t.Aborted() {
			t.end()
			return
		}
		if d.Blocks == 0 {
			continue
		}
		off, n := int64(d.LBA)<<g.Shift, int64(d.Blocks)<<g.Shift
		err := lu.vol.Discard(off, n, t.Stop())
		if err == nil {
			err = lu.vol.Settle(off, n)
		}
		if err != nil {
			t.failErr(err, volume.Writing)
			return
		}
	}
	t.committed()
}

// cmdWriteSame is WRITE SAME(10) and (16) (SBC-3 §5.43, §5.44): one block of Data-Out
// (none with NDOB: zeroes) fills the range; with UNMAP, blocks that would read
// as that anyway are deallocated. 0 blocks is refused (WSNZ).
func cmdWriteSame(t *Task) {
	g := t.lu.geo()
	f := t.io.Flags
	unmap, anchor := f&spc.FlagUnmap != 0, f&spc.FlagAnchor != 0
	ndob := f&spc.FlagNDOB != 0 && len(t.CDB) == 16
	if anchor || unmap && !g.Info.Discard || f&spc.FlagNDOB != 0 && !ndob || f&0x06 != 0 {
		t.badCDB(1)
		return
	}
	if t.io.Blocks == 0 || t.io.Blocks > maxWriteSame {
		t.badCDB(lengthField(len(t.CDB)))
		return
	}
	t.span = t.n
	switch {
	case ndob:
		if t.OutLen != 0 {
			t.illegal(spc.ASCInvalidFieldInIU)
			return
		}
		t.toWorker(zeroJob)
	case t.OutLen != uint32(g.Info.BlockSize):
		t.Wanted = uint32(g.Info.BlockSize)
		t.illegal(spc.ASCInvalidFieldInIU)
	default:
		t.chunk.all(int64(g.Info.BlockSize), writeSame)
	}
}

func mayUnmap(t *Task) bool { return t.io.Flags&spc.FlagUnmap != 0 }

func zeroJob(t *Task) {
	if zeroBlocks(t, t.off, t.span, mayUnmap(t)) {
		t.committed()
	}
}

// zeroBlocks makes a range read as zeroes, in pieces so that an abort is heard.
func zeroBlocks(t *Task, off, n int64, unmap bool) bool {
	for n > 0 {
		k := min(n, 256<<20)
		if err := t.lu.vol.WriteZeroes(off, k, unmap, t.Stop()); err != nil {
			t.failErr(err, volume.Writing)
			return false
		}
		if !t.flushed(off, k) {
			return false
		}
		off, n = off+k, n-k
		if n > 0 && t.Aborted() {
			t.end()
			return false
		}
	}
	return true
}

// writeSame fills t.span bytes with the block p.
func writeSame(t *Task, p []byte) bool {
	if allZero(p) {
		return zeroBlocks(t, t.off, t.span, mayUnmap(t))
	}
	// UNMAP is a permission: blocks with other content are written.
	buf := t.dev.bufs.Get(volume.StageBytes)
	defer t.dev.bufs.Put(buf)
	buf = buf[:min(int64(volume.StageBytes), t.span)]
	for i := 0; i < len(buf); i += len(p) {
		copy(buf[i:], p)
	}
	for off, n := t.off, t.span; n > 0; {
		k := min(n, int64(len(buf)))
		if !t.store(buf[:k], off) {
			return false
		}
		off, n = off+k, n-k
		if n > 0 && t.Aborted() {
			t.end()
			return false
		}
	}
	return true
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// cmdGetLBAStatus is GET LBA STATUS (SBC-3 §5.4): runs of mapped and deallocated
// blocks from the starting LBA on, as many as fit.
func cmdGetLBAStatus(t *Task) {
	if t.io.LBA >= t.lu.geo().Blocks {
		t.illegal(spc.ASCLBAOutOfRange)
		return
	}
	if t.io.Blocks < 24 { // here the allocation length; SBC-3 wants room for one descriptor
		t.badCDB(10)
		return
	}
	t.toWorker(lbaStatusJob)
}

// lbaStatusJob asks the volume piece by piece, each twice as long as the one
// before, so that neither a long hole nor a fragmented file takes long.
func lbaStatusJob(t *Task) {
	g := t.lu.geo()
	room := int(min((t.io.Blocks-8)/16, 255))
	var runs []spc.LBAStatus
	off := int64(t.io.LBA) << g.Shift
	for piece := int64(256 << 20); off < g.Info.Size && len(runs) <= room; piece *= 2 {
		n := min(piece, g.Info.Size-off)
		ext, err := t.lu.vol.Extents(off, n)
		if err != nil {
			t.failErr(err, volume.Reading)
			return
		}
		for _, e := range ext {
			lo, hi := max(e.Off, off), min(e.Off+e.Len, off+n)
			runs = appendRun(runs, uint64(lo)>>g.Shift, uint64(hi-lo)>>g.Shift, e.Data)
		}
		off += n
	}
	if len(runs) > room {
		runs = runs[:room]
	}
	b := t.data.get(volume.BufferSizes[0] + 8)
	t.reply(spc.AppendLBAStatus(b[:0], runs), t.io.Blocks)
}

// appendRun adds n blocks, to the last run if that has the same status and room.
func appendRun(runs []spc.LBAStatus, lba, n uint64, data bool) []spc.LBAStatus {
	st := byte(spc.LBADeallocated)
	if data {
		st = spc.LBAMapped
	}
	if k := len(runs); k > 0 && runs[k-1].Status == st {
		more := min(n, uint64(math.MaxUint32-runs[k-1].Blocks))
		runs[k-1].Blocks += uint32(more)
		lba, n = lba+more, n-more
	}
	for n > 0 {
		k := min(n, math.MaxUint32)
		runs = append(runs, spc.LBAStatus{Range: spc.Range{LBA: lba, Blocks: uint32(k)}, Status: st})
		lba, n = lba+k, n-k
	}
	return runs
}
