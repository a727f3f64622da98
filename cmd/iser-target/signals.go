package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"

	"softiser/target/admin"
)

// signals are those that serve acts on, beside the first one that ends its context.
type signals struct {
	again <-chan os.Signal // that end it, and come again
	hup   <-chan os.Signal // asks for a reload
	usr2  <-chan os.Signal // asks for an upgrade
	stop  func()
}

// takeSignals begins to take signals; file says that there is a configuration to be read again.
// ctx is parent, unless SIGHUP ends it.
func takeSignals(parent context.Context, file bool) (ctx context.Context, s *signals) {
	again, stopAgain := endings()
	ctx, hup, stopHangups := hangups(parent, file)
	usr2, stopUpgrades := upgrades()
	return ctx, &signals{again: again, hup: hup, usr2: usr2, stop: func() { stopUpgrades(); stopHangups(); stopAgain() }}
}

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
		changes, err := a.reloadOnce(ctx)
		if err != nil {
			a.log.Error("reload", zap.Error(err))
			continue
		}
		a.log.Info("reloaded", zap.Int("changes", len(changes)))
	}
}

// reloadOnce reloads for nobody who could ask again: while what is served is handed over, or has
// not all been opened yet by a process that has taken over, it waits.
func (a *app) reloadOnce(ctx context.Context) ([]admin.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	leave, err := a.changes.wait(ctx, "the reload by SIGHUP")
	if err != nil {
		return nil, err
	}
	defer leave()
	changes, _, err := a.reload(ctx, false) // the log has the warnings
	return changes, err
}

// endings delivers the signals that end serve: beside the context, which they cancel
// once, for those that come again.
func endings() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 8)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	return c, func() { signal.Stop(c) }
}

// twin is how long after the signal that began the drain others are taken for the same
// one. A terminal's Ctrl-C goes to every process of the group, and a wrapper that passes
// it on sends a second one a moment later; nobody meant the drain to be skipped.
const twin = time.Second

// insisted waits, from the end of draining on, for a signal that means it, and reports
// false when ended is done before.
func insisted(draining, ended context.Context, signals <-chan os.Signal) bool {
	select {
	case <-draining.Done():
	case <-ended.Done():
		return false
	}
	began := time.Now()
	for {
		select {
		case <-signals:
			if time.Since(began) >= twin {
				return true
			}
		case <-ended.Done():
			return false
		}
	}
}

// endWhenInsisted ends the process at once when it is insisted; see insisted.
func (a *app) endWhenInsisted(draining, ended context.Context, signals <-chan os.Signal) {
	if insisted(draining, ended, signals) {
		a.log.Warn("another signal: ending without waiting for initiators")
		os.Exit(exitFailure)
	}
}

// closingTime is how long an end may take beside what the server waits for.
const closingTime = 5 * time.Second

// boundEnd ends the process if it has not ended so long after ctx, and closingTime:
// storage that does not answer holds up the opening and closing of volumes as well,
// which nothing else bounds. over is for an end in good order.
func (a *app) boundEnd(ctx context.Context, within time.Duration) (over func()) {
	ended, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		select {
		case <-ctx.Done():
		case <-ended.Done():
			return
		}
		select {
		case <-ended.Done():
		case <-time.After(within + closingTime):
			what := "ending"
			if busy := a.reg.Busy(); busy != "" {
				what = busy
			}
			a.log.Error("storage does not answer; the process ends without waiting any longer", zap.String("while", what))
			os.Exit(exitFailure)
		}
	}()
	return cancel
}
