package usage

import (
	"fmt"
	"io"
	"sync"

	"softiser/internal/terminal"
)

// Output passes on what a command prints and keeps the first error, so that a report
// that could not be written does not end with success.
type Output struct {
	W io.Writer

	mu  sync.Mutex
	err error // guarded by mu
}

// IsTerminal reports whether w, or what an Output passes on to, is a terminal.
func IsTerminal(w io.Writer) bool {
	if o, ok := w.(*Output); ok {
		w = o.W
	}
	return terminal.Is(w)
}

func (o *Output) Write(p []byte) (int, error) {
	n, err := o.W.Write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

// Err is what a command ends with of which something could not be written to the standard
// output; nil: all of it was.
func (o *Output) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("standard output: %w; not all of the answer has been written", o.err)
}
