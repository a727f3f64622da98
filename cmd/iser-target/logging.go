package main

import (
	"fmt"
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"softiser/config"
)

// newLogger makes the logger that a configuration asks for; it writes to w. Its level
// can be changed later.
func newLogger(c config.Logging, w io.Writer) (*zap.Logger, zap.AtomicLevel, error) {
	parsed, err := zapcore.ParseLevel(c.Level)
	if err != nil {
		return nil, zap.AtomicLevel{}, fmt.Errorf("logging.level: %w; want debug, info, warn or error", err)
	}
	level := zap.NewAtomicLevelAt(parsed)
	ec := zap.NewProductionEncoderConfig()
	ec.EncodeTime = zapcore.RFC3339TimeEncoder
	ec.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder
	if c.Format == "console" {
		encoder = zapcore.NewConsoleEncoder
		ec.EncodeLevel = zapcore.CapitalLevelEncoder
	}
	return zap.New(zapcore.NewCore(encoder(ec), zapcore.Lock(zapcore.AddSync(w)), level)), level, nil
}
