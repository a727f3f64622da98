package multipath

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"softiser/initiator/blockio"
	"softiser/internal/list"
)

// where a request is.
type where uint8

const (
	idle     where = iota // the caller's, or about to be given back
	withPath              // given to a path, or about to be
	waiting               // in held or in a path's limbo
)

// request is what the volume keeps of a Request, in its Driver.
type request struct {
	*blockio.Request
	v    *Volume
	in   blockio.Request // what the path is given
	path *path

	// Volume.mu guards the rest.
	where  where
	list   *queue // waiting
	node   list.Node[request]
	cancel error // it ends with this instead of being repeated
}

// prepare returns what is kept of r, ready to be given to a path.
func (v *Volume) prepare(r *blockio.Request) *request {
	q, ok := r.Driver.(*request)
	if !ok || q.Request != r {
		q = &request{Request: r}
		q.in.User, q.in.Done = q, ended
		r.Driver = q
	}
	r.Err, r.Residual, r.Status, r.Sent = nil, 0, 0, false
	q.v, q.path, q.cancel, q.where = v, nil, nil, withPath
	in := &q.in
	in.Op, in.Off, in.Len, in.Buf, in.Segs, in.FUA = r.Op, r.Off, r.Len, r.Buf, r.Segs, r.FUA
	in.MayUnmap, in.NoData, in.CDB, in.SQE, in.DataIn, in.Flusher = r.MayUnmap, r.NoData, r.CDB, r.SQE, r.DataIn, r.Flusher
	return q
}

// Submit starts r on one of the best paths; while there is none it waits.
func (v *Volume) Submit(r *blockio.Request) {
	q := v.prepare(r)
	p := v.choose()
	if p == nil || r.Op == blockio.OpFlush && v.cache.Elsewhere(p.vol.Epoch()) {
		q.route()
		return
	}
	q.path = p
	p.outstanding.Add(1)
	p.vol.Submit(&q.in)
}

// batch is scratch of SubmitBatch: what goes to which path. A request that was given to its
// path may have ended, and be in use again, before the next one is.
type batch struct {
	paths []*path
	ins   []*blockio.Request
	share []*blockio.Request
}

var batches = sync.Pool{New: func() any {
	const usual = 128
	m := new(struct {
		b          batch
		paths      [usual]*path
		ins, share [usual]*blockio.Request
	})
	m.b = batch{paths: m.paths[:0], ins: m.ins[:0], share: m.share[:0]}
	return &m.b
}}

// SubmitBatch starts several requests; each path transmits its share together.
func (v *Volume) SubmitBatch(rs []*blockio.Request) {
	b := batches.Get().(*batch)
	for _, r := range rs {
		if r.Op == blockio.OpFlush || len(*v.active.Load()) == 0 {
			v.Submit(r)
			continue
		}
		q, p := v.prepare(r), v.choose()
		if p == nil {
			q.route()
			continue
		}
		q.path = p
		p.outstanding.Add(1)
		b.paths, b.ins = append(b.paths, p), append(b.ins, &q.in)
	}
	for i, p := range b.paths {
		if p == nil {
			continue
		}
		b.share = b.share[:0]
		for k, o := range b.paths[i:] {
			if o == p {
				b.share, b.paths[i+k] = append(b.share, b.ins[i+k]), nil
			}
		}
		p.vol.SubmitBatch(b.share)
	}
	clear(b.ins)
	clear(b.share)
	b.paths, b.ins, b.share = b.paths[:0], b.ins[:0], b.share[:0]
	batches.Put(b)
}

// ended is every path's Done.
func ended(in *blockio.Request) {
	q := in.User.(*request)
	q.path.outstanding.Add(-1)
	if in.Err == nil {
		q.finish()
		return
	}
	q.failed(in.Err)
}

// finish gives the request back with what the path has said.
func (q *request) finish() {
	r, in := q.Request, &q.in
	r.Err, r.Residual, r.Status, r.Sent = in.Err, in.Residual, in.Status, in.Sent
	if r.Done != nil {
		r.Done(r)
	}
}

// end gives the request back with err.
func (q *request) end(err error) {
	q.in.Err = err
	q.finish()
}

// changes reports whether the operation changes what the volume holds.
func changes(op blockio.Op) bool {
	switch op {
	case blockio.OpRead, blockio.OpFlush, blockio.OpVerify:
		return false
	}
	return true
}

// repeatable reports whether the operation may be carried out twice. One that may not ends with
// ErrOutcomeUnknown once it was sent.
func repeatable(op blockio.Op) bool {
	switch op {
	case blockio.OpCompareAndWrite, blockio.OpCDB, blockio.OpSQE:
		return false
	}
	return true
}

// failed takes a request that a path has ended with err: one that says something of the
// path is repeated, as soon as that is safe.
func (q *request) failed(err error) {
	v, p := q.v, q.path
	unknown, inaccessible := errors.Is(err, blockio.ErrOutcomeUnknown), errors.Is(err, blockio.ErrInaccessible)
	lost := errors.Is(err, blockio.ErrSessionLost) && !unknown
	mayBeLate := q.in.Sent && repeatable(q.Op) && changes(q.Op) && v.cfg.Fence != FenceNone
	switch {
	case unknown && mayBeLate && inaccessible: // a part of it was refused, and another one lost
		q.awaitFence(nil)
	case unknown && mayBeLate:
		q.awaitFence(err)
	case !lost && !inaccessible:
		q.finish()
	default:
		p.leave(err)
		if lost && mayBeLate {
			q.awaitFence(nil)
		} else {
			q.route()
		}
	}
}

// awaitFence has a change whose outcome is unknown wait until its path is fenced. Then it is repeated, or
// ends with failed if that is not nil: who is told so may write anew, and that write is to be the last.
func (q *request) awaitFence(failed error) {
	v, p := q.v, q.path
	v.mu.Lock()
	if q.cancel == nil && v.closed {
		q.cancel = blockio.ErrClosed
	}
	if q.cancel != nil {
		q.cancel = blockio.Unknown(q.cancel)
	}
	if q.overLocked() {
		return
	}
	q.cancel = failed
	if p.moved {
		v.mu.Unlock()
		q.route()
		return
	}
	if p.up && p.unknownLocked() == 0 { // it has other sessions
		p.lost = time.Now()
	}
	p.limbo.push(q)
	v.mu.Unlock()
	p.nudge()
}

// overLocked ends the request if it has been cancelled or the volume is closed, and releases v.mu
// if it does.
func (q *request) overLocked() bool {
	v := q.v
	err := q.cancel
	if err == nil && v.closed {
		err = blockio.ErrClosed
	}
	if err == nil {
		return false
	}
	v.mu.Unlock()
	q.end(err)
	return true
}

// route gives the request to a path, or has it wait for one.
func (q *request) route() {
	v := q.v
	v.mu.Lock()
	if q.overLocked() {
		return
	}
	p := v.choose()
	if p == nil {
		if v.expired {
			err := v.noPathLocked()
			v.mu.Unlock()
			q.end(err)
			return
		}
		v.held.push(q)
		v.mu.Unlock()
		return
	}
	q.where, q.path = withPath, p
	elsewhere := q.Op == blockio.OpFlush && v.cache.Elsewhere(p.vol.Epoch())
	if elsewhere {
		v.wg.Add(1)
	}
	v.mu.Unlock()
	if elsewhere {
		go q.flushElsewhere()
		return
	}
	p.outstanding.Add(1)
	p.vol.Submit(&q.in)
}

// flushElsewhere gives a flush to its path after the caches of the others that hold
// something. What one holds to which no path leads any more is lost to the volume.
func (q *request) flushElsewhere() {
	v, p := q.v, q.path
	defer v.wg.Done()
	v.mu.Lock()
	var others []*path
	reached := []*blockio.Epoch{p.vol.Epoch()}
	for _, o := range v.paths {
		if o != p && o.up {
			others = append(others, o)
		}
	}
	v.mu.Unlock()
	for _, o := range others {
		e := o.vol.Epoch()
		if slices.Contains(reached, e) {
			continue
		}
		err := o.vol.Do(v.ctx, &blockio.Request{Op: blockio.OpFlush, Flusher: q.Flusher})
		if errors.Is(err, blockio.ErrCacheLost) {
			q.end(err)
			return
		}
		if err == nil {
			reached = append(reached, e)
		}
	}
	v.cache.Strand(reached...)
	p.outstanding.Add(1)
	p.vol.Submit(&q.in)
}

// waiter is what Do waits on.
type waiter struct {
	ch   chan struct{}
	done func(*blockio.Request)
}

func newWaiter() any {
	w := &waiter{ch: make(chan struct{}, 1)}
	w.done = func(*blockio.Request) { w.ch <- struct{}{} }
	return w
}

// Do runs r and waits for its end. When ctx ends first, r is aborted before Do returns; where the error of
// a change is an ErrOutcomeUnknown, too, its path was lost, and it may yet be carried out.
func (v *Volume) Do(ctx context.Context, r *blockio.Request) error {
	w := v.waiters.Get().(*waiter)
	defer v.waiters.Put(w)
	r.Done = w.done
	v.Submit(r)
	select {
	case <-w.ch:
		return r.Err
	case <-ctx.Done():
	}
	// The request may be between two paths, where nobody can cancel it.
	for {
		v.cancelRequest(r.Driver.(*request), context.Cause(ctx))
		select {
		case <-w.ch:
			return r.Err
		case <-time.After(cancelPause):
		}
	}
}

// cancelPause is how long a cancelled request is left alone.
const cancelPause = 20 * time.Millisecond

// cancelRequest cancels a request, wherever it is.
func (v *Volume) cancelRequest(q *request, err error) {
	v.mu.Lock()
	switch q.where {
	case idle: // it has ended: Done is being called
		v.mu.Unlock()
		return
	case waiting:
		if q.list != &v.held { // its path is not fenced
			err = blockio.Unknown(err)
		}
		q.list.remove(q)
		q.where = idle
		v.mu.Unlock()
		q.end(err)
		return
	}
	q.cancel = err
	p := q.path
	v.mu.Unlock()
	if p != nil {
		p.vol.Cancel(&q.in, err)
	}
}
