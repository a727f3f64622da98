// Package wrongport detects that a port speaks another transport than the one a connection to
// it began with.
//
// Such a port may take the first bytes of a connection for the start of a longer message, and
// wait silently for the rest until it times out. So a silent port is asked in the other
// transport, on a second connection. If it answers there, the first connection gets some more
// time before it is given up, as a slow port may speak both.
package wrongport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"softiser/initiator/internal/pause"
	"softiser/rdma"
)

// How long a port may be silent before it is asked, and again when it has answered that. The
// grace is one for a host that many connect to and that gets little of its processor: to call its
// port a wrong one would be an error for good.
const (
	Silence = time.Second
	Grace   = 5 * time.Second
)

// Doubt is the doubt whether a port speaks what it is asked in, as long as it has not shown it.
type Doubt struct {
	// Speaks reports whether the port answers in the other transport.
	Speaks func(context.Context) bool
	// Wrong makes the error for a port that does. err is how it has broken off; nil: it
	// kept silent.
	Wrong func(err error) error
	// Shows reports whether a port that has broken off so speaks what it was asked in, and need not be
	// asked. Nil: none does.
	Shows func(err error) bool
}

// errWrong ends a connection that the port is silent on.
var errWrong = errors.New("the port speaks another transport")

// Connect runs connect, and ends it early when the port is found to speak the other
// transport. ctx bounds it all.
func Connect[T any](ctx context.Context, d Doubt, connect func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watching, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if pause.For(watching, Silence) && d.Speaks(watching) && pause.For(watching, Grace) {
			cancel(errWrong)
		}
	}()
	c, err := connect(ctx)
	stop()
	<-ended
	if err == nil {
		return c, nil
	}
	var op *net.OpError
	switch {
	case errors.Is(context.Cause(ctx), errWrong):
		err = d.Wrong(nil)
	case ctx.Err() != nil || errors.As(err, &op) && op.Op == "dial":
	case errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL): // on our side
	case d.Shows != nil && d.Shows(err):
	case d.answers(ctx):
		return c, d.Wrong(err)
	}
	if errors.Is(err, rdma.ErrTimeout) {
		err = fmt.Errorf("%w%s", err, unanswered)
	}
	return c, err
}

// answers asks a port that has broken off. A port of a third kind may be silent for ever, and
// what there is to tell of it is known already.
func (d Doubt) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, Grace)
	defer cancel()
	return d.Speaks(ctx)
}

// Silent is the cause for the end of a context within which a port is to have answered: it is
// a deadline that was exceeded. what has not come to be, such as "no login".
func Silent(what string, within time.Duration) error { return &silence{what, within} }

// unanswered is what to look at when nothing has come.
const unanswered = ": the network, or what has this port, does not answer; is it the target's address and port?"

type silence struct {
	what   string
	within time.Duration
}

func (e *silence) Error() string {
	return fmt.Sprintf("%s within %v%s", e.what, e.within, unanswered)
}

func (e *silence) Unwrap() error { return context.DeadlineExceeded }
