package ublk

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"softiser/internal/uring"
)

// ControlPath is the device that makes block devices.
const ControlPath = "/dev/ublk-control"

// ErrNoDriver says that this kernel cannot make block devices out of ublk.
var ErrNoDriver = errors.New("ublk: there is no /dev/ublk-control (modprobe ublk_drv, kernel 6.1 or later with CONFIG_BLK_DEV_UBLK; without it use --device /dev/nbdN or the unix socket)")

// controller is an open control device. Its commands run one at a time.
type controller struct {
	f        *os.File
	ring     *uring.Ring
	features uint64 // of the driver; 0: it is older than the question, and takes no ioctl numbers
}

func openControl() (*controller, error) {
	f, err := os.OpenFile(ControlPath, os.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, ErrNoDriver
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("ublk: making a block device needs CAP_SYS_ADMIN (run as root, or use the unix socket): %w", err)
	case err != nil:
		return nil, fmt.Errorf("ublk: %w", err)
	}
	r, err := uring.New(2)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("ublk: %w", err)
	}
	c := &controller{f: f, ring: r}
	// Kernels before 6.5 do not know the question.
	b := make([]byte, 8)
	if c.send(encodeControl(cmdGetFeatures), &control{dev: anyDevice, queue: noQueue}, b) == nil {
		c.features = host.Uint64(b)
	}
	return c, nil
}

func (c *controller) close() { c.ring.Close(); c.f.Close() }

func (c *controller) encoded() bool { return c.features != 0 }

// do carries out a command. buf is what the driver reads or fills.
func (c *controller) do(cmd uint32, dev uint32, data uint64, buf []byte) error {
	op := cmd
	if c.encoded() {
		op = encodeControl(cmd)
	}
	return c.send(op, &control{dev: dev, queue: noQueue, data: data}, buf)
}

// send submits a control command whose data, and what they refer to, is k and buf, and waits
// for its end; the kernel's error is in what it returns.
func (c *controller) send(op uint32, k *control, buf []byte) error {
	// What ends a command runs in the thread that has submitted it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var pin runtime.Pinner
	defer pin.Unpin()
	if len(buf) > 0 {
		pin.Pin(&buf[0])
		k.addr, k.len = addressOf(buf), uint16(len(buf))
	}
	e := c.ring.Next()
	e.Op, e.FD, e.CmdOp = uring.OpCmd, int32(c.f.Fd()), uint64(op)
	k.put(e.Cmd[:])
	var end [1]uring.Completion
	for {
		if err := c.ring.Enter(1); err != nil {
			return err
		}
		if c.ring.Take(end[:]) == 1 {
			break
		}
	}
	if end[0].Res < 0 {
		return syscall.Errno(-end[0].Res)
	}
	return nil
}

// info asks for what the driver knows of a device.
func (c *controller) info(dev uint32) (i info, err error) {
	b := make([]byte, infoSize)
	if err := c.do(cmdGetDevInfo, dev, 0, b); err != nil {
		return i, err
	}
	i.get(b)
	return i, nil
}
