package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"softiser/interop/internal/guest"
)

// One volume group, two implementations. Debian's lvm2 with the
// kernel's device-mapper and `iser-target lvm` work on the same disks in turns.

//go:embed lvm/filesystems.sh
var lvmFileSystems string

//go:embed lvm/rounds.sh
var lvmRounds string

var lvmCases = []Case{{
	Name:   "lvm/turns",
	Expect: "ext4 and XFS on volumes, snapshots and thin pools made, changed and merged by either side read the same on the other; vgck agrees",
	Fresh:  true,
	Limit:  lvmLimit,
	Run:    lvmScript(&lvmFileSystems),
}, {
	Name:   "lvm/rounds",
	Expect: "three rounds of writes, snapshots, growth, moves and merges by lvm2 and by us in turns; every volume reads the same on both sides after each",
	Fresh:  true,
	Limit:  lvmLimit,
	Run:    lvmScript(&lvmRounds),
}, {
	Name:   "lvm/overhead",
	Expect: "what snapshots and thin volumes cost over a linear volume, of device-mapper and of ours, measured in turns",
	Fresh:  true,
	Limit:  10 * time.Minute,
	Run:    lvmOverhead,
}}

// lvmLimit is for a machine that does much else: by itself the longest script takes 14 minutes.
const lvmLimit = 45 * time.Minute

// lvmScript runs a script on two disks of a guest of its own.
func lvmScript(script *string) func(context.Context, *Env) (string, error) {
	return func(_ context.Context, e *Env) (string, error) {
		if _, err := e.Boot(guest.Options{Disks: []int64{640 << 20, 640 << 20}}); err != nil {
			return "", err
		}
		defer e.w.drop()
		out, err := e.In("%s", fmt.Sprintf("set -- /host/iser-target /dev/vdb /dev/vdc\n%s", *script))
		return lastLine(out), err
	}
}

// lvmOverhead runs interop/lvm/overhead in a guest. Its table stays beside the
// logs, in overhead.md of the output folder; times in an emulated guest are no
// pass or fail, so only the run itself is.
func lvmOverhead(ctx context.Context, e *Env) (string, error) {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", filepath.Join(e.h.bin, "overhead"), "./interop/lvm/overhead")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building interop/lvm/overhead: %w\n%s", err, out)
	}
	if _, err := e.Boot(guest.Options{Disks: []int64{512 << 20, 512 << 20}}); err != nil {
		return "", err
	}
	defer e.w.drop()
	out, err := e.In("%s", `
export DM_DISABLE_UDEV=1 LVM_SUPPRESS_FD_WARNINGS=1
modprobe -a dm-mod dm-snapshot dm-thin-pool
mkdir -p /run/lvm /run/lock/lvm
/host/overhead /dev/vdb /dev/vdc 2>/tmp/log || { cat /tmp/log; exit 1; }`)
	if err != nil {
		return "", err
	}
	file := filepath.Join(e.h.out, "overhead.md")
	if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if cells := strings.Split(line, "|"); strings.Contains(line, "copied out") && len(cells) > 5 {
			return fmt.Sprintf("origin's first write costs%stimes linear here,%sin dm; %s has all", cells[5], cells[3], file), nil
		}
	}
	return "", fmt.Errorf("no table:\n%s", out)
}
