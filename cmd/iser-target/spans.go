package main

import (
	"math/bits"
	"time"
)

// spanShift is the log2 of how many buckets of spans there are for each power of two.
const spanShift = 3

// spans counts times from a nanosecond on, which steps of a command on memory may take: the histograms of volumes
// (volume.Latency), of which there are many, begin at a microsecond.
type spans struct {
	n     [63 << spanShift]uint64
	count uint64
}

func (s *spans) observe(d time.Duration) {
	ns := uint64(max(d, 1))
	e := bits.Len64(ns) - 1 // 2^e <= ns
	s.n[e<<spanShift|int((ns-1<<e)<<spanShift>>e)]++
	s.count++
}

// percentile is the longest time of the bucket that holds the p-th part; 0: there is none.
func (s *spans) percentile(p float64) time.Duration {
	var seen uint64
	for i, n := range s.n {
		if seen += n; n > 0 && float64(seen) >= p*float64(s.count) {
			e, sub := i>>spanShift, uint64(i&(1<<spanShift-1))
			// The first time of the next bucket is 2^e + (sub+1)*2^e/8, rounded up.
			return time.Duration(1<<e + ((sub+1)<<e-1)>>spanShift)
		}
	}
	return 0
}
