package ublk

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// State is how a device is, by the driver's account.
type State uint16

// States of a device.
const (
	Ended   State = stateDead     // or to end with its server
	Live    State = stateLive     // for some seconds also one whose server has just gone
	Waiting State = stateQuiesced // its server is gone, and another one may Recover it
)

// Find returns the path of the device with a mark, "" when there is none.
func Find(mark uint64) (path string, state State, err error) {
	nodes, err := filepath.Glob(charPath + "[0-9]*")
	if err != nil || len(nodes) == 0 {
		return "", Ended, err
	}
	c, err := openControl()
	if err != nil {
		return "", Ended, err
	}
	defer c.close()
	for _, n := range nodes {
		dev, err := number(n, charPath)
		if err != nil {
			continue
		}
		i, err := c.info(dev)
		if err == nil && i.mark == mark {
			path := blockPath + strconv.Itoa(int(dev))
			if i.features&featureReissue == 0 {
				return path, Ended, nil
			}
			return path, State(i.state), nil
		}
	}
	return "", Ended, nil
}

// Remove ends the device at path, /dev/ublkbN, whose server is gone: requests that wait for
// one fail. patience is as with Device.Close.
func Remove(path string, patience time.Duration) error {
	dev, err := number(path, blockPath)
	if err != nil {
		return err
	}
	c, err := openControl()
	if err != nil {
		return err
	}
	defer c.close()
	part := partOf(path)
	if err := c.do(cmdStopDev, dev, 0, nil); err != nil {
		if errors.Is(err, syscall.ENODEV) {
			return nil
		}
		return fmt.Errorf("ublk: stop %s: %w", path, err)
	}
	return c.remove(dev, part, patience)
}

// remove gives the number of a stopped device back. part is what partOf said of it before
// that.
func (c *controller) remove(dev uint32, part string, patience time.Duration) error {
	path := blockPath + strconv.Itoa(int(dev))
	if c.encoded() {
		err := c.do(cmdDelDevAsync, dev, 0, nil)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.EINVAL) {
			return fmt.Errorf("ublk: remove %s: %w", path, err)
		}
	}
	// The driver would wait for whoever has the device open, and nothing could end that.
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		who := cmp.Or(part, OpenedBy(path))
		if who == "" {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("ublk: /dev/ublkb%d is stopped, and its number stays taken: %s has it open", dev, who)
		}
	}
	if err := c.do(cmdDelDev, dev, 0, nil); err != nil {
		return fmt.Errorf("ublk: remove %s: %w", path, err)
	}
	return nil
}

// partOf names another block device that is made of this one, or "": the kernel has it open
// for that until that one is taken apart.
func partOf(path string) string {
	base := filepath.Base(path)
	for _, where := range []string{"/sys/block/" + base + "/holders/*", "/sys/block/" + base + "/" + base + "p*/holders/*"} {
		if all, _ := filepath.Glob(where); len(all) > 0 {
			return filepath.Base(all[0])
		}
	}
	return ""
}

// OpenedBy names a mount or a process that has a block device or a part of it open, or "".
func OpenedBy(path string) string {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && (f[0] == path || strings.HasPrefix(f[0], path+"p")) {
			return "the mount " + f[1]
		}
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, l := range links {
		to, err := os.Readlink(l)
		if err != nil {
			continue
		}
		// The node may be gone by now.
		if to = strings.TrimSuffix(to, " (deleted)"); to != path && !strings.HasPrefix(to, path+"p") {
			continue
		}
		pid := strings.Split(l, "/")[2]
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		return fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(string(name)))
	}
	return ""
}
