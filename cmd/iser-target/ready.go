package main

import (
	"context"
	"fmt"
	"os"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"softiser/internal/systemd"
)

// checkReady refuses a descriptor that whoever has started the process has not passed to it: later its number
// is that of a volume, whose content the newline would change. Nothing has been opened before but by Go's
// runtime, with FD_CLOEXEC.
func checkReady(fd int) error {
	if fd == 0 {
		return nil
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		return exit(exitUsage, fmt.Errorf("--ready-fd %d: no such descriptor has been passed to the program; a shell does so by %d>FILE", fd, fd))
	}
	return nil
}

// tellReady tells whoever has started the process that it serves: a newline on a
// descriptor (0: none), and a message to systemd.
func tellReady(fd int) error {
	if fd > 0 {
		if err := writeReady(fd); err != nil {
			return err
		}
	}
	return systemd.Notify(systemd.Ready)
}

func writeReady(fd int) error {
	f := os.NewFile(uintptr(fd), "ready-fd")
	_, err := f.Write([]byte{'\n'})
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("--ready-fd %d: %w", fd, err)
	}
	return nil
}

// tellServing tells whoever has started the process that it serves. takenOver says that what it serves is in
// use already, and goes on even if nobody can be told.
func (a *app) tellServing(ctx context.Context, fd int, takenOver bool) error {
	if !takenOver {
		return a.tellStarted(ctx, fd)
	}
	if err := tellReady(fd); err != nil {
		a.log.Error("nobody was told that this process serves; what it has taken over is in use, and goes on", zap.Error(err))
	}
	return nil
}

// tellStarted is tellReady for a process that may have groups with start: active that wait, and volumes whose
// storage does not answer yet. systemd does not wait for them: what comes after the unit, reloads and the
// watchdog would have to. The descriptor does: it is that of a cluster's agent, which moves the address when the
// group can be used.
func (a *app) tellStarted(ctx context.Context, fd int) error {
	started := a.reg.Started()
	select {
	case <-started:
		return tellReady(fd)
	default:
	}
	if fd > 0 {
		a.services.Go(func() {
			select {
			case <-started:
			case <-ctx.Done():
				return
			}
			if err := writeReady(fd); err != nil {
				a.log.Error("nobody was told that everything is served", zap.Error(err))
			}
		})
	}
	return tellReady(0)
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
