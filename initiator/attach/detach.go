package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Detach ends the attachment that key names and waits until it is gone. It
// returns nil, nil when there is none: detaching is idempotent. A device that
// is mounted, used for swap or held by another device is not detached.
func Detach(ctx context.Context, dir, key string) (*Record, error) {
	r, err := Find(dir, key)
	if err != nil || r == nil {
		return nil, err
	}
	if r.Device != "" {
		if why := inUse(r.Device); why != "" {
			return r, fmt.Errorf("%s is in use: %s", r.Device, why)
		}
	}
	if err := syscall.Kill(r.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return r, fmt.Errorf("process %d: %w", r.PID, err)
	}
	for r.alive() {
		select {
		case <-ctx.Done():
			return r, fmt.Errorf("process %d is still finishing requests or flushing: %w", r.PID, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return r, nil
}

// inUse says who uses a block device, or "".
func inUse(dev string) string {
	base := filepath.Base(dev)
	for _, table := range []string{"/proc/self/mounts", "/proc/swaps"} {
		b, _ := os.ReadFile(table)
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) > 1 && (f[0] == dev || strings.HasPrefix(f[0], dev+"p")) {
				if table == "/proc/swaps" {
					return "it is swap space (swapoff " + f[0] + ")"
				}
				return "it is mounted on " + f[1] + " (umount it first)"
			}
		}
	}
	holders, _ := filepath.Glob("/sys/block/" + base + "/holders/*")
	parts, _ := filepath.Glob("/sys/block/" + base + "/" + base + "p*/holders/*")
	if all := append(holders, parts...); len(all) > 0 {
		return "it is part of " + filepath.Base(all[0])
	}
	return ""
}
