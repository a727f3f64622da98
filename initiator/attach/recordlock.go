package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The lock of a record is exclusive where a process serves, and shared, for a moment, where one looks whether another
// does, or removes what a dead one has left.

// served reports whether a process serves that has the lock of f. If not, this one shares the lock until f is closed.
func served(f *os.File) bool {
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// sameFile reports whether f is what there is at path.
func sameFile(f *os.File, path string) bool {
	a, aerr := f.Stat()
	b, berr := os.Stat(path)
	return aerr == nil && berr == nil && os.SameFile(a, b)
}

// lockRecord takes the record file at path for this process. When another
// process serves by it, its record is returned instead.
func lockRecord(path string) (f *os.File, held *Record, err error) {
	return lockRecordBy(func() { time.Sleep(20 * time.Millisecond) }, path)
}

// lockRecordBy pauses where it has to look again: the lock is another one's who does not serve, or has written nothing yet.
func lockRecordBy(pause func(), path string) (f *os.File, held *Record, err error) {
	for range 100 {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("attachment record: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			var rec *Record // nil: it is being looked at, or written
			if served(f) {
				rec, _ = readRecord(path)
			}
			f.Close()
			if rec != nil && rec.PID != 0 {
				return nil, rec, nil
			}
			pause()
			continue
		}
		if err != nil {
			f.Close()
			return nil, nil, fmt.Errorf("attachment record %s: %w", path, err)
		}
		// The file may have been removed between open and lock.
		if sameFile(f, path) {
			return f, nil, nil
		}
		f.Close()
	}
	return nil, nil, fmt.Errorf("attachment record %s is held by a process that does not fill it in; fuser tells which", path)
}

// alive reports whether the record's process still holds it.
func (r *Record) alive() bool {
	f, err := os.OpenFile(r.path, os.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return served(f)
}

// clean removes a record whose process is gone, and its sockets, unless another process serves by it now. One at a time
// cleans up in a folder, and the record goes last and under its lock: so it is the dead process's that goes, and not
// what another one has put there meanwhile.
func (r *Record) clean() {
	dir := absolute(filepath.Dir(r.path)) // as sockets are named
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer d.Close()
	f, err := os.OpenFile(r.path, os.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if syscall.Flock(int(d.Fd()), syscall.LOCK_EX) != nil || served(f) || !sameFile(f, r.path) {
		return
	}
	for _, sock := range []string{r.Socket, r.Control} {
		if sock != "" && strings.HasPrefix(sock, dir+string(filepath.Separator)) {
			os.Remove(sock)
		}
	}
	os.Remove(r.path)
}
