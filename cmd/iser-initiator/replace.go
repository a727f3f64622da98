package main

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"softiser/internal/durable"
)

// output is the file that read fills. A regular file gets its name only when it
// is whole: until then it lies beside that name, so that what stood there before
// outlives an interrupted run, and nobody takes half a volume for one.
type output struct {
	*os.File
	name string // what it becomes; "" when File is written in place
}

// create opens FILE for writing. An existing one is refused unless replace is
// set; a device or a pipe is written in place then.
func create(name string, replace bool) (*output, error) {
	mode := fs.FileMode(0o666)
	st, err := os.Stat(name)
	switch {
	case err == nil && st.IsDir():
		return nil, usage("%s is a folder; name a file in it", name)
	case err == nil && !replace && !st.Mode().IsRegular():
		return nil, usage("%s exists and is no ordinary file; --force writes to what is there", name)
	case err == nil && !replace:
		return nil, usage("%s exists; --force replaces it", name)
	case err == nil && !st.Mode().IsRegular():
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		return &output{File: f}, err
	case err == nil:
		mode = st.Mode().Perm()
		if name, err = filepath.EvalSymlinks(name); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	dir, base := filepath.Split(name)
	for {
		f, err := os.OpenFile(dir+"."+base+"."+strconv.FormatUint(rand.Uint64(), 36)+".part", os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if st != nil { // the new file stands for the old one; only root can give it away
			_ = f.Chmod(mode)
			if own, ok := st.Sys().(*syscall.Stat_t); ok {
				_ = f.Chown(int(own.Uid), int(own.Gid))
			}
		}
		return &output{File: f, name: name}, nil
	}
}

// keep makes the file durable under its name; a file that has appeared there
// meanwhile is replaced only if replace is set.
func (o *output) keep(replace bool) error {
	if o.name == "" {
		return o.Close()
	}
	part := o.Name()
	err := durable.SyncFile(o.File)
	if cerr := o.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		flags := uint(unix.RENAME_NOREPLACE)
		if replace {
			flags = 0
		}
		err = unix.Renameat2(unix.AT_FDCWD, part, unix.AT_FDCWD, o.name, flags)
		if !replace && errors.Is(err, unix.EINVAL) { // a file system without the flag
			err = os.Link(part, o.name)
			os.Remove(part)
		}
	}
	if err != nil {
		os.Remove(part)
		return &fs.PathError{Op: "keep", Path: o.name, Err: err}
	}
	folder := filepath.Dir(o.name)
	o.name = ""
	return durable.SyncDir(folder)
}

// discard drops a file that was not kept.
func (o *output) discard() {
	o.Close()
	if o.name != "" {
		os.Remove(o.Name())
	}
}
