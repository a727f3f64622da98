package durable

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Replacement is a file that a command fills. A regular file gets its name only when it
// is whole: until then it lies beside that name, so that what stood there before
// outlives a run that fails, and nobody takes a part for the whole. It has to be ended, by
// Keep or Discard.
type Replacement struct {
	*os.File
	name string // what it becomes; "" when File is written in place
}

// Replace makes the file that is to be name. What is no regular file (a device, a pipe), what
// somebody has open under another name (/dev/stdout) and a link to nothing are written in
// place; of what a link leads to the file behind it is replaced. The new file has the mode of the old
// one, and its owner where this user may give files away.
func Replace(name string) (*Replacement, error) {
	mode := fs.FileMode(0o666)
	st, err := os.Stat(name)
	switch {
	case err == nil && (!st.Mode().IsRegular() || borrowed(name)):
		return inPlace(name, os.O_TRUNC)
	case err == nil:
		mode = st.Mode().Perm()
		if name, err = filepath.EvalSymlinks(name); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	default:
		if _, err := os.Lstat(name); err == nil {
			return inPlace(name, os.O_CREATE)
		}
	}
	f, err := beside(name, mode)
	if err != nil {
		return nil, err
	}
	if st != nil { // the new file stands for the old one; only root can give it away
		_ = f.Chmod(mode)
		if own, ok := st.Sys().(*syscall.Stat_t); ok {
			_ = f.Chown(int(own.Uid), int(own.Gid))
		}
	}
	return &Replacement{File: f, name: name}, nil
}

// borrowed reports whether a name is one of the kernel's for what a process has open: it goes on
// with the file, not with the name.
func borrowed(name string) bool {
	abs, err := filepath.Abs(name)
	if err != nil {
		return false
	}
	return abs == "/dev/stdout" || abs == "/dev/stderr" || strings.HasPrefix(abs, "/dev/fd/") || strings.HasPrefix(abs, "/proc/")
}

func inPlace(name string, flags int) (*Replacement, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|flags, 0o666)
	if err != nil {
		return nil, err
	}
	return &Replacement{File: f}, nil
}

// beside makes a new file in the folder of name.
func beside(name string, mode fs.FileMode) (*os.File, error) {
	dir, base := filepath.Split(name)
	base = base[:min(len(base), 200)] // of 255 bytes that a name may have
	for {
		f, err := os.OpenFile(dir+"."+base+"."+strconv.FormatUint(rand.Uint64(), 36)+".part", os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			p.Path = name // which whoever reads the error has given
		}
		return f, err
	}
}

// Keep makes the file durable, under its name; a file that has appeared there meanwhile is
// replaced only if replace is set. After an error what was there is as it was, unless the file was
// written in place, or only the name is not durable.
func (o *Replacement) Keep(replace bool) error {
	if o.name == "" {
		return o.keepInPlace()
	}
	part := o.Name()
	err := SyncFile(o.File)
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
	return syncFolder(folder)
}

// keepInPlace is Keep of a file that was written in place.
func (o *Replacement) keepInPlace() error {
	st, err := o.Stat()
	if err == nil {
		switch st.Mode().Type() {
		case 0:
			if err = SyncFile(o.File); err == nil {
				err = syncFolder(filepath.Dir(o.Name()))
			}
		case fs.ModeDevice: // of blocks
			err = SyncFile(o.File)
		}
	}
	return errors.Join(err, o.Close())
}

// syncFolder is SyncDir where a file system that cannot do so has done all that it can.
func syncFolder(name string) error {
	if err := SyncDir(name); !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// Discard drops a file that was not kept. After Keep it does nothing.
func (o *Replacement) Discard() {
	o.Close()
	if o.name != "" {
		os.Remove(o.Name())
	}
}
