package target

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logLimit lets burst lines of a kind through at once, one more per interval, and
// counts the others, so that what peers can have written again and again does not
// fill a disk.
type logLimit struct {
	every time.Duration
	burst int // 0 means 1

	mu      sync.Mutex
	full    time.Time // guarded by mu: when the whole burst is there again
	dropped int       // guarded by mu: lines since the last one that went through
}

// warn logs msg unless there have been too many lines of this kind, and reports whether
// it did.
func (l *logLimit) warn(log *zap.Logger, msg string, fields ...zap.Field) bool {
	return l.log(log, zap.WarnLevel, msg, fields)
}

// info is warn for what is no trouble yet.
func (l *logLimit) info(log *zap.Logger, msg string, fields ...zap.Field) {
	l.log(log, zap.InfoLevel, msg, fields)
}

func (l *logLimit) log(log *zap.Logger, level zapcore.Level, msg string, fields []zap.Field) bool {
	dropped, ok := l.allow(time.Now())
	if !ok {
		return false
	}
	if dropped > 0 {
		fields = append(fields, zap.Int("similar_lines_dropped", dropped))
	}
	log.Log(level, msg, fields...)
	return true
}

// takeDropped returns how many lines have not gone out since the last one that did, for a
// summary that stands for them.
func (l *logLimit) takeDropped() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, l.dropped = l.dropped, 0
	return n
}

// allow reports whether a line may go out now, and how many have not since the last.
func (l *logLimit) allow(now time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full.Before(now) {
		l.full = now
	}
	if l.full.Sub(now) > time.Duration(max(l.burst, 1)-1)*l.every {
		l.dropped++
		return 0, false
	}
	l.full = l.full.Add(l.every)
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
