package rdmatools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"softiser/rdma"
)

// patience is how long the other end may be silent that has begun a test: longer than a lookup, or the
// end of a connection, takes. Tests have less.
var patience = 10 * time.Second

// errSilent is about one that has been silent for longer.
func errSilent() error {
	return fmt.Errorf("%w: nothing has come from the other end for %v, nor its end", rdma.ErrTimeout, patience)
}

// whileHeard is untilSilent over RoCE, where nothing else tells of one who was killed; over iWARP the
// kernel does.
func (t *transport) whileHeard(ctx context.Context, ends ...*endpoint) (context.Context, context.CancelFunc) {
	if !t.roce() {
		return ctx, func() {}
	}
	return untilSilent(ctx, ends...)
}

// untilSilent is ctx until nothing has come or gone at any of ends for patience, or up to twice that.
func untilSilent(ctx context.Context, ends ...*endpoint) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	look, silent := time.NewTicker(patience), errSilent()
	go func() {
		defer look.Stop()
		for seen, first := uint64(0), true; ; first = false {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			var now uint64
			for _, e := range ends {
				s := e.qp.Stats()
				now += s.WireIn + s.WireOut
			}
			if !first && now == seen {
				cancel(silent)
				return
			}
			seen = now
		}
	}()
	return ctx, func() { cancel(nil) }
}

// over is why ctx has ended.
func over(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, rdma.ErrTimeout) {
		return err
	}
	return ctx.Err()
}

// ended waits for the end of the connection; that the other side has made it is no error.
func (e *endpoint) ended(ctx context.Context) error {
	select {
	case <-e.qp.Done():
	case <-ctx.Done():
		return over(ctx)
	}
	if err := e.qp.Err(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
