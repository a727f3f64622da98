// Package vg reads and changes volume groups on their disks: it finds labels
// and metadata areas, picks the current text among the copies, commits a new
// one so that a power cut leaves the old or the new, keeps archives, holds
// lvm2's own lock while it does so, and finds free extents.
//
// It knows nothing of activation: see the parent package for logical volumes
// as devices.
//
//	Disk   an opened device, its label and metadata areas
//	Scan   disks → groups, repairable damage, missing disks
//	Group  one volume group: the text (meta.VG) and its disks
//	Commit one metadata transaction over all areas
package vg

import (
	"errors"
	"fmt"
	"time"
)

// Errors that callers branch on.
var (
	ErrDamaged   = errors.New("every metadata copy is damaged")
	ErrMissing   = errors.New("physical volume is missing")
	ErrChanged   = errors.New("the volume group was changed by another process")
	ErrNoExtents = errors.New("insufficient free extents")
	ErrNotFound  = errors.New("not found")
	ErrAmbiguous = errors.New("is ambiguous")
	ErrForeign   = errors.New("device holds something else")
	ErrLocked    = errors.New("volume group is locked by another process")
)

// Tool is what this program calls itself in metadata and archives.
const Tool = "softiser lvm"

// Config says where the files beside the disks live. The zero value is the
// place lvm2 uses, when this user may write there.
type Config struct {
	LockDir    string           // "" is /run/lock/lvm; "-" takes no lock
	ArchiveDir string           // "" is /etc/lvm/archive; "-" keeps no archive
	BackupDir  string           // "" is /etc/lvm/backup; "-" keeps no backup
	LockWait   time.Duration    // for the lock of a group; 0: fail at once when another process holds it
	Host       string           // "" is the host's name
	Now        func() time.Time // nil is time.Now
}

func (c *Config) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

func wrapf(err error, format string, a ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(a, err)...)
}
