package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"softiser/target/scsi"
)

// describe makes the description of a metric.
type describe = func(name, help string, labels ...string) *prometheus.Desc

// seriesLimit is how many sessions, and how many controllers, have series of their own.
// Labels of peers' choosing could fill a Prometheus otherwise, and a session has some fifty.
const seriesLimit = 256

// metrics is where values go.
type metrics chan<- prometheus.Metric

func (ch metrics) counter(d *prometheus.Desc, v uint64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (ch metrics) gauge(d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// latencyBounds are the buckets that metrics report; the finer ones of the
// target are summed up into them.
var latencyBounds = []float64{20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.5, 1, 5, 30}

// histogram puts the sum of latencies.
func (ch metrics) histogram(d *prometheus.Desc, labels []string, all ...*scsi.Latency) {
	buckets := make(map[float64]uint64, len(latencyBounds))
	var count uint64
	var sum time.Duration
	for _, l := range all {
		count += l.Count
		sum += l.Sum
	}
	for _, bound := range latencyBounds {
		var n uint64
		for _, l := range all {
			for _, b := range l.Buckets {
				if b.Below.Seconds() <= bound {
					n += b.Count
				}
			}
		}
		buckets[bound] = n
	}
	ch <- prometheus.MustNewConstHistogram(d, count, sum.Seconds(), buckets, labels...)
}

func up(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
