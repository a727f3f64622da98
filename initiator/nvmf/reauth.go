package nvmf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize/english"
)

// reauthenticate proves again, on every queue whose controller asks for it, who both ends
// are. A failure costs the association.
func (k *keeper) reauthenticate() {
	a := k.a
	ctx, cancel := context.WithTimeoutCause(a.ctx, a.cfg.ConnectTimeout, fmt.Errorf("not authenticated within %v: %w", a.cfg.ConnectTimeout, context.DeadlineExceeded))
	defer cancel()
	done := 0
	for _, q := range a.queues() {
		if !q.hold() {
			continue
		}
		err := q.await(ctx)
		if err == nil {
			err = a.cfg.Authenticate(ctx, exchange{q}, q.id, true)
		}
		q.letGo()
		if err != nil {
			if !errors.Is(err, errLost) && a.ctx.Err() == nil { // a lost connection is reported as such
				err = fmt.Errorf("nvmf: authentication of queue %d again: %w", q.id, err)
				a.event(Event{Kind: EventUnproved, Err: err})
				a.breakOff(err)
			}
			return
		}
		done++
	}
	if done > 0 {
		a.event(Event{Kind: EventAuthenticated, Detail: english.Plural(done, "queue", "")})
	}
}

// hold keeps one entry of a queue free for authentication; false: nobody asks for one there.
func (q *queue) hold() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tr == nil || !q.proves {
		return false
	}
	q.held = 1
	return true
}

// await waits until the held entry is free.
func (q *queue) await(ctx context.Context) error {
	for {
		q.mu.Lock()
		free := q.id == 0 || q.sent+q.held <= q.limit
		q.mu.Unlock()
		if free {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// letGo undoes hold.
func (q *queue) letGo() {
	q.mu.Lock()
	q.held = 0
	q.pumpLocked()
	q.unlock()
	q.kick()
}
