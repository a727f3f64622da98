// Package loglimit bounds what peers can have written to the log.
package loglimit

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"softiser/internal/iscsi"
)

// Limit lets Burst lines of a kind through at once, one more per interval, and
// counts the others, so that what peers can have written again and again does not
// fill a disk. It is safe for concurrent use; its fields are set before its first use.
type Limit struct {
	Every time.Duration
	Burst int // 0 means 1

	mu      sync.Mutex
	full    time.Time // guarded by mu: when the whole burst is there again
	dropped int       // guarded by mu: lines since the last one that went through
}

// PeerText is a log field with text of a peer in it, which may try to say something
// to the terminal of whoever reads the log.
func PeerText(key, text string) zap.Field { return zap.String(key, iscsi.Printable(text)) }

// Warn logs msg unless there have been too many lines of this kind, and reports whether
// it did.
func (l *Limit) Warn(log *zap.Logger, msg string, fields ...zap.Field) bool {
	return l.log(log, zap.WarnLevel, msg, fields)
}

// Info is Warn for what is no trouble yet.
func (l *Limit) Info(log *zap.Logger, msg string, fields ...zap.Field) {
	l.log(log, zap.InfoLevel, msg, fields)
}

func (l *Limit) log(log *zap.Logger, level zapcore.Level, msg string, fields []zap.Field) bool {
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

// TakeDropped returns how many lines have not gone out since the last one that did, for a
// summary that stands for them.
func (l *Limit) TakeDropped() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, l.dropped = l.dropped, 0
	return n
}

// allow reports whether a line may go out now, and how many have not since the last.
func (l *Limit) allow(now time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full.Before(now) {
		l.full = now
	}
	if l.full.Sub(now) > time.Duration(max(l.Burst, 1)-1)*l.Every {
		l.dropped++
		return 0, false
	}
	l.full = l.full.Add(l.Every)
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
