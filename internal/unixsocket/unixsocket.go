// Package unixsocket opens sockets in the file system that belong to one user and to one
// process: nobody else may connect, a socket that a killed process has left is replaced, and one that
// somebody serves is not.
//
// The kernel removes no socket with its process, and a name that is taken cannot be bound. So whoever
// finds one asks whether anybody answers, removes it and binds it anew. Of two that do so at once
// the second would remove what the first has just bound, and both would serve, one of them
// where nobody gets to: so one at a time does it in a folder, under a lock of the folder (flock(2)).
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// MaxPath is what sockaddr_un has room for, less the zero at the end (unix(7)), bytes.
const MaxPath = 107

const (
	// lockPatience is how long another process may have the folder locked, of which it needs a moment.
	lockPatience = 5 * time.Second
	lockPause    = 5 * time.Millisecond
)

// Listen opens the socket at path, whose folder is there. Errors begin with "socket" and the path.
func Listen(path string) (net.Listener, error) {
	if len(path) > MaxPath {
		return nil, fmt.Errorf("socket %s: the path has %d bytes; that of a socket has at most %d", path, len(path), MaxPath)
	}
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	defer unlock()
	ln, err := bind(path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeStale(path); err != nil {
			return nil, err
		}
		ln, err = bind(path)
	}
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return ln, nil
}

// lock locks a folder. One that may not be read, or is on a file system without locks, is left as it
// is: a socket can be opened there all the same.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return func() {}, nil // if it is not there bind says so
	}
	for begun := time.Now(); ; time.Sleep(lockPause) {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return func() { d.Close() }, nil
		case time.Since(begun) > lockPatience:
			d.Close()
			return nil, fmt.Errorf("another process keeps the folder %s locked (`fuser %s` names it)", dir, dir)
		}
	}
}

// bind opens a socket that is its owner's from the first moment, whatever the umask: Linux gives the
// name that bind(2) makes the mode of the socket, which is set before.
func bind(path string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		var err error
		if cerr := rc.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	return lc.Listen(context.Background(), "unix", path)
}

// removeStale removes a socket that nobody serves.
func removeStale(path string) error {
	// A file that somebody has named by mistake is no stale socket.
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("socket %s: what has that name is not a socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("socket %s: another process serves it", path)
	}
	// Only ECONNREFUSED says that nobody listens: the queue of one who does may be full.
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("socket %s: another process may serve it: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	return nil
}
