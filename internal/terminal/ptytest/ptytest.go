// Package ptytest makes pseudo-terminals for tests of what is drawn on one, or asks on one.
package ptytest

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long something that is bound to be drawn may take on a loaded machine.
const patience = time.Minute

// Open makes a terminal and returns its two ends, which are closed when the test ends: what a
// program has, and what a person types into and looks at. It knows escape sequences, whatever that
// of the test's own environment does. An error means that there are none here.
func Open(t testing.TB) (tty, person *os.File, err error) {
	t.Helper()
	t.Setenv("TERM", "xterm")
	if person, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { person.Close() })
	var fd uintptr
	control(t, person, func(of int) {
		if err = unix.IoctlSetPointerInt(of, unix.TIOCSPTLCK, 0); err != nil {
			return
		}
		var errno unix.Errno
		if fd, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(of), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY); errno != 0 {
			err = errno
		}
	})
	if err != nil {
		return nil, nil, err
	}
	tty = os.NewFile(fd, "terminal")
	t.Cleanup(func() { tty.Close() })
	return tty, person, nil
}

// Resize gives a terminal another size. Who is to know is told with SIGWINCH, which is up to the
// caller: the terminal is nobody's controlling one.
func Resize(t testing.TB, tty *os.File, columns, rows int) {
	t.Helper()
	var err error
	control(t, tty, func(fd int) {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Expect reads what is drawn until it contains something, and returns all of it.
func Expect(t testing.TB, person *os.File, want string) string {
	t.Helper()
	if err := person.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(got.String(), want) {
		n, err := person.Read(buf)
		if err != nil {
			t.Fatalf("%v, and no %q in %q", err, want, got.String())
		}
		got.Write(buf[:n])
	}
	return got.String()
}

// control hands the descriptor of a file to f, and leaves the file as it is.
func control(t testing.TB, file *os.File, f func(fd int)) {
	t.Helper()
	c, err := file.SyscallConn()
	if err == nil {
		err = c.Control(func(fd uintptr) { f(int(fd)) })
	}
	if err != nil {
		t.Fatal(err)
	}
}
