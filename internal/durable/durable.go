// Package durable makes files, and their names, survive a loss of power: it syncs the content
// of a file, and then the folder that has its name.
package durable

import "os"

// The two places at which a disk fails. They are variables so that tests can make them fail,
// or look at what is there before.
var (
	// SyncFile makes the content of a file durable.
	SyncFile = (*os.File).Sync
	// SyncDir makes the names in a folder durable. A file system that cannot do so
	// says EINVAL.
	SyncDir = func(name string) error {
		dir, err := os.Open(name)
		if err != nil {
			return err
		}
		defer dir.Close()
		return dir.Sync()
	}
)

// Put makes f, a file in the folder of name, the file of that name: it is synced, closed
// and renamed over what was there, so that a crash leaves one of the two contents. err is
// what went wrong with f so far. After an error, Put's own or that one, f is removed and
// the old file is as it was. The name is durable after SyncDir, which is the caller's to call.
func Put(f *os.File, name string, err error) error {
	if err == nil {
		err = SyncFile(f)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
