package backing

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"softiser/internal/durable"
)

// A write that has been acknowledged and not been flushed lives in the kernel's page
// cache. It outlives this process, and is lost by a power failure, by unmounting the file system or
// removing the disk when the disk cannot take it, and by a failed sync. cacheRecord
// remembers, from one opening of a store to the next, whether any of these lies
// between them:
//
//	                     opened again   same ID
//	kill -9              same home      yes
//	orderly end          anywhere       yes: the last sync has succeeded
//	anything else        other home     no
//	a failed sync        anywhere       no: the record is gone before the sync returns
//
// The record is a file of the folder that the configuration names; without one
// nothing is remembered, and no ID told (docs/adr/0053-durability.md).

// cacheRecord is the content of the file.
type cacheRecord struct {
	ID    string `json:"id"`             // random; Info.CacheID
	Home  string `json:"home,omitempty"` // where the page cache of the store is; see homeOf
	Clean bool   `json:"clean"`          // everything had been flushed when the store was closed
}

// recordName is the file of the record of a store with this Info.ID.
func recordName(dir, id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(dir, "cache-"+hex.EncodeToString(sum[:12]))
}

// takeCache finds out which cache the store that fd has just opened has, and
// records it before anybody writes. "" means that it cannot be recorded, and an earlier record may
// stand. Precondition: nobody else has the store open for writing.
func takeCache(name, home string) (id string) {
	var r cacheRecord
	b, err := os.ReadFile(name)
	if err == nil && json.Unmarshal(b, &r) != nil {
		r = cacheRecord{}
	}
	if r.ID == "" || !r.Clean && (home == "" || r.Home != home) {
		r.ID = newCacheID()
	}
	r.Home, r.Clean = home, false
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		if err = writeRecord(name, &r); err == nil {
			return r.ID
		}
	}
	// The record cannot be read or written: remove it, as it would tell later openings something
	// wrong. One that stands is true until something is lost, and is tried again then.
	_ = dropRecord(name)
	return ""
}

// stands reports whether there may be a record. A user of a store that has no record of its own must
// remove it after losing something: it would tell the next user that nothing was lost.
func stands(name string) bool {
	_, err := os.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR)
}

// leaveCache tells the next opening that everything has been flushed.
func leaveCache(name, id string) error {
	return writeRecord(name, &cacheRecord{ID: id, Clean: true})
}

// dropRecord makes the next opening another cache.
func dropRecord(name string) error {
	err := os.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(name))
	}
	return err
}

func newCacheID() string {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// writeRecord replaces the file durably: after a power failure it is the old one
// or the new one. The name that it is written under is good for one writer, the one who
// has the store locked.
func writeRecord(name string, r *cacheRecord) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	next := name + ".new"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err := durable.Put(f, name, err); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(name))
}

// sysfs is where the kernel tells of devices and file systems.
const sysfs = "/sys"

// homeOf names the place where the page cache of an open store is, in a way that no
// later place has: this boot of the machine, this life of the disk or this mounting of the
// file system, this file. "" means that it cannot be told from a later one.
func homeOf(fd int) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return ""
	}
	var place string
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		place = diskOf(fd, &st)
	} else {
		place = fileOf(fd, &st)
	}
	if place == "" {
		return ""
	}
	return string(bytes.TrimSpace(boot)) + " " + place
}

// blkGetDiskSeq is BLKGETDISKSEQ, which kernels have since 5.15.
const blkGetDiskSeq = 0x80081280

// diskOf names a block device. Its number is used again; the sequence number of the
// disk is not.
func diskOf(fd int, st *unix.Stat_t) string {
	seq, err := ioctlUint64(fd, blkGetDiskSeq)
	if err != nil || seq == 0 {
		return ""
	}
	return fmt.Sprintf("disk %d:%d #%d", unix.Major(st.Rdev), unix.Minor(st.Rdev), seq)
}

// fileOf names a file.
func fileOf(fd int, st *unix.Stat_t) string {
	m := mountedAs(fd, st)
	if m == "" {
		return ""
	}
	var x unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &x) != nil || x.Mask&unix.STATX_BTIME == 0 {
		x.Btime = unix.StatxTimestamp{} // without a time of birth a reused inode number goes unnoticed
	}
	return fmt.Sprintf("%s file %d %d.%09d", m, st.Ino, x.Btime.Sec, x.Btime.Nsec)
}

// mountedAs names this mounting of the file system of a file. The kernel's objects
// in sysfs are made with the file system's and have numbers that are never used again. The
// mount that the file was opened through would be the obvious name, and is the last
// resort: a service with a private view of the file system (systemd's ProtectHome=, PrivateTmp=)
// gets new mounts of the same file system at every start.
func mountedAs(fd int, st *unix.Stat_t) string {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
		return fmt.Sprintf("tmpfs %d", unix.Minor(st.Dev)) // its files last as long as it does itself
	}
	if unix.Major(st.Dev) != 0 {
		// Of a disk: /sys/fs/ext4/sda1, /sys/fs/xfs/sda1, …
		disk, err := os.Readlink(fmt.Sprintf("%s/dev/block/%d:%d", sysfs, unix.Major(st.Dev), unix.Minor(st.Dev)))
		if err == nil {
			found, _ := filepath.Glob(filepath.Join(sysfs, "fs", "*", filepath.Base(disk)))
			if len(found) == 1 {
				if n := inode(found[0]); n != 0 {
					return fmt.Sprintf("fs %s %d", filepath.Base(disk), n)
				}
			}
		}
	} else if n := inode(fmt.Sprintf("%s/class/bdi/%d:%d/.", sysfs, unix.Major(st.Dev), unix.Minor(st.Dev))); n != 0 {
		// Of a network, of FUSE: a backing device of its own.
		return fmt.Sprintf("bdi %d:%d %d", unix.Major(st.Dev), unix.Minor(st.Dev), n)
	}
	var x unix.Statx_t // only the unique mount number will do (Linux 6.8); the older one is reused
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID_UNIQUE, &x) == nil && x.Mask&unix.STATX_MNT_ID_UNIQUE != 0 {
		return fmt.Sprintf("mount #%d", x.Mnt_id)
	}
	return ""
}

func inode(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}
