package nbd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WriteBack makes the kernel write back what it holds of a block device and its
// partitions: their file systems, where they are mounted, and the page cache.
func WriteBack(path string) error {
	parts, _ := filepath.Glob(path + "p[0-9]*")
	var errs error
	for _, p := range append(parts, path) {
		errs = errors.Join(errs, syncOne(p))
	}
	return errs
}

func syncOne(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // its node never appeared: nobody has used it
	}
	if err != nil {
		return err
	}
	defer f.Close()
	// BLKFLSBUF syncs the file system as well; fsync flushes the device's cache and
	// reports what failed to be written.
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKFLSBUF, 0); e != 0 && e != unix.EACCES {
		err = fmt.Errorf("BLKFLSBUF %s: %w", path, e)
	}
	return errors.Join(err, f.Sync())
}
