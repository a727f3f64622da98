package vg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const defaultLockDir = "/run/lock/lvm"

// lock takes lvm2's lock of a volume group for writing: the file V_name in the
// lock directory, by flock. Writers first queue on V_name:aux, so that readers
// that come later do not overtake them. The file is removed when the lock is
// given back; whoever waited on the removed file notices and opens it anew.
func (c *Config) lock(name string) (unlock func(), err error) {
	return c.lockFile("V_"+name, c.LockWait)
}

// globalWait is how long who changes nothing of a group waits for others of this host at the least:
// they hold the lock for some writes.
const globalWait = 10 * time.Second

// lockToSettle is lock for writing again what is there already. Where the folder of locks is read-only
// nobody has one.
func (c *Config) lockToSettle(name string) (unlock func(), err error) {
	unlock, err = c.lockFile("V_"+name, max(c.LockWait, globalWait))
	if errors.Is(err, syscall.EROFS) {
		return func() {}, nil
	}
	return unlock, err
}

// lockGlobal is the lock that lvm2 takes to change orphan PVs and VG names.
func (c *Config) lockGlobal() (unlock func(), err error) {
	return c.lockFile("P_global", max(c.LockWait, globalWait))
}

// lockFile takes lvm2's lock of a group or of the orphans.
func (c *Config) lockFile(name string, wait time.Duration) (unlock func(), err error) {
	dir := c.LockDir
	switch dir {
	case "-":
		return func() {}, nil
	case "":
		dir = defaultLockDir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		if c.LockDir == "" && errors.Is(err, fs.ErrPermission) {
			// An ordinary user works on files that only belong to him; the
			// device's own lock keeps his processes apart.
			return func() {}, nil
		}
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	path := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
	deadline := time.Now().Add(wait)
	aux, err := flockFile(path+":aux", deadline)
	if err != nil {
		return c.noLock(err)
	}
	f, err := flockFile(path, deadline)
	dropLock(aux)
	if err != nil {
		return c.noLock(err)
	}
	return func() { dropLock(f) }, nil
}

func (c *Config) noLock(err error) (func(), error) {
	if c.LockDir == "" && errors.Is(err, fs.ErrPermission) {
		return func() {}, nil
	}
	return nil, err
}

func flockFile(path string, deadline time.Time) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o777)
		if err != nil {
			return nil, fmt.Errorf("lock file: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil && sameFile(f, path):
			return f, nil
		case err == nil || errors.Is(err, syscall.EINTR):
			f.Close() // removed by its last holder
			continue
		}
		f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !time.Now().Before(deadline) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, path)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func sameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

func dropLock(f *os.File) {
	if sameFile(f, f.Name()) {
		os.Remove(f.Name())
	}
	f.Close()
}
