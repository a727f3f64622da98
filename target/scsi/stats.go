package scsi

import (
	"sync/atomic"
	"time"
)

// counters are the statistics of a logical unit.
type counters struct {
	reads, writes         atomic.Uint64
	readBytes, writeBytes atomic.Uint64
	verifyBytes           atomic.Uint64
	inline, worked        atomic.Uint64
	errs                  [directions]atomic.Uint64 // of the medium, uncorrected

	// What LOG SELECT has put back to zero: log pages tell what came since.
	base       [directions]struct{ bytes, errs atomic.Uint64 }
	statistics atomic.Pointer[statistics]
}

// statistics are what the General Statistics and Performance log page tells.
type statistics struct {
	reads, writes, readBytes, writeBytes uint64
	readTime, writeTime                  time.Duration // in commands, added up
	elapsed                              time.Duration
}

// statisticsNow are the statistics since the unit was added.
func (lu *LU) statisticsNow() statistics {
	c := &lu.stats
	read, write := lu.Latency()
	return statistics{c.reads.Load(), c.writes.Load(), c.readBytes.Load(), c.writeBytes.Load(), read.Sum, write.Sum, time.Since(lu.added)}
}

// statistics are those since they were last reset.
func (lu *LU) statistics() statistics {
	s := lu.statisticsNow()
	if b := lu.stats.statistics.Load(); b != nil {
		s = statistics{s.reads - b.reads, s.writes - b.writes, s.readBytes - b.readBytes, s.writeBytes - b.writeBytes,
			s.readTime - b.readTime, s.writeTime - b.writeTime, s.elapsed - b.elapsed}
	}
	return s
}

func (lu *LU) resetStatistics() {
	s := lu.statisticsNow()
	lu.stats.statistics.Store(&s)
}

// bytes is the counter of what was processed in a direction.
func (c *counters) bytes(d direction) *atomic.Uint64 {
	return [directions]*atomic.Uint64{reading: &c.readBytes, writing: &c.writeBytes, verifying: &c.verifyBytes}[d]
}

// medium returns the bytes processed in a direction, and the errors of the
// medium, since they were last reset.
func (c *counters) medium(d direction) (bytes, errs uint64) {
	b := &c.base[d]
	return c.bytes(d).Load() - b.bytes.Load(), c.errs[d].Load() - b.errs.Load()
}

func (c *counters) resetErrors(d direction) {
	c.base[d].bytes.Store(c.bytes(d).Load())
	c.base[d].errs.Store(c.errs[d].Load())
}

// Stats is a snapshot of what a logical unit has done since it was added.
type Stats struct {
	Reads      uint64 `json:"reads_total"` // READ and WRITE commands that ended well
	Writes     uint64 `json:"writes_total"`
	ReadBytes  uint64 `json:"read_bytes"`
	WriteBytes uint64 `json:"write_bytes"`
	Inline     uint64 `json:"inline_commands_total"` // of these: without leaving the receive goroutine
	Worked     uint64 `json:"worker_commands_total"` // with the help of a worker
	Tasks      int64  `json:"tasks"`                 // commands whose memory is in use now
	Workers    int    `json:"workers"`               // goroutines of the pool
	// PlacementCopied is how many bytes of WRITEs verified placement has copied.
	PlacementCopied uint64 `json:"placement_copied_bytes"`
}

// Stats returns the unit's counters.
func (lu *LU) Stats() Stats {
	c := &lu.stats
	lu.mu.Lock()
	workers := lu.workers
	lu.mu.Unlock()
	s := Stats{
		Reads: c.reads.Load(), Writes: c.writes.Load(), ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(),
		Inline: c.inline.Load(), Worked: c.worked.Load(), Tasks: lu.users.Load(), Workers: workers,
	}
	if v := lu.verifier; v != nil {
		s.PlacementCopied = v.copied.Load()
	}
	return s
}
