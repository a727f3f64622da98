package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"softiser/internal/terminal"
)

// input is FILE, or standard input. Its Read gives up when the command ends, also while nothing comes.
type input struct {
	*terminal.Reader
	f      *os.File
	length int64 // -1: it has no end, or nobody knows
}

// openInput opens what a, the arguments of write and verify, name behind the URL.
func openInput(ctx context.Context, a []string) (*input, error) {
	f, length, err := openFile(a)
	if err != nil {
		return nil, err
	}
	r, err := terminal.NewReader(ctx, f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &input{r, f, length}, nil
}

// Close ends the waiting, and closes the file.
func (in *input) Close() error { return errors.Join(in.Reader.Close(), in.f.Close()) }

// inputName is what messages call the input that a names.
func inputName(a []string) string {
	if len(a) < 2 || a[1] == "-" {
		return "standard input"
	}
	return a[1]
}

// openFile opens FILE or standard input and says how long it is; -1: it has no end, or nobody
// knows. A terminal is read only where it is asked for by name, "-".
func openFile(a []string) (f *os.File, length int64, err error) {
	if len(a) < 2 && terminal.Is(os.Stdin) {
		return nil, -1, usage("standard input is a terminal: name a FILE, send the data through a pipe, or type - to enter it by hand")
	}
	if len(a) < 2 || a[1] == "-" {
		return os.Stdin, -1, nil
	}
	f, err = os.Open(a[1])
	if errors.Is(err, fs.ErrNotExist) && strings.Contains(a[1], "://") {
		return nil, -1, usage("%s is no file; the volume's URL comes first, then FILE", a[1])
	}
	if err != nil {
		return nil, -1, err
	}
	st, err := f.Stat()
	switch {
	case err == nil && st.IsDir():
		f.Close()
		return nil, -1, fmt.Errorf("%s is a folder; name a file in it", a[1])
	case err == nil && st.Mode()&os.ModeCharDevice != 0: // /dev/zero can be sought in, and has no end
		return f, -1, nil
	}
	n, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return f, -1, nil // a pipe
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, n, err
}
