package main

import (
	"context"
	"fmt"
	"os"

	"go.uber.org/zap"

	"softiser/internal/systemd"
)

// tellReady tells whoever has started the process that it serves: a newline on a
// descriptor (0: none), and a message to systemd.
func tellReady(fd int) error {
	if fd > 0 {
		f := os.NewFile(uintptr(fd), "ready-fd")
		_, err := f.Write([]byte{'\n'})
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return fmt.Errorf("--ready-fd %d: %w", fd, err)
		}
	}
	return systemd.Notify(systemd.Ready)
}

// watch tells the service manager again and again that the server answers.
func (a *app) watch(ctx context.Context) {
	h := newHealth(a.reg.Status)
	systemd.Watchdog(ctx, func(ctx context.Context) error {
		_, err := h.check(ctx)
		if err != nil {
			a.log.Error("watchdog", zap.Error(err))
		}
		return err
	})
}
