package main

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"softiser/interop/internal/guest"
)

// Part 9: one volume group, two implementations. Debian's lvm2 with the
// kernel's device-mapper and `iser-target lvm` work on the same disks in turns.

//go:embed lvm/filesystems.sh
var lvmFileSystems string

var lvmCases = []Case{{
	Name:   "lvm/turns",
	Expect: "volumes, snapshots and thin pools made, changed and merged by either side read the same on the other; vgck agrees",
	Fresh:  true,
	Limit:  15 * time.Minute,
	Run: func(_ context.Context, e *Env) (string, error) {
		if _, err := e.Boot(guest.Options{Disks: []int64{256 << 20, 256 << 20}}); err != nil {
			return "", err
		}
		defer e.w.drop()
		out, err := e.In("%s", fmt.Sprintf("set -- /host/iser-target /dev/vdb /dev/vdc\n%s", lvmFileSystems))
		return lastLine(out), err
	},
}}
