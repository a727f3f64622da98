package usage

import (
	"io"
	"sync"
)

// Output passes on what a command prints and keeps the first error, so that a report
// that could not be written does not end with success.
type Output struct {
	W io.Writer

	mu  sync.Mutex
	err error // guarded by mu
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

// Err returns the first error of a Write.
func (o *Output) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
