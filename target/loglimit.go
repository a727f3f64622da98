package target

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// logLimit lets one line of a kind through per interval and counts the others,
// so that a flood of bad connections cannot become a flood of log lines.
type logLimit struct {
	every time.Duration

	mu      sync.Mutex
	next    time.Time // guarded by mu
	dropped int       // guarded by mu: lines since the last one that went through
}

// warn logs msg unless a line of this kind went out within the interval.
func (l *logLimit) warn(log *zap.Logger, msg string, fields ...zap.Field) {
	l.mu.Lock()
	now := time.Now()
	if now.Before(l.next) {
		l.dropped++
		l.mu.Unlock()
		return
	}
	dropped := l.dropped
	l.dropped, l.next = 0, now.Add(l.every)
	l.mu.Unlock()
	if dropped > 0 {
		fields = append(fields, zap.Int("similar_lines_dropped", dropped))
	}
	log.Warn(msg, fields...)
}
