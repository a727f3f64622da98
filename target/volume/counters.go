package volume

import (
	"errors"
	"sync/atomic"
	"time"

	"softiser/blockdev"
)

// Direction tells what a volume was doing.
type Direction uint8

// Directions.
const (
	Reading Direction = iota
	Writing
	Verifying // reading only to find errors
	directions
)

// Counters are the statistics of a volume, whichever place its commands came by.
type Counters struct {
	Reads, Writes         atomic.Uint64
	ReadBytes, WriteBytes atomic.Uint64
	VerifyBytes           atomic.Uint64
	Inline, Worked        atomic.Uint64             // commands executed where they arrived, and by workers
	errs                  [directions]atomic.Uint64 // of the medium, uncorrected

	// What initiators have put back to zero: they are told what came since.
	base       [directions]struct{ bytes, errs atomic.Uint64 }
	statistics atomic.Pointer[Statistics]
}

// Statistics are what a volume has done since it was mapped, or since they were put
// back to zero.
type Statistics struct {
	Reads, Writes, ReadBytes, WriteBytes uint64
	ReadTime, WriteTime                  time.Duration // in commands, added up
	Elapsed                              time.Duration
}

// Statistics are those since they were last reset; now are the times as they are, from
// the places.
func (c *Counters) Statistics(now Statistics) Statistics {
	s := c.fill(now)
	if b := c.statistics.Load(); b != nil {
		s = Statistics{s.Reads - b.Reads, s.Writes - b.Writes, s.ReadBytes - b.ReadBytes, s.WriteBytes - b.WriteBytes,
			s.ReadTime - b.ReadTime, s.WriteTime - b.WriteTime, s.Elapsed - b.Elapsed}
	}
	return s
}

// ResetStatistics makes what is now the zero of Statistics.
func (c *Counters) ResetStatistics(now Statistics) {
	s := c.fill(now)
	c.statistics.Store(&s)
}

func (c *Counters) fill(s Statistics) Statistics {
	s.Reads, s.Writes, s.ReadBytes, s.WriteBytes = c.Reads.Load(), c.Writes.Load(), c.ReadBytes.Load(), c.WriteBytes.Load()
	return s
}

// bytes is the counter of what was processed in a direction.
func (c *Counters) bytes(d Direction) *atomic.Uint64 {
	return [directions]*atomic.Uint64{Reading: &c.ReadBytes, Writing: &c.WriteBytes, Verifying: &c.VerifyBytes}[d]
}

// Medium returns the bytes processed in a direction, and the errors of the
// medium, since they were last reset.
func (c *Counters) Medium(d Direction) (bytes, errs uint64) {
	b := &c.base[d]
	return c.bytes(d).Load() - b.bytes.Load(), c.errs[d].Load() - b.errs.Load()
}

// ResetErrors makes what is now the zero of Medium.
func (c *Counters) ResetErrors(d Direction) {
	c.base[d].bytes.Store(c.bytes(d).Load())
	c.base[d].errs.Store(c.errs[d].Load())
}

// CountError counts an error of the medium that nothing has corrected; others do not
// count, nor does what an initiator has marked: the medium is well there.
func (c *Counters) CountError(err error, d Direction) {
	if _, marked := errors.AsType[*MarkedError](err); marked {
		return
	}
	if errors.Is(err, blockdev.ErrPoisoned) { // whatever has caused it
		c.errs[d].Add(1)
		return
	}
	for _, other := range []error{blockdev.ErrOutOfRange, blockdev.ErrReadOnly, blockdev.ErrNoSpace} {
		if errors.Is(err, other) {
			return
		}
	}
	if errors.Is(err, blockdev.ErrMedium) {
		c.errs[d].Add(1)
	}
}

// Stats is a snapshot of what a volume has done since it was mapped.
type Stats struct {
	Reads      uint64 `json:"reads_total"` // reads and writes that ended well
	Writes     uint64 `json:"writes_total"`
	ReadBytes  uint64 `json:"read_bytes"`
	WriteBytes uint64 `json:"write_bytes"`
	Inline     uint64 `json:"inline_commands_total"` // of these: without leaving the receive goroutine
	Worked     uint64 `json:"worker_commands_total"` // with the help of a worker
	Tasks      int64  `json:"tasks"`                 // commands of one place whose memory is in use now
	Workers    int    `json:"workers"`               // goroutines of the pool
	// PlacementCopied is how many bytes of writes verified placement has copied.
	PlacementCopied uint64 `json:"placement_copied_bytes"`
	// Errors of the medium that nothing has corrected, whatever initiators have put back to zero.
	ReadErrors   uint64 `json:"read_errors_total"`
	WriteErrors  uint64 `json:"write_errors_total"`
	VerifyErrors uint64 `json:"verify_errors_total"`
	StagingWaits uint64 `json:"staging_waits_total"` // writes that have waited for their share of the staging memory
	Throttling          // by rate limits
}

// Stats returns the volume's counters; Tasks is left to the place.
func (v *Volume) Stats() Stats {
	c := &v.Counters
	v.mu.Lock()
	workers := v.pool.n
	v.mu.Unlock()
	s := Stats{
		Reads: c.Reads.Load(), Writes: c.Writes.Load(), ReadBytes: c.ReadBytes.Load(), WriteBytes: c.WriteBytes.Load(),
		Inline: c.Inline.Load(), Worked: c.Worked.Load(), Workers: workers,
		ReadErrors: c.errs[Reading].Load(), WriteErrors: c.errs[Writing].Load(), VerifyErrors: c.errs[Verifying].Load(),
		StagingWaits: v.share.waited(), Throttling: v.Throttling(),
	}
	if v.verifier != nil {
		s.PlacementCopied = v.verifier.copied.Load()
	}
	return s
}
