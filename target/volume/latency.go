package volume

import (
	"math/bits"
	"sync/atomic"
	"time"

	"softiser/internal/digits"
)

// Histogram buckets: four per power of two, from 1 µs to about 137 s.
const (
	histShift   = 10 // the first bucket ends at 2^10 ns
	histSub     = 2  // log2 of the buckets per power of two
	histPowers  = 27
	histBuckets = histPowers<<histSub + 1
)

// histogram counts latencies. There is one for each kind of command, client and
// place: sessions that share a volume do not share a cache line, and the
// sums by session and by volume are made when somebody asks.
type histogram struct {
	n   [histBuckets]atomic.Uint64
	sum atomic.Uint64 // ns
}

func histIndex(ns uint64) int {
	if ns < 1<<histShift {
		return 0
	}
	e := bits.Len64(ns) - 1 // 2^e <= ns
	i := (e-histShift)<<histSub + int(ns>>(e-histSub)&(1<<histSub-1)) + 1
	return min(i, histBuckets-1)
}

// histBound is the upper bound (exclusive) of bucket i, ns.
func histBound(i int) uint64 {
	if i == 0 {
		return 1 << histShift
	}
	i--
	e := i>>histSub + histShift
	return 1<<e + uint64(i&(1<<histSub-1)+1)<<(e-histSub)
}

func (h *histogram) observe(d time.Duration) {
	ns := uint64(max(d, 0))
	h.n[histIndex(ns)].Add(1)
	h.sum.Add(ns)
}

// Latency is a snapshot of a latency histogram.
type Latency struct {
	Count uint64        `json:"count"`  // commands
	Sum   time.Duration `json:"sum_ns"` // of their latencies
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p999_ns"`
	// Buckets holds the non-empty buckets in ascending order.
	Buckets []LatencyBucket `json:"buckets,omitempty"`
}

// Text writes one value of the distribution in two or three digits, as its buckets are no
// finer; "-" when it is empty.
func (l *Latency) Text(d time.Duration) string {
	if l.Count == 0 {
		return "-"
	}
	return digits.Round(d).String()
}

// LatencyBucket counts the commands that took less than Below and no less than
// the bucket before.
type LatencyBucket struct {
	Below time.Duration `json:"below_ns"`
	Count uint64        `json:"count"`
}

// tally is a sum of histograms.
type tally struct {
	n   [histBuckets]uint64
	sum uint64
}

func (y *tally) add(h *histogram) {
	for i := range h.n {
		y.n[i] += h.n[i].Load()
	}
	y.sum += h.sum.Load()
}

func (y *tally) sumUp(x *tally) {
	for i, n := range x.n {
		y.n[i] += n
	}
	y.sum += x.sum
}

func (y *tally) latency() Latency {
	l := Latency{Sum: time.Duration(y.sum)}
	for i, n := range y.n {
		if n > 0 {
			l.Count += n
			l.Buckets = append(l.Buckets, LatencyBucket{time.Duration(histBound(i)), n})
		}
	}
	l.P50, l.P99, l.P999 = l.percentile(0.5), l.percentile(0.99), l.percentile(0.999)
	return l
}

// percentile is the upper bound of the bucket that holds the p-th part.
func (l *Latency) percentile(p float64) time.Duration {
	var seen uint64
	for _, b := range l.Buckets {
		seen += b.Count
		if float64(seen) >= p*float64(l.Count) {
			return b.Below
		}
	}
	return 0
}

// Latencies are the histograms of what one client does at one place.
type Latencies struct{ read, write histogram }

// Observe books how long a read or a write took from its arrival to its response.
func (l *Latencies) Observe(took time.Duration, write bool) {
	if write {
		l.write.observe(took)
	} else {
		l.read.observe(took)
	}
}

// Tally is a sum of latencies.
type Tally struct{ read, write tally }

// Add adds those of l, if it is not nil.
func (y *Tally) Add(l *Latencies) {
	if l != nil {
		y.read.add(&l.read)
		y.write.add(&l.write)
	}
}

// Sum adds another sum.
func (y *Tally) Sum(x *Tally) {
	y.read.sumUp(&x.read)
	y.write.sumUp(&x.write)
}

// Latency returns the sums.
func (y *Tally) Latency() (read, write Latency) { return y.read.latency(), y.write.latency() }
