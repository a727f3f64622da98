// Package statedir has the version of the folder in which a target keeps what survives a
// restart (admin.state_dir), and takes a folder of an earlier version to this program's.
//
// The version is that of the folder: which files there are, and what they are called. What a
// file says has a version of its own, in the file (target/volume). It is in the file "version",
// which the first use writes; a folder without one is from before there was one, version 0.
//
// One target uses a folder at a time, which has the file "lock" locked (Claim).
package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"softiser/target/internal/statefile"
)

// name is the file that has the version.
const name = "version"

// maxFile bounds it, bytes.
const maxFile = 4 << 10

// content is what the file says.
type content struct {
	Version int    `json:"version"`
	Program string `json:"program"` // that has written it, for people
}

// migrations take a folder from the version that is their index to the next one. Each may have
// been cut off at any point by an earlier attempt, and so does what is left to do. Whoever
// changes which files there are, or what they are called, adds one, but for files that an earlier
// program may pass over.
var migrations = []func(dir string) error{
	0: func(string) error { return nil }, // the files are the same
}

// Current is the version of folders that this program writes.
func Current() int { return len(migrations) }

// Open makes the folder, if need be, and brings it to the current version; program is who
// does. It returns the version that the folder had; that of a new one is the current. A folder of
// a later version is left as it is, and an error.
func Open(dir, program string) (had int, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	had, err = read(dir)
	if err != nil {
		return 0, err
	}
	file := filepath.Join(dir, name)
	if had == 0 {
		statefile.RemoveUnfinished(file)
		left, err := os.ReadDir(dir)
		if err != nil {
			return 0, err
		}
		if len(left) == 0 || len(left) == 1 && left[0].Name() == lockName {
			return Current(), write(file, Current(), program)
		}
	}
	for v := had; v < Current(); v++ {
		err := migrations[v](dir)
		if err == nil {
			err = write(file, v+1, program)
		}
		if err != nil {
			return had, fmt.Errorf("%s: from version %d to %d: %w", dir, v, v+1, err)
		}
	}
	return had, nil
}

// Check reports why Open would refuse the folder, without changing anything. One that is
// not there is fine.
func Check(dir string) error {
	_, err := read(dir)
	return err
}

// Probe says what Open would find, and touches nothing: start is why it would fail, save why
// files could not be written in the folder afterwards. A folder of this version is opened also
// where it cannot be written.
func Probe(dir string) (start, save error) {
	had, err := read(dir)
	if err != nil {
		return err, nil
	}
	save = Writable(dir)
	if had < Current() { // it is made, or its version is written
		start = save
	}
	return start, save
}

// Modes of access(2).
const (
	writes = 2
	enters = 1
)

// Writable reports why files could not be written in the folder, or it could not be made, and
// touches nothing.
func Writable(dir string) error {
	at := dir
	_, err := os.Stat(at)
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(at) != at {
		if _, err := os.Lstat(at); err == nil {
			return fmt.Errorf("%s is a link to nothing", at)
		}
		at = filepath.Dir(at)
		_, err = os.Stat(at)
	}
	if err == nil {
		// With a slash behind it, it must be a folder.
		err = syscall.Access(at+"/.", writes|enters)
	}
	if err != nil {
		return fmt.Errorf("%s cannot be written: %w", at, err)
	}
	return nil
}

func write(file string, version int, program string) error {
	b, err := json.Marshal(content{version, program})
	if err != nil {
		return err
	}
	return statefile.Replace(file, append(b, '\n'))
}

// read returns the version of a folder, which is at most the current one.
func read(dir string) (int, error) {
	file := filepath.Join(dir, name)
	fi, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	broken := func(why any) error {
		return fmt.Errorf("%s does not say which version of the state folder it is (%v): put the right file there; this program writes {\"version\":%d}", file, why, Current())
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxFile {
		return 0, broken(fmt.Sprintf("%v, %d bytes", fi.Mode(), fi.Size()))
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var c content
	switch err := json.Unmarshal(b, &c); {
	case err != nil:
		return 0, broken(err)
	case c.Version < 1:
		return 0, broken(fmt.Sprintf("version %d", c.Version))
	case c.Version > Current():
		return 0, fmt.Errorf("%s: the folder has version %d, written by iser-target %q, and this program knows versions up to %d: go back to that program, or name another folder",
			file, c.Version, c.Program, Current())
	}
	return c.Version, nil
}
