package usage

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"softiser/internal/terminal"
)

// Output passes on what a command prints and keeps the first error, so that a report
// that could not be written does not end with success.
type Output struct {
	W io.Writer
	// Ctx is that of the command: when it has ended, what nobody reads, such as a pipe that is full, holds the command
	// up no longer. nil: there is none.
	Ctx context.Context //nolint:containedctx // of the command that prints

	mu     sync.Mutex
	err    error  // guarded by mu
	unread bool   // guarded by mu: a Write has been given up, and may still be under way
	spare  []byte // guarded by mu: for what is written next
}

// IsTerminal reports whether w, or what an Output passes on to, is a terminal.
func IsTerminal(w io.Writer) bool {
	if o, ok := w.(*Output); ok {
		w = o.W
	}
	return terminal.Is(w)
}

func (o *Output) Write(p []byte) (int, error) {
	n, err := o.write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

// write gives up twin after the end of Ctx: a report that is read is written then, too.
func (o *Output) write(p []byte) (int, error) {
	if o.Ctx == nil {
		return o.W.Write(p)
	}
	o.mu.Lock()
	if o.unread {
		o.mu.Unlock()
		return 0, o.Ctx.Err()
	}
	mine := append(o.spare[:0], p...) // p is the caller's when it has been given up
	o.spare = nil
	o.mu.Unlock()
	type result struct {
		n   int
		err error
	}
	written := make(chan result, 1)
	go func() {
		n, err := o.W.Write(mine)
		o.mu.Lock()
		o.spare = mine
		o.mu.Unlock()
		written <- result{n, err}
	}()
	select {
	case r := <-written:
		return r.n, r.err
	case <-o.Ctx.Done():
	}
	select {
	case r := <-written:
		return r.n, r.err
	case <-time.After(twin):
	}
	o.mu.Lock()
	o.unread = true
	o.mu.Unlock()
	return 0, o.Ctx.Err()
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
