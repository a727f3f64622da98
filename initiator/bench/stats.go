package bench

import (
	"cmp"
	"sync/atomic"
	"syscall"
	"time"

	"softiser/initiator/blockio"
)

// DirStats is what happened in one direction.
type DirStats struct {
	IOs     uint64        // requests that have completed
	Bytes   uint64        // and their payload
	Runtime time.Duration // of the longest clone

	Slat, Clat, Lat             Moments    // nanoseconds
	SlatHist, ClatHist, LatHist *Histogram // nil where not asked for or nothing happened

	BW   samples // bytes per second, one sample every half second
	Rate samples // operations per second
}

// samples is a series summed up; a sample belongs to one clone.
type samples struct {
	Moments
	sum float64
}

// Stats is the result of one clone, or of a group of them.
type Stats struct {
	Job        *Job // the first one
	Jobs       int
	Dir        [dirs]DirStats
	Elapsed    time.Duration
	Usage      rusage
	FoundDepth int          // by latency_target; zero: it was not looked for
	Steady     *steadyState // nil: not looked for
	doing      string       // of a clone whose stage runs; empty: it is over
	Depth      [7]uint64    // requests in flight at submission: 1, 2, 4, 8, 16, 32, ≥64

	Session blockio.Stats // of the connections, since they were opened

	Errors     uint64
	FirstErr   error
	Code       int // errno of the first error, 0
	Verified   uint64
	Mismatches []*Mismatch // the first few
	Bad        uint64      // all
}

// add records one finished operation of n bytes.
func (s *DirStats) add(n int, slat, clat int64, j *Job) {
	s.IOs++
	s.Bytes += uint64(n)
	s.Slat.Add(slat)
	s.Clat.Add(clat)
	s.Lat.Add(slat + clat)
	if s.ClatHist == nil {
		s.ClatHist = new(Histogram)
	}
	s.ClatHist.Add(clat)
	if j.LatPercentile {
		if s.LatHist == nil {
			s.LatHist = new(Histogram)
		}
		s.LatHist.Add(slat + clat)
	}
	if j.SlatPercentile {
		if s.SlatHist == nil {
			s.SlatHist = new(Histogram)
		}
		s.SlatHist.Add(slat)
	}
}

// merge adds another clone's results; group reports add bandwidth up, so the
// runtime is the longest.
func (s *DirStats) merge(o *DirStats) {
	s.IOs += o.IOs
	s.Bytes += o.Bytes
	s.Runtime = max(s.Runtime, o.Runtime)
	s.Slat.Merge(&o.Slat)
	s.Clat.Merge(&o.Clat)
	s.Lat.Merge(&o.Lat)
	mergeHist(&s.SlatHist, o.SlatHist)
	mergeHist(&s.ClatHist, o.ClatHist)
	mergeHist(&s.LatHist, o.LatHist)
	s.BW.merge(&o.BW)
	s.Rate.merge(&o.Rate)
}

// since returns what was done after an earlier state, within a time. Where counting has begun
// anew, it is all of it.
func (s *DirStats) since(o *DirStats, within time.Duration) *DirStats {
	if s.IOs < o.IOs || s.Bytes < o.Bytes || s.Runtime < o.Runtime {
		o = new(DirStats)
	}
	if o.IOs == 0 { // it has begun in that time
		within = min(within, s.Runtime)
	}
	return &DirStats{IOs: s.IOs - o.IOs, Bytes: s.Bytes - o.Bytes, ClatHist: s.ClatHist.since(o.ClatHist), Runtime: within}
}

func mergeHist(dst **Histogram, src *Histogram) {
	if src == nil {
		return
	}
	if *dst == nil {
		*dst = new(Histogram)
	}
	(*dst).Merge(src)
}

// merge of series, as in fio's group reports: means add up, extremes are kept.
func (s *samples) merge(o *samples) {
	s.sum += o.sum
	s.Moments.Merge(&o.Moments)
}

func (s *samples) add(v float64) {
	before := s.Mean
	s.Moments.Add(int64(v))
	s.sum += s.Mean - before // sum is the mean of one clone, and adds over clones
}

// merge adds another clone's results.
func (s *Stats) merge(o *Stats) {
	if s.Job == nil {
		s.Job = o.Job
	}
	s.FoundDepth = cmp.Or(s.FoundDepth, o.FoundDepth)
	s.Steady = cmp.Or(s.Steady, o.Steady)
	s.Jobs += o.Jobs
	for d := range s.Dir {
		s.Dir[d].merge(&o.Dir[d])
	}
	for i, n := range o.Depth {
		s.Depth[i] += n
	}
	// Usage is the process's, the same for all that ran at the same time.
	if o.Elapsed > s.Elapsed {
		s.Elapsed, s.Usage = o.Elapsed, o.Usage
	}
	s.addSession(o.Session)
	s.Errors += o.Errors
	s.first(o.FirstErr, o.Code)
	s.Verified += o.Verified
	s.Bad += o.Bad
	for _, m := range o.Mismatches {
		if len(s.Mismatches) < maxMismatches {
			s.Mismatches = append(s.Mismatches, m)
		}
	}
}

// addSession adds what the report tells of a connection.
func (s *Stats) addSession(o blockio.Stats) {
	t := &s.Session
	t.Commands += o.Commands
	t.Retries += o.Retries
	t.Replayed += o.Replayed
	t.Losses += o.Losses
	t.PayloadCopied += o.PayloadCopied
	t.SendCalls += o.SendCalls
	t.ReceiveCalls += o.ReceiveCalls
}

// maxMismatches is how many are kept for the report.
const maxMismatches = 16

// failed reports whether the run must exit with an error.
func (s *Stats) failed() bool { return s.Errors > 0 || s.Bad > 0 || s.FirstErr != nil }

// first keeps an error, and the errno that it is reported with, unless there is one already.
func (s *Stats) first(err error, code int) {
	if s.FirstErr == nil {
		s.FirstErr, s.Code = err, code
	}
}

// mismatch enters a block that is not what it should be.
func (s *Stats) mismatch(m *Mismatch) {
	if s.Bad++; len(s.Mismatches) < maxMismatches {
		s.Mismatches = append(s.Mismatches, m)
	}
	s.first(m, int(syscall.EILSEQ))
}

// phase is where a clone stands.
//
//	phaseRun ──► phaseFlush ──► phaseVerify ──► phaseDone
//	   └──────────────┴───────────────┴──(error)──►
type phase uint32

const (
	phaseRun phase = iota
	phaseFlush
	phaseVerify
	phaseDone
)

func (p phase) String() string { return [...]string{"run", "flush", "verify", "done"}[p] }

// live is what a running clone shows to the progress line.
type live struct {
	ios, bytes [dirs]atomic.Int64
	phase      atomic.Uint32
	begun      atomic.Uint32 // how often counting has begun anew: at the end of a ramp, or when a depth is found
}

func (l *live) at() phase     { return phase(l.phase.Load()) }
func (l *live) enter(p phase) { l.phase.Store(uint32(p)) }
