package bench

import (
	"math"
	"math/bits"
)

// Buckets of a latency histogram, laid out as fio's: values below 128 ns have
// a bucket each; above, every power of two is cut into 64 equal buckets.
//
//	index   0 … 127   128 … 191    192 … 255    …
//	value   0 … 127   128 … 255    256 … 511    …
//	width   1         2            4            …
const (
	histBits   = 6
	histPer    = 1 << histBits
	histGroups = 29
	histLen    = histGroups * histPer // the last bucket takes all above 17 s
)

// Histogram counts latencies in nanoseconds. The zero value is empty.
type Histogram struct {
	count [histLen]uint64
}

// bucketOf returns the index of the bucket that holds ns.
func bucketOf(ns int64) int {
	if ns < 2*histPer {
		return int(max(ns, 0))
	}
	msb := bits.Len64(uint64(ns)) - 1
	shift := msb - histBits
	return min((shift+1)<<histBits+int(ns>>shift)&(histPer-1), histLen-1)
}

// bucketValue returns the value that stands for a bucket: its middle.
func bucketValue(i int) int64 {
	if i < 2*histPer {
		return int64(i)
	}
	shift := i>>histBits - 1
	return int64(1)<<(shift+histBits) + int64(i&(histPer-1))<<shift + int64(1)<<shift/2
}

// Add counts one latency.
func (h *Histogram) Add(ns int64) { h.count[bucketOf(ns)]++ }

// Merge adds the counts of o.
func (h *Histogram) Merge(o *Histogram) {
	if o == nil {
		return
	}
	for i, c := range o.count {
		h.count[i] += c
	}
}

// since returns what h has counted and o, an earlier state of it, had not. Where h has begun
// anew meanwhile, it is all of it.
func (h *Histogram) since(o *Histogram) *Histogram {
	d := h.clone()
	if h == nil || o == nil {
		return d
	}
	for i, c := range o.count {
		if c > d.count[i] {
			return h.clone()
		}
		d.count[i] -= c
	}
	return d
}

// N returns how many latencies were counted.
func (h *Histogram) N() (n uint64) {
	for _, c := range h.count {
		n += c
	}
	return n
}

func (h *Histogram) clone() *Histogram {
	if h == nil {
		return nil
	}
	c := *h
	return &c
}

// Percentiles returns the value at each percentage of list (ascending).
func (h *Histogram) Percentiles(list []float64) []int64 {
	out := make([]int64, len(list))
	n := h.N()
	if n == 0 {
		return out
	}
	var sum uint64
	j := 0
	for i, c := range h.count {
		if c == 0 {
			continue
		}
		sum += c
		for ; j < len(list) && float64(sum) >= list[j]/100*float64(n); j++ {
			out[j] = bucketValue(i)
		}
	}
	return out
}

// shares returns the fraction (in percent) of latencies below each bound of
// list, each counted from the bound before it; the last entry is the rest.
func (h *Histogram) shares(list []int64) []float64 {
	out := make([]float64, len(list)+1)
	n := h.N()
	if n == 0 {
		return out
	}
	j := 0
	for i, c := range h.count {
		for j < len(list) && bucketValue(i) >= list[j] {
			j++
		}
		out[j] += 100 * float64(c) / float64(n)
	}
	return out
}

// Moments is a running count, minimum, maximum, mean and deviation
// (Welford's method; merging follows Chan et al.).
type Moments struct {
	N        uint64
	Min, Max int64
	Mean     float64
	m2       float64
}

// Add counts one value.
func (m *Moments) Add(v int64) {
	m.N++
	if m.N == 1 {
		m.Min, m.Max = v, v
	} else {
		m.Min, m.Max = min(m.Min, v), max(m.Max, v)
	}
	d := float64(v) - m.Mean
	m.Mean += d / float64(m.N)
	m.m2 += d * (float64(v) - m.Mean)
}

// Merge adds the values counted in o.
func (m *Moments) Merge(o *Moments) {
	if o.N == 0 {
		return
	}
	if m.N == 0 {
		*m = *o
		return
	}
	n := float64(m.N + o.N)
	d := o.Mean - m.Mean
	m.m2 += o.m2 + d*d*float64(m.N)*float64(o.N)/n
	m.Mean += d * float64(o.N) / n
	m.N += o.N
	m.Min, m.Max = min(m.Min, o.Min), max(m.Max, o.Max)
}

// Stddev returns the sample deviation.
func (m *Moments) Stddev() float64 {
	if m.N < 2 {
		return 0
	}
	return math.Sqrt(m.m2 / float64(m.N-1))
}
