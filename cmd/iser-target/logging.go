package main

import (
	"fmt"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"softiser/config"
)

// newLogger makes the logger that a configuration asks for; it writes to stderr.
// Its level can be changed later.
func newLogger(c config.Logging) (*zap.Logger, zap.AtomicLevel, error) {
	level, err := zapcore.ParseLevel(c.Level)
	if err != nil {
		return nil, zap.AtomicLevel{}, fmt.Errorf("logging.level: %w; want debug, info, warn or error", err)
	}
	zc := zap.NewProductionConfig()
	zc.Sampling = nil
	zc.Level = zap.NewAtomicLevelAt(level)
	zc.DisableStacktrace = true
	zc.DisableCaller = true
	zc.EncoderConfig.EncodeTime = zapcore.RFC3339TimeEncoder
	zc.EncoderConfig.EncodeDuration = zapcore.StringDurationEncoder
	if c.Format == "console" {
		zc.Encoding = "console"
		zc.EncoderConfig.EncodeLevel = zapcore.CapitalLevelEncoder
	}
	log, err := zc.Build()
	return log, zc.Level, err
}
