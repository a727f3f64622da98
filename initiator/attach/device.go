package attach

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// makeDevice makes the kernel device that Options.Device wants.
func (a *Attachment) makeDevice(ctx context.Context) error {
	kind, index, err := parseDevice(a.opt.Device)
	switch {
	case err != nil:
		return err
	case kind == deviceUblk:
		return a.makeUblk(ctx, index)
	}
	if err := a.checkLeft(); err != nil {
		return err
	}
	if kind == deviceNBD {
		return a.makeNBD(index)
	}
	return nil
}

// deviceKind is which driver of the kernel makes a device.
type deviceKind string

const (
	deviceNone deviceKind = ""
	deviceNBD  deviceKind = "/dev/nbd"
	deviceUblk deviceKind = "/dev/ublkb"
)

// parseDevice reads Options.Device; index is -1 where any number will do.
func parseDevice(dev string) (kind deviceKind, index int, err error) {
	switch dev {
	case "none":
		return deviceNone, -1, nil
	case "", "auto", "/dev/nbd":
		return deviceNBD, -1, nil
	case "ublk":
		return deviceUblk, -1, nil
	}
	for _, kind := range []deviceKind{deviceNBD, deviceUblk} {
		if n, ok := strings.CutPrefix(dev, string(kind)); ok {
			if i, err := strconv.Atoi(n); err == nil && i >= 0 && strconv.Itoa(i) == n {
				return kind, i, nil
			}
		}
	}
	return deviceNone, -1, fmt.Errorf("--device %s: expected auto, none, ublk, /dev/nbdN or /dev/ublkbN", dev)
}
