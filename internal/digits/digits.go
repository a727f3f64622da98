// Package digits writes measured times as exactly as they are known: buckets of histograms are
// no finer than three digits.
package digits

import "time"

// Round returns d in three decimal digits, or d itself if it has no more.
func Round(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
