// Package terminal tells whether a file is a terminal, and how large it is, and takes over the
// whole screen of one for a view.
package terminal

import (
	"io"
	"os"
	"syscall"
	"unicode/utf8"
	"unsafe"
)

// Is reports whether f, a file or something else that is read or written, is a terminal.
func Is(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	var settings [64]byte // struct termios, of 36 to 60 bytes
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), syscall.TCGETS, uintptr(unsafe.Pointer(&settings)))
	return errno == 0
}

// Dumb reports whether the terminal is said to know no escape sequences, as that of an editor's shell.
func Dumb() bool { return os.Getenv("TERM") == "dumb" }

// Columns returns the width of the terminal that w is, 0 if it is none or does not know.
func Columns(w io.Writer) int {
	columns, _ := Size(w)
	return columns
}

// Size returns the width and height of the terminal that w is, zeroes if it is none or does
// not know.
func Size(w io.Writer) (columns, rows int) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	var size struct{ rows, columns, x, y uint16 }
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
		return 0, 0
	}
	return int(size.columns), int(size.rows)
}

// Fit returns the first of the lines that leaves the last column of a terminal free, so
// that it does not wrap and leave its beginning behind; when none does, what fits of the
// last one. With 0 columns, which is unknown, everything fits.
func Fit(columns int, lines ...string) string {
	for _, l := range lines {
		if columns == 0 || utf8.RuneCountInString(l) < columns {
			return l
		}
	}
	last := []rune(lines[len(lines)-1])
	return string(last[:min(len(last), max(columns-1, 0))])
}
