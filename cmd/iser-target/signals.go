package main

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyAgain delivers signals that come after the first one, which the context
// has consumed.
func notifyAgain() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	return c, func() { signal.Stop(c) }
}
