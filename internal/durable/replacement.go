package durable

import (
	"cmp"
	"errors"
	"fmt"
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
	case !errors.Is(err, fs.ErrNotExist), name == "":
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

// A part is called .NAME.RANDOM.part. Whoever fills it holds a lock on it (flock), so that the next run
// finds what a killed one has left.
const (
	partEnd      = ".part"
	randomDigits = 13 // of 36 to the power of them, which is more than 2 to the power of 64
)

// beside makes a new file in the folder of name, in the place of those that killed runs have left there.
func beside(name string, mode fs.FileMode) (*os.File, error) {
	dir, base := filepath.Split(name)
	begin := "." + base[:min(len(base), 200)] + "." // of 255 bytes that a name may have
	sweep(dir, begin)
	for {
		random := fmt.Sprintf("%0*s", randomDigits, strconv.FormatUint(rand.Uint64(), 36))
		f, err := os.OpenFile(dir+begin+random+partEnd, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			p.Path = name // which whoever reads the error has given
		}
		if err == nil && !claim(f) {
			f.Close()
			continue // the sweep of another run came between
		}
		return f, err
	}
}

// claim locks a part, and reports whether it is there and nobody else's. On a file system without locks
// everything is somebody's who made it: no sweep gets a lock there.
func claim(f *os.File) bool {
	if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return false
	}
	return stands(f)
}

// stands reports whether f is still what its name leads to.
func stands(f *os.File) bool {
	st, err := f.Stat()
	now, nerr := os.Lstat(f.Name())
	return err == nil && nerr == nil && os.SameFile(st, now)
}

// sweep removes the parts in a folder whose names begin so and which nobody fills any more.
func sweep(dir, begin string) {
	all, err := os.ReadDir(cmp.Or(dir, "."))
	if err != nil {
		return // what cannot be listed can be written to all the same
	}
	for _, e := range all {
		middle, ok := strings.CutPrefix(e.Name(), begin)
		middle, is := strings.CutSuffix(middle, partEnd)
		if _, err := strconv.ParseUint(middle, 36, 64); !ok || !is || err != nil || len(middle) != randomDigits || !e.Type().IsRegular() {
			continue
		}
		f, err := os.OpenFile(dir+e.Name(), os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && stands(f) {
			os.Remove(f.Name())
		}
		f.Close()
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
	if lock, derr := unix.FcntlInt(o.Fd(), unix.F_DUPFD_CLOEXEC, 0); derr == nil {
		defer unix.Close(lock) // the part is ours until it has the name
	} else if err == nil {
		err = derr
	}
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
