// Package statefile replaces small files crash-safely: a new file is written and
// synced, renamed over the old one, and the folder synced. Whatever cuts in, one of
// the two contents is there.
package statefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"softiser/internal/durable"
)

// Unfinished is what the names of files that are being written have behind those of
// the files that they will replace.
const Unfinished = ".new-"

// OpenFile opens a file that is written in place. It is a variable so that tests can make
// the file fail, or look at what is there before.
var OpenFile = func(name string, flag int, perm fs.FileMode) (File, error) { return os.OpenFile(name, flag, perm) }

// ErrUncertain is in the error of a Replace after which nobody knows which of the two
// contents a loss of power would leave. After any other error it is the old one.
var ErrUncertain = errors.New("what the folder has on disk is not known")

// File is what is written in place, the part of *os.File that it takes.
type File interface {
	io.WriterAt
	io.Closer
	Sync() error
}

// RemoveUnfinished removes what crashes have left of earlier attempts to replace name. It
// does no harm where it cannot be removed, because the folder is read-only perhaps.
func RemoveUnfinished(name string) {
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, n := range names {
		if strings.HasPrefix(n, filepath.Base(name)+Unfinished) {
			_ = os.Remove(filepath.Join(dir.Name(), n))
		}
	}
}

// Replace makes b the content of name, durably, so that a crash at any point
// leaves either the old content or the new. If it fails, the old content is put back
// as far as that can be done: what a command was refused must not be there after a
// restart. With ErrUncertain a loss of power right then can still bring up either, because
// nobody knows what a folder that could not be synced has on disk; who calls it saves its
// next change whatever that is, which ends it.
func Replace(name string, b []byte) error {
	old, err := os.ReadFile(name)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return err
	}
	if err := renameOver(name, b); err != nil {
		return err
	}
	if err := durable.SyncDir(filepath.Dir(name)); err != nil {
		err = fmt.Errorf("%w: %w", ErrUncertain, err)
		if fresh {
			return errors.Join(err, os.Remove(name))
		}
		return errors.Join(err, renameOver(name, old))
	}
	return nil
}

// renameOver puts a synced file with content b in the place of name.
func renameOver(name string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+Unfinished+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return durable.Put(f, name, err)
}
