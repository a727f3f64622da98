package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// hangups decides about SIGHUP. With a configuration file it asks to read that
// again, and arrives on hup. Without one it means that the terminal is gone, and
// ends ctx for a shutdown in good order; under nohup it stays ignored.
func hangups(parent context.Context, file bool) (ctx context.Context, hup <-chan os.Signal, stop func()) {
	switch {
	case file:
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGHUP)
		return parent, c, func() { signal.Stop(c) }
	case signal.Ignored(syscall.SIGHUP):
		return parent, nil, func() {}
	}
	ctx, stop = signal.NotifyContext(parent, syscall.SIGHUP)
	return ctx, nil, stop
}

// reloadOn reloads whenever hup says so, until ctx is done.
func (a *app) reloadOn(ctx context.Context, hup <-chan os.Signal) {
	for {
		select {
		case <-hup:
		case <-ctx.Done():
			return
		}
		patience, cancel := context.WithTimeout(ctx, 30*time.Second)
		changes, err := a.reload(patience, false)
		cancel()
		if err != nil {
			a.log.Error("reload", zap.Error(err))
			continue
		}
		a.log.Info("reloaded", zap.Int("changes", len(changes)))
	}
}

// notifyAgain delivers signals that come after the first one, which the context
// has consumed.
func notifyAgain() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	return c, func() { signal.Stop(c) }
}
