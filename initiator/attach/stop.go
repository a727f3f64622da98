package attach

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Wait serves until ctx ends or the server fails, then detaches: it has the kernel
// write back what it holds of the device, disconnects it, stops accepting, lets
// requests finish, and flushes the volume.
func (a *Attachment) Wait(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
	case err = <-a.serve:
		err = fmt.Errorf("NBD server: %w", err)
	case err = <-a.failed:
	case err = <-a.lost:
	}
	a.giving.others.End() // a takeover that has begun comes to its end; none begins any more
	return errors.Join(err, a.undo())
}

// lookEvery is how often who waits for a flush looks whether the target has gone.
const lookEvery = 100 * time.Millisecond

// stop shuts the server down and makes what it wrote durable.
func (a *Attachment) stop() error {
	limit := max(a.opt.FinishTimeout, time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	down := make(chan error, 1)
	go func() { down <- a.srv.Shutdown(ctx) }()
	var err error
	select {
	case err = <-down:
		if err != nil {
			err = fmt.Errorf("connections of NBD clients did not end within %v and were cut: %w", limit, err)
		}
	case <-time.After(2 * limit):
		// Clients have been cut for so long again as they have had, and requests have memory of the server: they are with
		// a target that does not answer. Closing the volume ends them.
		_ = a.closeVolume() // it is told behind this
		return errors.Join(<-down, fmt.Errorf("requests that the target did not answer within %v were given up; what was written since the last flush may be lost", 2*limit))
	}
	if a.unwritten() {
		return err
	}
	return errors.Join(err, a.lastFlush(limit))
}

// lastFlush flushes the volume. While nothing is to be flushed, and nobody is there to answer, that is not waited for:
// closing the volume ends it then.
func (a *Attachment) lastFlush(limit time.Duration) error {
	flushed := make(chan error, 1)
	go func() { flushed <- a.lun.Flush() }()
	late := time.NewTimer(limit) // its own: clients that took no replies may have used up that of stop
	defer late.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for !a.idle() {
		var err error
		select {
		case err = <-flushed:
		case <-late.C:
			err = fmt.Errorf("it did not end within %v", limit)
		case <-look.C:
			continue
		}
		if err == nil || a.idle() {
			return nil
		}
		return fmt.Errorf("the last flush failed; what was written since the one before may be lost: %w", err)
	}
	return nil
}

// idle reports whether nobody is there to answer a flush, and none is needed: nothing was written since the last one.
// What a process that was killed has written is not known for certain.
func (a *Attachment) idle() bool {
	if a.opt.State == nil || a.Record.Recovered || !a.nexus.Cache.Clean() {
		return false
	}
	state, _ := a.opt.State()
	return away(state)
}

// unwritten reports whether nobody could write: a volume that is read-only only now may hold what was written before.
func (a *Attachment) unwritten() bool {
	return a.export.ReadOnly || a.protected && a.lun.Info().ReadOnly
}

// closeVolume closes the volume, once.
func (a *Attachment) closeVolume() error {
	a.closing.Do(func() { a.closed = a.lun.Close() })
	return a.closed
}
