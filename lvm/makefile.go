package lvm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"softiser/internal/durable"
)

// makeFile creates a sparse file of n bytes, whose name is durable when it
// returns; one that exists stays as it is.
func makeFile(path string, n int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = f.Truncate(n)
	if err == nil {
		err = durable.SyncFile(f)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		if err = durable.SyncDir(filepath.Dir(path)); errors.Is(err, unix.EINVAL) { // it cannot, and has done all that it can
			err = nil
		}
	}
	if err != nil {
		os.Remove(path)
	}
	return err
}
