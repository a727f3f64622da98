package vg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrOwnDisk marks the name of a file to be written that is a disk of the group.
var ErrOwnDisk = errors.New("is a disk of the volume group itself")

// CheckOutput refuses what is to be written if it is one of the disks of a group, whatever it is
// called: it would overwrite what it is made of.
func CheckOutput(name, group string, disks []string) error {
	out, err := os.Stat(name)
	if err != nil {
		return nil // a new file, or who writes it says what is wrong
	}
	for _, d := range disks {
		if st, err := os.Stat(d); err == nil && (os.SameFile(out, st) || overlap(blockPath(out), blockPath(st))) {
			return fmt.Errorf("%s %w, %q, which it would overwrite: name another one", name, ErrOwnDisk, group)
		}
	}
	return nil
}

// blockPath is where sysfs has a block device, a partition below its disk; "": it is none, or there is no sysfs.
func blockPath(st os.FileInfo) string {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || sys.Mode&unix.S_IFMT != unix.S_IFBLK {
		return ""
	}
	path, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(sys.Rdev), unix.Minor(sys.Rdev)))
	if err != nil {
		return ""
	}
	return path
}

// overlap reports whether two block devices are one, or one is a part of the other.
func overlap(a, b string) bool {
	return a != "" && b != "" && (strings.HasPrefix(a+"/", b+"/") || strings.HasPrefix(b+"/", a+"/"))
}
