package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Detach ends the attachment that key names and waits until it is gone. It
// returns nil, nil when there is none: detaching is idempotent. A device that
// is mounted, used for swap or held by another device is not detached. With
// force it is, and a process that has not finished when ctx ends is killed: what
// had not been flushed is lost. The error of a process that has ended says what went wrong then.
// The I/O of a device whose process was killed fails with it, so that without force nobody may have that open,
// either; Record.Reason tells of it. How much waits no driver says.
func Detach(ctx context.Context, dir, key string, force bool) (*Record, error) {
	r, err := Find(dir, key)
	if err != nil || r == nil {
		return nil, err
	}
	if r.dead() {
		return r, r.detachDead(force)
	}
	if r.Device != "" && !force {
		if why := inUse(r.Device); why != "" {
			return r, fmt.Errorf("%s is in use: %s", r.Device, why)
		}
	}
	last, err := os.Open(r.path) // the process removes it when it has ended
	if err == nil {
		defer last.Close()
	}
	for asked := 0; sameFile(last, r.path) && r.alive(); { // another file is that of another attachment
		if asked != r.PID {
			if err := syscall.Kill(r.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
				return r, fmt.Errorf("process %d: %w", r.PID, err)
			}
			asked = r.PID
		}
		select {
		case <-ctx.Done():
			if force {
				return r, r.kill()
			}
			return r, fmt.Errorf("process %d is still finishing requests or flushing: %w; --force ends it all the same", r.PID, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
		now, err := readRecord(r.path)
		if err == nil && now.PID == 0 { // it was killed, and the volume is being attached anew
			break
		}
		if err == nil {
			r = now // another process may have been about to take its place, which has not heard of it
		}
	}
	if end, err := readRecordBy(func(string) ([]byte, error) { return io.ReadAll(last) }, r.path); err == nil && end.Failed != "" {
		return r, fmt.Errorf("%s is detached, but not all went well: %s", r.URL, end.Failed)
	}
	return r, nil
}

// detachDead ends the device of a process that was killed, and so the I/O that waits for another one.
func (r *Record) detachDead(force bool) error {
	if !force {
		if why := usedBy(r.Device); why != "" {
			return fmt.Errorf("%s is in use: %s; as its process was killed, I/O that waits there would fail, and what has not been flushed would be lost: the same attach takes an ublk device again, and --force ends any", r.Device, why)
		}
	}
	if err := r.removeDevice(); err != nil {
		return err
	}
	r.Reason = "its process had been killed: I/O that waited has failed, and what had been written to " + r.Device + " since the last flush may be lost"
	return nil
}

// killGrace is how long a killed process may take to disappear: the kernel first
// closes what it has open.
const killGrace = 10 * time.Second

// kill ends the attachment's process and its device without waiting for anything
// that the target would have to answer.
func (r *Record) kill() error {
	if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process %d: %w", r.PID, err)
	}
	for end := time.Now().Add(killGrace); r.alive(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("process %d was killed and has not ended within %v", r.PID, killGrace)
		}
	}
	err := r.removeDevice()
	_, _ = List(filepath.Dir(r.path)) // removes what it has left
	return err
}

// removeDevice ends the kernel device of a process that is gone. Of one with an ublk device nothing else stays, either.
func (r *Record) removeDevice() error {
	switch {
	case r.Device == "":
		return nil
	case strings.HasPrefix(r.Device, string(deviceUblk)):
		err := drivers.endUblk(r.Device, killGrace)
		r.clean()
		return err
	}
	if r.Mark != "" && drivers.nbdMark(r.Device) != r.Mark {
		return nil // somebody else has disconnected it
	}
	if err := drivers.endNBD(r.Device); err != nil {
		return err
	}
	if r.dead() { // else List does
		r.clean()
	}
	return nil
}

// usedBy says who uses a block device or has it open, or "".
func usedBy(dev string) string {
	if why := inUse(dev); why != "" {
		return why
	}
	if who := drivers.openedBy(dev); who != "" {
		return who + " has it open"
	}
	return ""
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
