package main

import (
	"errors"
	"fmt"
	"os"

	"softiser/blockdev/crashlog"
	"softiser/interop/internal/onefile"
)

// recorder is a file that the kernel has from us. Its disk remembers every write and every
// fsync that the kernel has sent, and so knows what a power cut may leave: the page cache in
// between is the real one.
type recorder struct {
	dir  string
	file *onefile.File
	disk *crashlog.Device
	drop bool // forget flushes
}

const sectorSize = 512

func newRecorder(under string, size int64, drop bool) (*recorder, error) {
	dir, err := os.MkdirTemp(under, "power-")
	if err != nil {
		return nil, err
	}
	disk, err := crashlog.New(size, sectorSize)
	if err != nil {
		return nil, err
	}
	r := &recorder{dir: dir, disk: disk, drop: drop}
	if r.file, err = onefile.Mount(dir, size, r); errors.Is(err, onefile.ErrNoMeans) {
		err = fmt.Errorf("%w: %w", errNoMeans, err)
	}
	if err != nil {
		os.Remove(dir)
		return nil, err
	}
	return r, nil
}

func (r *recorder) path() string { return r.file.Path() }

// close takes the file away. Who still uses it gets errors.
func (r *recorder) close() {
	r.file.Close()
	os.Remove(r.dir)
}

// sectors returns the whole sectors around a range.
func sectors(off int64, n int) (from, to int64) {
	return off &^ (sectorSize - 1), (off + int64(n) + sectorSize - 1) &^ (sectorSize - 1)
}

// ReadAt, WriteAt and Flush implement onefile.Store.
func (r *recorder) ReadAt(p []byte, off int64) (int, error) {
	from, to := sectors(off, len(p))
	whole := make([]byte, to-from)
	if _, err := r.disk.ReadAt(whole, from); err != nil {
		return 0, err
	}
	return copy(p, whole[off-from:]), nil
}

func (r *recorder) WriteAt(p []byte, off int64) (int, error) {
	from, to := sectors(off, len(p))
	whole := make([]byte, to-from)
	if _, err := r.disk.ReadAt(whole, from); err != nil {
		return 0, err
	}
	copy(whole[off-from:], p)
	if _, err := r.disk.WriteAt(whole, from); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (r *recorder) Flush() error {
	if r.drop {
		return nil
	}
	return r.disk.Flush()
}
