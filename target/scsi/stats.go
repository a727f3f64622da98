package scsi

import "sync/atomic"

// counters are the statistics of a logical unit.
type counters struct {
	reads, writes         atomic.Uint64
	readBytes, writeBytes atomic.Uint64
	inline, worked        atomic.Uint64
}

// Stats is a snapshot of what a logical unit has done since it was added.
type Stats struct {
	Reads, Writes         uint64 // READ and WRITE commands that ended well
	ReadBytes, WriteBytes uint64
	Inline                uint64 // of these: without leaving the receive goroutine
	Worked                uint64 // with the help of a worker
	Tasks                 int64  // commands whose memory is in use now
	Workers               int    // goroutines of the pool
}

// Stats returns the unit's counters.
func (lu *LU) Stats() Stats {
	c := &lu.stats
	lu.mu.Lock()
	workers := lu.workers
	lu.mu.Unlock()
	return Stats{
		Reads: c.reads.Load(), Writes: c.writes.Load(), ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(),
		Inline: c.inline.Load(), Worked: c.worked.Load(), Tasks: lu.users.Load(), Workers: workers,
	}
}
