package terminal

import "strings"

var eighths = []rune("▁▂▃▄▅▆▇█")

// Sparkline draws the last values that so many columns have room for, each as high as its share
// of most. What is above it is drawn as high, what is not above 0 is a gap.
func Sparkline(values []float64, most float64, columns int) string {
	values = values[max(0, len(values)-max(columns, 0)):]
	var b strings.Builder
	for _, v := range values {
		if !(v > 0) || !(most > 0) {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(eighths[min(int(v/most*float64(len(eighths))), len(eighths)-1)])
	}
	return b.String()
}
