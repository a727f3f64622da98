package attach

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"softiser/initiator/nbd"
	"softiser/initiator/ublk"
)

// markOf is by what the attachment of a volume knows its ublk device again: the same for
// whoever attaches the volume with the same run directory, until the machine is booted.
func markOf(dir, url string) uint64 {
	sum := identity(dir, url)
	return binary.LittleEndian.Uint64(sum[:]) | 1
}

// ISID names the iSCSI session of an attachment whose device outlives its process: the next
// process that attaches the volume has the same, so that its login ends what the target
// still had of the former (session reinstatement, RFC 7143 §6.3.5).
func ISID(dir, url string) (id [6]byte) {
	sum := identity(dir, url)
	copy(id[:], sum[8:])
	id[0] = 0x80 // T = 10b: random
	return id
}

func identity(dir, url string) [sha256.Size]byte {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return sha256.Sum256(fmt.Appendf(nil, "softiser attach\x00%s\x00%s\x00%s", boot, dir, url))
}

// checkLeft refuses the volume while a device of it waits for a process: writes that are under
// way there would come after those of other users.
func (a *Attachment) checkLeft() error {
	left, state, err := drivers.findUblk(markOf(a.opt.Dir, a.opt.URL))
	if err != nil || left == "" || state == ublk.Ended {
		return nil // without a driver, or the right to use it, there is none of ours
	}
	return fmt.Errorf("the volume is behind %s, whose process was killed and which holds I/O: attach it with --device ublk, or end it with --detach", left)
}

// makeUblk makes /dev/ublkbN, or takes over the one that an attachment of the volume has
// left whose process was killed.
func (a *Attachment) makeUblk(ctx context.Context, index int) error {
	mark := markOf(a.opt.Dir, a.opt.URL)
	left, state, err := drivers.findUblk(mark)
	if err != nil {
		return err
	}
	if left != "" && state == ublk.Ended { // nothing to take over but its number
		if err := drivers.endUblk(left, a.opt.FinishTimeout); err != nil {
			return err
		}
		left = ""
	}
	a.client = a.lun.NewFlusher()
	if left != "" {
		return a.takeUblk(ctx, left, index)
	}
	size := a.lun.Info().Size
	d, err := ublk.Add(ublk.Config{
		Index: index, LUN: exported{a.lun, a}, Client: a.client, ReadOnly: a.opt.ReadOnly, Queues: max(a.opt.Connections, 1),
		Depth: cmp.Or(a.opt.Depth, ublk.DefaultDepth), Mark: mark, Recover: a.opt.Recover,
	})
	if err != nil {
		return err
	}
	a.keepUblk(d, size)
	return nil
}

// takeUblk takes over the device left, whose process was killed; index is the number that is wanted, -1: any.
func (a *Attachment) takeUblk(ctx context.Context, left string, index int) error {
	if wanted := fmt.Sprintf("%s%d", deviceUblk, index); index >= 0 && wanted != left {
		return fmt.Errorf("--device %s: the volume is behind %s, whose process was killed: attach that, or end it with --detach", wanted, left)
	}
	size := a.lun.Info().Size
	d, err := drivers.recovery(ctx, left, exported{a.lun, a}, a.client, a.opt.ReadOnly)
	if err != nil {
		return err
	}
	a.Record.Recovered = true
	a.protected = false // the process before may have written
	a.keepUblk(d, size)
	return nil
}

// keepUblk sees to /dev/ublkbN, which has size bytes.
func (a *Attachment) keepUblk(d *ublk.Device, size int64) {
	a.ublk, a.failed, a.Record.Device = d, d.Failed, d.Path
	end := a.follow(size, d.Resize)
	a.later(func() error {
		end()
		return errors.Join(a.writeBack(d.Path, nbd.WriteBack), a.finish(d.Path, d.Stop), d.Close(a.opt.FinishTimeout))
	})
}

// finish stops a device, whose driver waits for the requests that are under way. They are with a
// target that may be away: after FinishTimeout they end with the volume.
func (a *Attachment) finish(path string, stop func() error) error {
	done := make(chan error, 1)
	go func() { done <- stop() }()
	limit := max(a.opt.FinishTimeout, time.Second)
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-done:
		return nil // Close says what is wrong
	case <-late.C:
		_ = a.closeVolume() // it is told behind this
		<-done
		return fmt.Errorf("%s: requests that the target did not answer within %v were given up; what was written since the last flush may be lost", path, limit)
	}
}
